"""GiGPO: an advantage among episodes plus one among steps that started from the same state (methods.md 4.4).

    A = A_E + omega A_S
    A_E = (score - mean) / (std + 1e-6)    over the group's step rows (or its trajectories); score = R - penalty
    A_S = (G_t - mean) / (std + 1e-6)      over the rows of one anchor state; G_t = sum of gamma^(k - t) r_k, k >= t

The reward r is R at the last step, minus the penalty at every invalid one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from factagent.credit.advantages import ETA, outcome_advantages
from factagent.credit.anchors import AnchorKind, anchors, cluster_anchors
from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig, Share, Weight
from factagent.credit.ledger import Counted, Terms, counted, write
from factagent.credit.utility import ordered_sum
from factagent.episode import FORCED
from factagent.protocols.gigpo import is_valid_reply
from factagent.types import Group, Invalid, Step

Floats = NDArray[np.float64]


class GigpoConfig(RuleConfig):
    """GiGPO's rule; the defaults are those of its search recipe, but for the outcome reward (there "em")."""

    rule: Literal["gigpo"] = "gigpo"
    omega: Weight = 1.0
    """Weight of the advantage among steps; 0 leaves the one among episodes."""
    gamma: Share = 0.95
    """Discount a step of the returns that steps are compared by."""
    mode: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    """Whether deviations from a mean are divided by the standard deviation."""
    cross_steps: bool = True
    """Mean and deviation of A_E over all step rows, so that longer trajectories weigh more; false: one row each."""
    anchor: AnchorKind = "observation"
    """What makes two states the same: what the previous action returned (the original), or the last observation with
    the fact store and the memory ("state")."""
    similarity: Annotated[float, Field(gt=0.0, le=1.0)] | None = 0.9
    """Smallest difflib ratio of two anchors that are the same; None compares exactly. `1.0` is no other than that."""
    invalid_penalty: Weight = 0.01
    """Subtracted from an invalid step's score and reward."""
    validity: Literal["action", "reply"] = "action"
    """What is invalid: a reply without an action, or one that breaks the form of GiGPO's protocol, whose action is
    executed all the same."""


def assign_gigpo(groups: Sequence[Group], config: GigpoConfig) -> list[GroupCredit]:
    """Group-in-group credit (methods.md 4.4).

    In the ledger `outcome_advantage` is A_E without the penalty, `process` the rest: omega A_S and what the penalty
    takes from A_E. A group of which one member counts, or none, gives 0 everywhere. Where all outcomes are equal (all
    failed among them) and no step is invalid, A_E is 0, but A_S need not be: discounted returns differ with the number
    of steps left. Where the penalties are all the spread that there is, A_E divides by that, as in the original.
    An anchor met once gives 0. Steps that the driver forced are no rows.
    """
    return [_group(counted(group, config), config) for group in groups]


def discounted_returns(rewards_S: Floats, gamma: float) -> Floats:
    """G_t = r_t + gamma G_{t+1}, G = 0 behind the last step. Shape (S,)."""
    returns_S = np.zeros(len(rewards_S))
    following = 0.0
    for step in reversed(range(len(rewards_S))):
        following = rewards_S[step] + gamma * following
        returns_S[step] = following
    return returns_S


@dataclass(frozen=True, slots=True)
class _Rows:
    """The step rows of a member: which steps they are, and what each is charged."""

    is_row_S: NDArray[np.bool_]
    penalty_S: Floats


def _group(kept: Counted, config: GigpoConfig) -> GroupCredit:
    if len(kept.members) < 2:
        return write(kept, [Terms(0.0, np.zeros(steps)) for steps in kept.steps])
    rows = [_rows(trajectory.steps, config) for trajectory in kept.trajectories]
    mean, divisor = _episode_scale(kept.outcome_G, rows, config)
    steps_GS = _step_advantages(kept, rows, config)
    terms = []
    for outcome, row, step_S in zip(kept.outcome_G.tolist(), rows, steps_GS, strict=True):
        named = [{"invalid_action": -penalty} if penalty else {} for penalty in row.penalty_S.tolist()]
        process_S = config.omega * step_S - row.penalty_S / divisor
        terms.append(Terms((outcome - mean) / divisor, process_S, penalties_S=named))
    return write(kept, terms)


def _rows(steps: Sequence[Step], config: GigpoConfig) -> _Rows:
    is_row = [step.generation.finish_reason != FORCED for step in steps]
    invalid = [row and _is_invalid(step, config) for row, step in zip(is_row, steps, strict=True)]
    return _Rows(np.array(is_row, dtype=bool), config.invalid_penalty * np.array(invalid, dtype=np.float64))


def _is_invalid(step: Step, config: GigpoConfig) -> bool:
    return isinstance(step.action, Invalid) or (config.validity == "reply" and not is_valid_reply(step.generation.text))


def _episode_scale(outcome_G: Floats, rows: Sequence[_Rows], config: GigpoConfig) -> tuple[float, float]:
    """Mean and divisor of A_E; the divisor is 1 where nothing varies or deviations are not divided."""
    score_N = outcome_G
    if config.cross_steps:
        score_N = np.concatenate(
            [outcome - row.penalty_S[row.is_row_S] for outcome, row in zip(outcome_G, rows, strict=True)]
        )
    if not len(score_N):
        return 0.0, 1.0
    mean = float(ordered_sum(score_N)) / len(score_N)
    if config.mode == "mean_norm" or score_N.min() == score_N.max():
        return (float(score_N[0]) if score_N.min() == score_N.max() else mean), 1.0
    return mean, float(np.sqrt(ordered_sum((score_N - mean) ** 2) / (len(score_N) - 1))) + ETA


def _step_advantages(kept: Counted, rows: Sequence[_Rows], config: GigpoConfig) -> list[Floats]:
    """A_S of each step of each member; 0 for steps that are no rows."""
    advantages = [np.zeros(steps) for steps in kept.steps]
    texts: list[str] = []
    places: list[tuple[int, int]] = []
    returns: list[float] = []
    for g, (trajectory, row) in enumerate(zip(kept.trajectories, rows, strict=True)):
        rewards_S = -row.penalty_S
        rewards_S[-1:] += kept.outcome_G[g]
        return_S = discounted_returns(rewards_S, config.gamma)
        states = anchors(kept.group.question, trajectory.steps, config.anchor)
        for step in np.flatnonzero(row.is_row_S).tolist():
            places.append((g, step))
            texts.append(states[step])
            returns.append(float(return_S[step]))
    exact = config.similarity is None or config.similarity == 1.0
    label_N = np.array(cluster_anchors(texts, None if exact else config.similarity), dtype=np.int64)
    advantage_N = _normalised(np.array(returns), label_N, config)
    for (g, step), advantage in zip(places, advantage_N.tolist(), strict=True):
        advantages[g][step] = advantage
    return advantages


def _normalised(return_N: Floats, label_N: NDArray[np.int64], config: GigpoConfig) -> Floats:
    """Returns against those of the same label."""
    advantage_N = np.zeros(len(return_N))
    for label in np.unique(label_N):
        inside = label_N == label
        return_M = return_N[inside]
        if config.mode == "mean_std_norm":
            advantage_N[inside] = outcome_advantages(return_M)
        elif return_M.min() < return_M.max():
            advantage_N[inside] = return_M - ordered_sum(return_M) / len(return_M)
    return advantage_N
