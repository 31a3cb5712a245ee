"""Outcome-only credit: group-relative advantages (GRPO) and the raw return (REINFORCE) (methods.md 3.5, 3.6, 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from factagent.credit.advantages import outcome_advantages
from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig
from factagent.credit.ledger import Terms, counted, write
from factagent.types import Group


class OutcomeConfig(RuleConfig):
    """GRPO: `A = (R - mean) / (std + 1e-6)` over the group, the same for every step (unbiased std)."""

    rule: Literal["outcome"] = "outcome"


class ReinforceConfig(RuleConfig):
    """REINFORCE without a baseline: every step's advantage is the trajectory's outcome reward."""

    compares_members: ClassVar[bool] = False

    rule: Literal["reinforce"] = "reinforce"


def assign_outcome(groups: Sequence[Group], config: OutcomeConfig) -> list[GroupCredit]:
    """Group-relative credit of the outcome (methods.md 3.5).

    A group of one, one whose outcomes are all equal (all failed among them), and one whose members were all excluded
    give 0 everywhere.
    """
    credits = []
    for group in groups:
        kept = counted(group, config)
        advantage_G = outcome_advantages(kept.outcome_G)
        pairs = zip(advantage_G.tolist(), kept.steps, strict=True)
        credits.append(write(kept, [Terms(advantage, np.zeros(steps)) for advantage, steps in pairs]))
    return credits


def assign_reinforce(groups: Sequence[Group], config: ReinforceConfig) -> list[GroupCredit]:
    """The raw return (methods.md 3.6: what Search-R1 v0.1 did by accident; 7: ZeroSearch).

    No member is compared with another: a group of one and one of equal outcomes keep theirs, one that failed
    throughout gives 0 because its outcomes are 0, and excluded members give 0.
    """
    credits = []
    for group in groups:
        kept = counted(group, config)
        pairs = zip(kept.outcome_G.tolist(), kept.steps, strict=True)
        credits.append(write(kept, [Terms(outcome, np.zeros(steps)) for outcome, steps in pairs]))
    return credits
