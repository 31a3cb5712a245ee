"""The tables that `factagent credit-quality` shows on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

AUC_COLUMNS = (*(("assert", kind) for kind in ("all-fail", "mixed", "all-pass", "all")), ("search", "all"))
PLURALS = {"assert": "asserts", "search": "searches"}

WIDTH = 160


def console() -> Console:
    """The console on standard error, so that standard output holds only JSON lines; wide where it is a file."""
    terminal = Console(stderr=True)
    return terminal if terminal.is_terminal else Console(stderr=True, width=WIDTH)


def print_tables(rows: Iterable[Mapping[str, object]]) -> None:
    """One table of areas for each set of groups, then one of the adversaries' gains."""
    kept = list(rows)
    for source in dict.fromkeys(row["groups"] for row in kept):
        columns = [(f"{PLURALS[steps]}, {kind}", {"steps": steps, "kind": kind}) for steps, kind in AUC_COLUMNS]
        chosen = [row for row in kept if row["table"] == "auc" and row["groups"] == source]
        console().print(_table(f"AUC of advantages against gold: {source} groups", columns, chosen, "auc"))
    gains = [row for row in kept if row["table"] == "gain" and row["kind"] in ("all-fail", "all")]
    names = dict.fromkeys((str(row["groups"]), str(row["kind"])) for row in gains)
    columns = [(f"{name}, {kind}", {"groups": name, "kind": kind}) for name, kind in names]
    if columns:
        console().print(_table("Process term that an adversary gains over its honest self", columns, gains, "gain"))


def _table(
    title: str, columns: Sequence[tuple[str, dict[str, str]]], rows: Sequence[Mapping[str, object]], value: str
) -> Table:
    table = Table("credit", *(heading for heading, _ in columns), title=title)
    for credit in dict.fromkeys(str(row["credit"]) for row in rows):
        table.add_row(credit, *(_cell(rows, {"credit": credit} | where, value) for _, where in columns))
    return table


def _cell(rows: Sequence[Mapping[str, object]], where: Mapping[str, str], value: str) -> str:
    """The value with half the width of its interval."""
    for row in rows:
        if all(row[key] == wanted for key, wanted in where.items()):
            middle, low, high = row[value], row["low"], row["high"]
            if isinstance(middle, float) and isinstance(low, float) and isinstance(high, float):
                return f"{middle:.3f} ±{(high - low) / 2:.3f}"
    return "-"
