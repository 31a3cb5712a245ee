"""Tree-GRPO: leaves of trees compared twice, within the question and within their tree (methods.md 12.1).

    A = GRPO over all leaves of the question + GRPO over the leaves of one tree

Leaves of a tree share a prefix, so what tells them apart is what came behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from factagent.credit.advantages import outcome_advantages
from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig
from factagent.credit.ledger import Counted, Terms, counted, write
from factagent.credit.measured import Measured
from factagent.errors import DataError, UsageError
from factagent.types import Group

Floats = NDArray[np.float64]


class TreeGrpoConfig(RuleConfig):
    """Tree-GRPO's rule, and the shape of its trees; the defaults are its code's."""

    needs: ClassVar[str | None] = "trees"

    rule: Literal["tree-grpo"] = "tree-grpo"
    levels: Literal["both", "tree"] = "both"
    """Sum of the two levels, or the one within a tree alone (its ablation)."""
    trees: Annotated[int, Field(ge=1)] = 2
    """M, trees a question."""
    expansions: Annotated[int, Field(ge=0)] = 2
    """N, states expanded in each tree a round."""
    rounds: Annotated[int, Field(ge=0)] = 1
    """L, rounds of expansion."""
    leaves: Annotated[int, Field(ge=1)] = 3
    """k, leaves kept of each tree."""

    @property
    def group_size(self) -> int:
        """Members of a group: the leaves kept of all trees."""
        return self.trees * self.leaves

    @model_validator(mode="after")
    def _grown(self) -> Self:
        grown = 1 + self.rounds * self.expansions
        if self.leaves > grown:
            raise ValueError(f"leaves = {self.leaves}, but a tree grows 1 + rounds * expansions = {grown}")
        return self


def assign_tree_grpo(groups: Sequence[Group], config: TreeGrpoConfig, measured: Measured | None) -> list[GroupCredit]:
    """Credit of leaves on two levels (methods.md 12.1).

    In the ledger `outcome_advantage` is the level of the question and `process` that of the tree, both the same for
    every step. Either level gives 0 where it has one member or equal outcomes (all failed among them); excluded
    members give 0.

    Raises:
        UsageError: the trees are not known.
        DataError: they do not fit the group.
    """
    if measured is None or measured.trees is None:
        raise UsageError("rule 'tree-grpo' needs the tree of each member: sample groups as trees (Measured.trees)")
    return [_group(counted(group, config), trees, config) for group, trees in zip(groups, measured.trees, strict=True)]


def _group(kept: Counted, trees: Sequence[int], config: TreeGrpoConfig) -> GroupCredit:
    members = len(kept.group.trajectories)
    if len(trees) != members:
        raise DataError(f"group '{kept.group.question.id}': {len(trees)} trees given for {members} members")
    tree_G = np.array([trees[member] for member in kept.members], dtype=np.int64)
    across_G = outcome_advantages(kept.outcome_G) if config.levels == "both" else np.zeros(len(tree_G))
    within_G = np.zeros(len(tree_G))
    for tree in np.unique(tree_G):
        within_G[tree_G == tree] = outcome_advantages(kept.outcome_G[tree_G == tree])
    rows = zip(across_G.tolist(), within_G.tolist(), kept.steps, strict=True)
    return write(kept, [Terms(across, np.full(steps, within)) for across, within, steps in rows])
