"""The choice among credit rules: one configuration type, one function.

A `[credit]` table names its rule in `rule`; without that key it is the FactAgent rule, as in run directories written
before there was a choice. Adding a rule means adding its configuration to `AnyRule` and its line to `assign`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, assert_never

from pydantic import Discriminator, Tag

from factagent.credit.assign import GroupCredit, assign_credit
from factagent.credit.config import CreditConfig
from factagent.credit.egrpo import EgrpoConfig, assign_egrpo, entity_metrics
from factagent.credit.gae import GaeConfig, assign_gae
from factagent.credit.gigpo import GigpoConfig, assign_gigpo
from factagent.credit.igpo import IgpoConfig, assign_igpo
from factagent.credit.measured import Measured
from factagent.credit.outcome import OutcomeConfig, ReinforceConfig, assign_outcome, assign_reinforce
from factagent.credit.tree_grpo import TreeGrpoConfig, assign_tree_grpo
from factagent.credit.vine import VineConfig, assign_vine
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
    | Annotated[GigpoConfig, Tag("gigpo")]
    | Annotated[EgrpoConfig, Tag("e-grpo")]
    | Annotated[VineConfig, Tag("vine")]
    | Annotated[IgpoConfig, Tag("igpo")]
    | Annotated[TreeGrpoConfig, Tag("tree-grpo")]
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
        case GigpoConfig():
            return assign_gigpo(groups, config)
        case EgrpoConfig():
            return assign_egrpo(groups, config)
        case VineConfig():
            return assign_vine(groups, config, measured)
        case IgpoConfig():
            return assign_igpo(groups, config, measured)
        case TreeGrpoConfig():
            return assign_tree_grpo(groups, config, measured)
        case GaeConfig():
            return assign_gae(groups, config, measured)
        case _:
            assert_never(config)


def rule_metrics(groups: Sequence[Group], config: AnyRule) -> dict[str, float]:
    """Figures of a batch that only this rule has; most have none."""
    return entity_metrics(groups, config) if isinstance(config, EgrpoConfig) else {}
