"""`factagent methods`: what can be trained by name, and what each name sets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from factagent.cli.markdown import print_markdown
from factagent.config_presets import MODES, Mode
from factagent.errors import UsageError
from factagent.methods.registry import Method, load_method, method_names, modifier_names
from factagent.rows import write_row
from factagent.toml_text import toml_text

COLUMNS = ("method", "protocol", "credit", "reward", "environment", "matched", "faithful", "paper")
"""Of the list."""

SHOWN = {
    ("rollout", "group_size"): "n {}",
    ("rollout", "max_rounds"): "{} rounds",
    ("rollout", "top_k"): "top-{}",
    ("learner", "learning_rate"): "lr {:g}",
    ("learner", "updates_per_batch"): "{} updates",
    ("learner", "llds_coef"): "LLDS {:g}",
    ("schedule", "questions_per_step"): "batch {}",
    ("schedule", "steps"): "{} steps",
}
"""The numbers by which the list tells modes apart; the rest is in the TOML."""


def methods(
    name: str | None = None,
    /,
    *,
    mode: Mode | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the methods, or print what one of them sets; train one with --set method=NAME.

    Args:
        name: Print this method as TOML, such as gigpo, credit/vine or gigpo+llds.
        mode: matched: protocol, credit, reward and environment only; faithful: the published settings too.
        json_: One JSON object a method instead of the table.
    """
    if name is not None:
        if json_:
            raise UsageError("--json is for the list; a method is printed as TOML")
        sys.stdout.write(method_toml(load_method(name), mode or "matched"))
        return
    if mode is not None:
        raise UsageError(f"--mode {mode} is for one method: factagent methods NAME --mode {mode}")
    described = [describe(load_method(each)) for each in method_names()]
    if json_:
        for row in described:
            write_row(row)
        return
    print_markdown(_table(described))


def describe(method: Method) -> dict[str, Any]:
    """A line of the list: what the method is, and what its modes set in short."""
    table = method.table("matched")
    credit = table["credit"]
    modes: dict[str, Any] = {mode: _in_short(method.table(mode)) for mode in MODES}
    kinds = [method.table(mode).get("environment", {}).get("kind", "retriever") for mode in MODES]
    return {
        "method": method.name,
        "protocol": table["rollout"]["protocol"],
        "credit": credit["rule"],
        "reward": credit["outcome"],
        "environment": " / ".join(dict.fromkeys(kinds)),
        **modes,
        "paper": method.paper,
    }


def method_toml(method: Method, mode: Mode) -> str:
    """What the method sets in a mode, as a configuration, with what there is to know about it in comments."""
    notes = [f"# {method.title}: {method.paper}", f"# {method.summary}"]
    if mode == "faithful" and method.departures:
        notes += ["#", "# What differs from what was published:", *(f"# - {each}" for each in method.departures)]
    table = {"method": method.name, "mode": mode, **method.table(mode)}
    return "\n".join(notes) + "\n" + toml_text(table)


def _in_short(table: Mapping[str, Any]) -> str:
    return ", ".join(form.format(table[part][key]) for (part, key), form in SHOWN.items() if key in table.get(part, {}))


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(_cell(row[column]) for column in COLUMNS)} |" for row in rows]
    known = ", ".join(f"`+{name}`" for name in modifier_names())
    return "\n".join(lines) + f"\n\nModifiers, behind any name: {known}.\n"


def _cell(value: str) -> str:
    return value.replace("|", "\\|") or "the run's own"
