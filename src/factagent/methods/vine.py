"""VinePPO's values: the mean return of fresh continuations from each state of a trajectory (methods.md, section 9).

    V(s_t) = mean over K continuations from s_t of the outcome reward, under the policy that sampled the trajectory
    V(s_T) = 0; a state without a value takes V(s_t) = r_{t+1} + V(s_{t+1}), filled from behind

A state is an Episode (question, steps so far, rounds left), so a continuation is a branch that is driven on: it has the
rounds that are left, not a fresh budget. States that several members share are estimated once. All continuations of a
batch run in one lock-step batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from factagent.episode import Episode
from factagent.methods.replay import replay
from factagent.policies.base import Policy
from factagent.protocols.base import AgentProtocol
from factagent.retrieval.base import EpisodeRetriever, Retriever
from factagent.rollout import RolloutSettings, run_episodes
from factagent.types import Group, Observation, Question, Trajectory

Floats = NDArray[np.float64]
Key = tuple[str | int, ...]
Outcome = Callable[[Question, Trajectory], float]

_Edge = tuple[int, str, tuple[int, ...], Observation | None]
"""A step from a state: the state's number, what was generated (text and tokens), what was observed."""


@dataclass(frozen=True)
class VineSettings:
    """How states are valued.

    Attributes:
        continuations: K, fresh continuations a state.
        max_states: states of a trajectory that are estimated, besides s_0.
        reuse_group: the value of s_0 is the mean return of the group's own members, who all start there. A group of
            which fewer than two members count is estimated by continuations all the same: a member's own return would
            be its own baseline.
    """

    continuations: int = 4
    max_states: int = 20
    reuse_group: bool = True

    def __post_init__(self) -> None:
        if self.continuations < 1 or self.max_states < 0:
            raise ValueError(f"{self}: continuations must be at least 1, max_states at least 0")


@dataclass(frozen=True)
class VineEstimate:
    """Values of a batch, and what they cost.

    Attributes:
        values: (groups)(members)(S + 1,): V(s_0) to V(s_S); the last is 0. All are 0 for a trajectory that a failure
            stopped, which leaves the statistics.
        states: distinct states that were continued from.
        visits: states of trajectories that they stand for; the difference is what sharing saved.
        tokens: sampled in the continuations.
    """

    values: list[list[Floats]]
    states: int
    visits: int
    tokens: int


@dataclass
class _Forest:
    """The distinct states of a batch that are to be valued, with the names of their draws."""

    starts: list[Episode] = field(default_factory=list)
    names: list[Key] = field(default_factory=list)
    visits: int = 0

    def plant(self, episode: Episode, name: Key) -> int:
        """Add a state; returns its number."""
        self.starts.append(episode)
        self.names.append(name)
        return len(self.starts) - 1


def vine_values(
    groups: Sequence[Group],
    outcome: Outcome,
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    settings: RolloutSettings,
    key: Key,
    vine: VineSettings,
) -> VineEstimate:
    """Value every state of every trajectory of a batch.

    Args:
        groups: the batch, sampled by this policy under these settings.
        outcome: the reward of a finished trajectory.
        key: names the random draws; question, member, step and continuation are appended.

    Raises:
        DataError: a trajectory was sampled under other settings.
    """
    forest = _Forest()
    places = [_places(group, forest, protocol, settings, vine) for group in groups]
    means, tokens = _continue(forest, outcome, policy, retriever, key, vine.continuations)
    values = [_group_values(group, where, means, outcome, vine) for group, where in zip(groups, places, strict=True)]
    return VineEstimate(values, len(forest.starts), forest.visits, tokens)


def _places(
    group: Group, forest: _Forest, protocol: AgentProtocol, settings: RolloutSettings, vine: VineSettings
) -> list[list[int | None]]:
    """The number of each state s_0 to s_{S-1} of each member; None where it is not estimated."""
    known: dict[_Edge, int] = {}
    root: int | None = None
    places: list[list[int | None]] = []
    reuse = vine.reuse_group and len(_counted(group)) > 1
    for trajectory in group.trajectories:
        row: list[int | None] = [None] * len(trajectory.steps)
        places.append(row)
        if trajectory.stop_reason.is_failure or not row:
            continue
        states = replay(group.question, trajectory, protocol, settings)
        if not reuse:
            forest.visits += 1
            if root is None:
                root = forest.plant(states[0], (group.question.id, trajectory.member, 0))
            row[0] = root
        last = -1
        for index in range(1, min(len(row), vine.max_states + 1)):
            forest.visits += 1
            step = trajectory.steps[index - 1]
            edge = (last, step.generation.text, step.generation.response_ids, step.observation)
            if edge not in known:
                known[edge] = forest.plant(states[index], (group.question.id, trajectory.member, index))
            row[index] = last = known[edge]
    return places


def _continue(
    forest: _Forest,
    outcome: Outcome,
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    key: Key,
    continuations: int,
) -> tuple[list[float | None], int]:
    """The mean return from each state (None where every continuation failed), and the tokens sampled."""
    branches = [start.branch() for start in forest.starts for _ in range(continuations)]
    keys = [(*key, *name, twin) for name in forest.names for twin in range(continuations)]
    run_episodes(branches, keys, policy, retriever)
    means: list[float | None] = []
    tokens = 0
    for number, start in enumerate(forest.starts):
        ends = [branch.trajectory for branch in branches[number * continuations : (number + 1) * continuations]]
        played = len(start.state.steps)
        tokens += sum(step.generation.sampled_tokens for end in ends for step in end.steps[played:])
        returns = [outcome(start.state.question, end) for end in ends if not end.stop_reason.is_failure]
        means.append(float(np.mean(returns)) if returns else None)
    return means, tokens


def _group_values(
    group: Group,
    places: Sequence[Sequence[int | None]],
    means: Sequence[float | None],
    outcome: Outcome,
    vine: VineSettings,
) -> list[Floats]:
    returns = [outcome(group.question, trajectory) for trajectory in _counted(group)]
    start = float(np.mean(returns)) if vine.reuse_group and len(returns) > 1 else None
    values = []
    for trajectory, row in zip(group.trajectories, places, strict=True):
        known = [None if place is None else means[place] for place in row]
        if trajectory.stop_reason.is_failure:
            values.append(np.zeros(len(row) + 1))
            continue
        if known and start is not None:
            known[0] = start
        values.append(fill_backwards(known, outcome(group.question, trajectory)))
    return values


def fill_backwards(known: Sequence[float | None], outcome: float) -> Floats:
    """V(s_0) to V(s_S), shape (S + 1,), from the values known of s_0 to s_{S-1}.

    A missing one is V(s_t) = r_{t+1} + V(s_{t+1}); the only reward is `outcome`, on the last step.
    """
    values = np.zeros(len(known) + 1)
    for index in reversed(range(len(known))):
        value = known[index]
        reward = outcome if index == len(known) - 1 else 0.0
        values[index] = reward + values[index + 1] if value is None else value
    return values


def _counted(group: Group) -> list[Trajectory]:
    return [trajectory for trajectory in group.trajectories if not trajectory.stop_reason.is_failure]
