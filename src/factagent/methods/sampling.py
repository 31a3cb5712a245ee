"""How a batch is sampled for a credit rule: independent members, or the leaves of trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from factagent.credit.rule_choice import AnyRule
from factagent.credit.tree_grpo import TreeGrpoConfig
from factagent.methods.tree import TreeSettings, sample_trees
from factagent.policies.base import Policy
from factagent.protocols.base import AgentProtocol
from factagent.retrieval.base import EpisodeRetriever, Retriever
from factagent.rollout import RolloutSettings, sample_groups
from factagent.types import Group, Question


@dataclass(frozen=True)
class Sampled:
    """A batch of groups.

    Attributes:
        groups: one a question, in order.
        trees: the tree of each member of each group, where groups are made of trees.
        tokens: that the policy sampled; what members of a tree share counts once.
    """

    groups: list[Group]
    trees: list[tuple[int, ...]] | None
    tokens: int


def sample(
    questions: Sequence[Question],
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    settings: RolloutSettings,
    key: tuple[str | int, ...],
    rule: AnyRule,
) -> Sampled:
    """Sample a group for each question, the way that the rule asks for.

    Args:
        key: names the random draws, e.g. `(seed, "train", step)`; see `rollout.sample_groups`.
        rule: the credit rule of the run.

    Raises:
        ConfigError: the rule's trees do not make groups of `settings.group_size`.
    """
    if isinstance(rule, TreeGrpoConfig):
        shape = TreeSettings(rule.trees, rule.expansions, rule.rounds, rule.leaves)
        return Sampled(*sample_trees(questions, protocol, policy, retriever, settings, key, shape))
    groups = sample_groups(questions, protocol, policy, retriever, settings, key)
    steps = (step for group in groups for trajectory in group.trajectories for step in trajectory.steps)
    return Sampled(groups, None, sum(step.generation.sampled_tokens for step in steps))
