"""The choice among credit rules: one configuration type, one function.

A `[credit]` table names its rule in `rule`; without that key it is the FactAgent rule, as in run directories written
before there was a choice. Adding a rule means adding its configuration to `AnyRule` and its line to `_assign`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, assert_never

from pydantic import Discriminator, Tag

from factagent.credit.assign import GroupCredit, assign_credit
from factagent.credit.config import CreditConfig
from factagent.credit.gae import GaeConfig, assign_gae
from factagent.credit.measured import Measured
from factagent.credit.outcome import OutcomeConfig, ReinforceConfig, assign_outcome, assign_reinforce
from factagent.types import Group

if TYPE_CHECKING:
    from factagent.credit.encoders import Encoder


def _rule_of(value: Any) -> Any:
    """The name of the rule that a table (or a configuration) means."""
    return value.get("rule", "fact-utility") if isinstance(value, dict) else getattr(value, "rule", "fact-utility")


AnyRule = Annotated[
    Annotated[CreditConfig, Tag("fact-utility")]
    | Annotated[OutcomeConfig, Tag("outcome")]
    | Annotated[ReinforceConfig, Tag("reinforce")]
    | Annotated[GaeConfig, Tag("gae")],
    Discriminator(_rule_of),
]


def assign(
    groups: Sequence[Group], config: AnyRule, encoder: Encoder, measured: Measured | None = None
) -> list[GroupCredit]:
    """Credit every step of every trajectory of a batch of groups by the configured rule.

    Args:
        groups: the batch; trajectories stopped by a failure are left out of all statistics and get zeros.
        config: the rule with its options.
        encoder: embeds facts (`fact-utility`); `config.load_encoder()` gives the right one.
        measured: what the rule needs beyond the groups (`vine`, `igpo`, `tree-grpo`).

    Returns:
        One record per group, trajectories in the order of the group.

    Raises:
        UsageError: the rule needs a measurement that is not there.
        DataError: a measurement does not fit its trajectory.
    """
    match config:
        case CreditConfig():
            return assign_credit(groups, config, encoder)
        case OutcomeConfig():
            return assign_outcome(groups, config)
        case ReinforceConfig():
            return assign_reinforce(groups, config)
        case GaeConfig():
            return assign_gae(groups, config)
        case _:
            assert_never(config)
