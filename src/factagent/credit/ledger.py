"""The ledger of rules that compare trajectories: who counts, what they earned, and the record of each step.

Rules differ in two numbers: an advantage that a whole trajectory shares (`outcome_advantage`) and one a step
(`process`). Failures of infrastructure leave all statistics here, once for every rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factagent.credit.advantages import total_advantages
from factagent.credit.assign import GroupCredit, StepCredit, TrajectoryCredit, excluded, outcome_and_success
from factagent.credit.utility import ordered_sum
from factagent.types import Group, Trajectory

if TYPE_CHECKING:
    from factagent.credit.config import RuleConfig

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counted:
    """The members of a group that count, with their rewards. Arrays run over these members only."""

    group: Group
    members: tuple[int, ...]
    outcome_G: Floats
    success_G: Floats

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories that count, in the order of the group."""
        return [self.group.trajectories[member] for member in self.members]

    @property
    def steps(self) -> list[int]:
        """The number of steps of each."""
        return [len(trajectory.steps) for trajectory in self.trajectories]


def counted(group: Group, config: RuleConfig) -> Counted:
    """The members that no failure of infrastructure stopped, with outcome and success."""
    members = tuple(i for i, trajectory in enumerate(group.trajectories) if not trajectory.stop_reason.is_failure)
    rewards = [outcome_and_success(group.question, group.trajectories[member], config) for member in members]
    outcome_G = np.array([outcome for outcome, _ in rewards], dtype=np.float64)
    return Counted(group, members, outcome_G, np.array([success for _, success in rewards], dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Terms:
    """What a rule says about one member: `advantage = outcome_advantage + weight * process_S`, step by step.

    `potential_S` is what the rule thinks of the state after each step and `shaping_S` how much the step changed it;
    zeros where a rule has no such notion.
    """

    outcome_advantage: float
    process_S: Floats
    weight: float = 1.0
    potential_S: Floats | None = None
    shaping_S: Floats | None = None
    penalties_S: Sequence[dict[str, float]] | None = None


def write(counted: Counted, terms: Sequence[Terms]) -> GroupCredit:
    """The group's credit from the terms of its counted members; the others get zeros."""
    group = counted.group
    credits = [excluded(trajectory) for trajectory in group.trajectories]
    for row, (member, term) in enumerate(zip(counted.members, terms, strict=True)):
        credits[member] = TrajectoryCredit(
            float(counted.outcome_G[row]), float(counted.success_G[row]), term.outcome_advantage, _steps(term)
        )
    size = len(counted.members)
    return GroupCredit(float(ordered_sum(counted.success_G)) / size if size else 0.0, (), tuple(credits))


def _steps(term: Terms) -> tuple[StepCredit, ...]:
    count = len(term.process_S)
    zeros = np.zeros(count)
    columns = (
        zeros if term.potential_S is None else term.potential_S,
        zeros if term.shaping_S is None else term.shaping_S,
        term.process_S,
        total_advantages(term.outcome_advantage, term.process_S, term.weight),
    )
    named = term.penalties_S or [{} for _ in range(count)]
    return tuple(
        StepCredit(potential, shape, process, penalties, total)
        for potential, shape, process, total, penalties in zip(
            *(column.tolist() for column in columns), named, strict=True
        )
    )
