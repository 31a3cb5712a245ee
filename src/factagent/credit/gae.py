"""GAE with a critic (Search-R1's PPO, methods.md 3.5): its options, and what it is without a critic.

Advantages a token need values, and values need the critic that trains beside the policy; `train.token_credit` puts
them into the ledger that starts here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig, Share, Weight
from factagent.credit.ledger import Terms, counted, write
from factagent.types import Group


class GaeConfig(RuleConfig):
    """GAE over the sampled tokens of a trajectory: `A_t = sum_k (gamma lambda)^k delta_{t+k}` (methods.md 3.5).

    No member is compared with another, so a group may have one.
    """

    compares_members: ClassVar[bool] = False

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


def assign_gae(groups: Sequence[Group], config: GaeConfig) -> list[GroupCredit]:
    """The ledger before a critic has spoken: values of 0, so that each step's advantage is the outcome reward.

    A group of one and one of equal outcomes keep theirs, one that failed throughout gives 0 because its outcomes are 0,
    and excluded members give 0. Training replaces the advantages (`train.token_credit`); the outcomes stay.
    """
    credits = []
    for group in groups:
        kept = counted(group, config)
        pairs = zip(kept.outcome_G.tolist(), kept.steps, strict=True)
        credits.append(write(kept, [Terms(0.0, np.full(steps, outcome)) for outcome, steps in pairs]))
    return credits
