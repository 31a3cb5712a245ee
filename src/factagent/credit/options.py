"""Named credit options to compare: changes to a base configuration of the FactAgent rule, or another rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from factagent.credit.config import CreditConfig, RuleConfig
from factagent.credit.rule_choice import AnyRule
from factagent.errors import ConfigError

_CONSENSUS: dict[str, object] = {"consensus": 0.1}
_CENTRED: dict[str, object] = {"prior": "centred"}
_CONTRAST: dict[str, object] = {"utility": "contrast"}
OPTIONS: dict[str, dict[str, object]] = {
    "outcome-only": {"process_weight": 0.0},
    "penalties only": {"utility": "none"},
    "paper": {},
    "exact-clustering": {"equivalence": "exact"},
    "no-redistribution": {"attribution": 0.0},
    "strict": {"orientation": "strict"},
    "components": {"linkage": "components"},
    "soft": {"success": "soft"},
    "leave-one-out": {"counting": "leave-one-out"},
    "return": {"process": "return"},
    "batch-std": {"process_scale": "batch-std"},
    "paper, 2": {"process_weight": 2.0},
    "paper, 5": {"process_weight": 5.0},
    "consensus": _CONSENSUS,
    "centred": _CENTRED,
    "centred, 2": _CENTRED | {"process_weight": 2.0},
    "centred, 5": _CENTRED | {"process_weight": 5.0},
    "centred, soft": _CENTRED | {"success": "soft"},
    "centred, leave-one-out": _CENTRED | {"counting": "leave-one-out"},
    "centred, return, 5": _CENTRED | {"process": "return", "process_weight": 5.0},
    "centred, batch-std": _CENTRED | {"process_scale": "batch-std"},
    "contrast": _CONTRAST,
    "contrast, 2": _CONTRAST | {"process_weight": 2.0},
    "contrast, 5": _CONTRAST | {"process_weight": 5.0},
    "contrast, leave-one-out, 5": _CONTRAST | {"counting": "leave-one-out", "process_weight": 5.0},
    "centred + consensus": _CENTRED | _CONSENSUS,
    "centred + consensus, 2": _CENTRED | _CONSENSUS | {"process_weight": 2.0},
    "centred + consensus, 5": _CENTRED | _CONSENSUS | {"process_weight": 5.0},
    "centred + consensus from 0": _CENTRED | _CONSENSUS | {"consensus_centre": 0.0},
    "contrast + consensus, 2": _CONTRAST | _CONSENSUS | {"process_weight": 2.0},
    "contrast + consensus, 5": _CONTRAST | _CONSENSUS | {"process_weight": 5.0},
    "outcome": {"rule": "outcome"},
    "reinforce": {"rule": "reinforce"},
    "gigpo": {"rule": "gigpo"},
    "gigpo, state": {"rule": "gigpo", "anchor": "state"},
    "gigpo, omega 0": {"rule": "gigpo", "omega": 0.0},
    "e-grpo": {"rule": "e-grpo"},
}
"""What each option of the grid changes of the base configuration; a number is the process weight Omega (else 0.5).
Options with a rule of their own take from the base only what was set there and every rule knows."""

MEASURED_OPTIONS: dict[str, dict[str, object]] = {
    "vine": {"rule": "vine"},
    "igpo": {"rule": "igpo"},
    "tree-grpo": {"rule": "tree-grpo"},
    "gae": {"rule": "gae"},
}
"""Options that need measurements with the policy, and hence are not part of the grid: they are chosen by name."""

_ANY_RULE: TypeAdapter[AnyRule] = TypeAdapter(AnyRule)


def named_options(base: CreditConfig, chosen: Sequence[str] = ()) -> dict[str, AnyRule]:
    """The grid over a base configuration, or the options chosen from it or spelled out.

    Args:
        base: gives what an option does not change (encoder, thresholds, penalties).
        chosen: names of `OPTIONS` or `MEASURED_OPTIONS`, or new ones as `name:key=value,key=value`, where the key
            `rule` names another rule. Empty: the whole grid.

    Raises:
        ConfigError: a name, key or value is unknown.
    """
    known = OPTIONS | MEASURED_OPTIONS
    changes: dict[str, dict[str, object]] = {}
    for item in chosen or OPTIONS:
        name, colon, assignments = item.partition(":")
        if not colon and name not in known:
            raise ConfigError(f"unknown credit option '{name}'; choose from {'; '.join(known)} or write name:key=value")
        pairs = [pair.partition("=") for pair in assignments.split(",") if pair]
        changes[name] = {key.strip(): value.strip() for key, _, value in pairs} if colon else known[name]
    return {name: _changed(name, base, change) for name, change in changes.items()}


def _changed(name: str, base: CreditConfig, change: Mapping[str, object]) -> AnyRule:
    rule = change.get("rule", base.rule)
    kept = base.model_dump()
    if rule != base.rule:
        kept = {key: kept[key] for key in RuleConfig.model_fields if key in base.model_fields_set and key != "rule"}
    try:
        config = _ANY_RULE.validate_python(kept | dict(change))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != rule) or "rule"
        raise ConfigError(f"credit option '{name}': key '{key}': {first['msg']}, found {first['input']!r}") from error
    return config
