"""GAE with a critic (Search-R1's PPO, methods.md 3.5): its options, and what it is without a critic.

Advantages a token need values, and values need the critic that trains beside the policy; `train.token_credit` puts
them into the ledger that starts here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig, Share, Weight
from factagent.credit.ledger import Terms, counted, write
from factagent.credit.measured import Measured, states_of
from factagent.types import Group

Floats = NDArray[np.float64]


class GaeConfig(RuleConfig):
    """GAE over the sampled tokens of a trajectory: `A_t = sum_k (gamma lambda)^k delta_{t+k}` (methods.md 3.5).

    No member is compared with another, so a group may have one.
    """

    compares_members: ClassVar[bool] = False
    needs: ClassVar[str | None] = "values"

    rule: Literal["gae"] = "gae"
    gamma: Share = 1.0
    """Discount a sampled token."""
    lam: Share = 1.0
    """lambda; 1 is the return minus the value, 0 looks one token ahead."""
    kl_in_reward: Weight = 0.0
    """Coefficient of `log pi_old - log pi_ref`, subtracted from the reward of each token; the original: 0.001, with
    learner.kl_coef = 0."""
    whiten: bool = True
    """Advantages of a batch are shifted and scaled to mean 0 and variance 1 over the tokens that carry loss."""


def gae_advantages(rewards_S: Floats, values_S: Floats, gamma: float = 1.0, lam: float = 1.0) -> Floats:
    """The same recursion over whole steps: `delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}`.

    Args:
        rewards_S: reward after each step, `(S,)`.
        values_S: V(s_0), ..., V(s_S), `(S + 1,)`; the last is taken as 0.
        gamma: discount a step.
        lam: with 1 and gamma 1, `A_t = sum of r_k for k >= t, minus V(s_t)`.

    Returns:
        Shape (S,).
    """
    size = len(rewards_S)
    delta_S = rewards_S + gamma * np.append(values_S[1:size], 0.0)[:size] - values_S[:size]
    advantages_S = np.zeros(size)
    following = 0.0
    for step in reversed(range(size)):
        following = delta_S[step] + gamma * lam * following
        advantages_S[step] = following
    return advantages_S


def assign_gae(groups: Sequence[Group], config: GaeConfig, measured: Measured | None = None) -> list[GroupCredit]:
    """The ledger before a critic has spoken: values of 0, so that each step's advantage is the outcome reward.

    Where values of states are given, advantages of steps by `gae_advantages` instead, not whitened. A group of one and
    one of equal outcomes keep theirs, one that failed throughout gives 0 because its outcomes are 0, and excluded
    members give 0. Training replaces the advantages (`train.token_credit`); the outcomes stay.

    Raises:
        DataError: the values do not fit the trajectories.
    """
    credits = []
    for index, group in enumerate(groups):
        kept = counted(group, config)
        rows = zip(kept.members, kept.outcome_G.tolist(), kept.steps, strict=True)
        if measured is None or measured.values is None:
            credits.append(write(kept, [Terms(0.0, np.full(steps, outcome)) for _, outcome, steps in rows]))
            continue
        values = measured.values[index]
        credits.append(
            write(
                kept,
                [
                    Terms(0.0, _step_advantages(outcome, states_of(group, member, values, "values"), config))
                    for member, outcome, _ in rows
                ],
            )
        )
    return credits


def _step_advantages(outcome: float, values_S: Floats, config: GaeConfig) -> Floats:
    rewards_S = np.zeros(len(values_S) - 1)
    rewards_S[-1:] = outcome
    return gae_advantages(rewards_S, values_S, config.gamma, config.lam)
