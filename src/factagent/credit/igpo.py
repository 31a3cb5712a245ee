"""IGPO: a step's reward is how much likelier it made the gold answer (methods.md 12.1).

    p_t = exp(mean log-probability of the gold answer in state s_t)
    r_t = p_{t+1} - p_t, and at the last step the outcome reward instead
    R_t = sum of gamma^(k - t) r_k, k >= t;    A_t = R_t - mean of R_t over the members that took a step t

The original takes that mean at equal token positions, where different turns meet; here turns are aligned. Its standard
deviation is computed and not used, and is left out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig, Share, Weight
from factagent.credit.gigpo import discounted_returns
from factagent.credit.ledger import Terms, counted, write
from factagent.credit.measured import Measured, states_of
from factagent.credit.utility import ordered_sum
from factagent.errors import UsageError
from factagent.types import Group

Floats = NDArray[np.float64]


class IgpoConfig(RuleConfig):
    """IGPO's rule; the defaults are its code's."""

    needs: ClassVar[str | None] = "gold_logprobs"

    rule: Literal["igpo"] = "igpo"
    gamma: Share = 1.0
    """Discount a step of what follows."""
    format_penalty: Weight = 2.0
    """What the last step of a trajectory without an answer is charged (the outcome in the ledger stays 0)."""


def assign_igpo(groups: Sequence[Group], config: IgpoConfig, measured: Measured | None) -> list[GroupCredit]:
    """Information-gain credit (methods.md 12.1).

    In the ledger `potential` is p after a step, `shaping` the step's reward r, `process` its advantage. A group of
    which one member counts gives 0, and so does a turn that one member alone reached. Where all outcomes are equal (all
    failed among them) the gains remain; where the gains are equal too, all is 0. Excluded members give 0.

    Raises:
        UsageError: the probabilities were not measured.
        DataError: they do not fit the trajectories.
    """
    if measured is None or measured.gold_logprobs is None:
        raise UsageError(
            "rule 'igpo' needs log-probabilities of the gold answer: measure them (Measured.gold_logprobs)"
        )
    return [_group(group, rows, config) for group, rows in zip(groups, measured.gold_logprobs, strict=True)]


def information_gains(gold_logprobs_S: Floats, final: float) -> Floats:
    """The reward of each step: rises of p, and `final` at the last. Shape (S,) from (S + 1,)."""
    rewards_S = np.diff(np.exp(gold_logprobs_S))
    rewards_S[-1:] = final
    return rewards_S


def against_turns(returns_GS: Sequence[Floats]) -> list[Floats]:
    """Each return minus the mean over the members that have one at this turn; 0 where they are equal."""
    width = max(map(len, returns_GS), default=0)
    mean_S = np.zeros(width)
    for turn in range(width):
        at_turn = np.array([row[turn] for row in returns_GS if len(row) > turn])
        equal = at_turn.min() == at_turn.max()
        mean_S[turn] = at_turn[0] if equal else ordered_sum(at_turn) / len(at_turn)
    return [row - mean_S[: len(row)] for row in returns_GS]


def _group(group: Group, rows: Sequence[Floats], config: IgpoConfig) -> GroupCredit:
    kept = counted(group, config)
    logprobs = [states_of(group, member, rows, "gold_logprobs") for member in kept.members]
    finals = [
        -config.format_penalty if trajectory.answer is None else outcome
        for trajectory, outcome in zip(kept.trajectories, kept.outcome_G.tolist(), strict=True)
    ]
    rewards = [information_gains(row, final) for row, final in zip(logprobs, finals, strict=True)]
    advantages = against_turns([discounted_returns(rewards_S, config.gamma) for rewards_S in rewards])
    return write(
        kept,
        [
            Terms(0.0, advantages_S, potential_S=np.exp(row[1:]), shaping_S=rewards_S)
            for row, rewards_S, advantages_S in zip(logprobs, rewards, advantages, strict=True)
        ],
    )
