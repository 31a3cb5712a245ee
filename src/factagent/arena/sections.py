"""The report's sections: words and tables, the same for Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from factagent.evaluation.tables import NONE, between, percent

TITLES = {"em": "EM", "f1": "F1", "coverage": "gold facts in the store"}

SECONDS = ("rollout", "measure", "credit", "learn")


class TableView(NamedTuple):
    """Cells of a table; the first `text` columns are words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1


class Section(NamedTuple):
    """A heading, a table, and remarks below it."""

    title: str
    table: TableView | None
    notes: Sequence[str] = ()


def status(table: Mapping[str, Any]) -> str:
    """How far the arena is, in a sentence."""
    states = table["states"]
    counts = ", ".join(f"{states[s]} {s}" for s in ("finished", "under way", "stopped", "waiting") if states.get(s))
    seeds = ", ".join(map(str, table["seeds"]))
    return f"{len(table['runs'])} runs of {table['steps']} steps (seeds {seeds}): {counts}."


def sections(table: Mapping[str, Any]) -> list[Section]:
    """All sections but the curves, in their order."""
    scores = {"steps": _scores(table, "steps"), "tokens": _scores(table, "tokens")}
    order = ("steps", "tokens") if table["budget"] == "steps" else ("tokens", "steps")
    parts = [*(scores[budget] for budget in order), *_differences(table, order), _pairwise(table), _cost(table)]
    return [part for part in (*parts, _confirmed(table), _stops(table)) if part is not None]


def _scores(table: Mapping[str, Any], budget: str) -> Section:
    rows = [
        [row["title"], str(row["seeds"]), _estimate(row["start"]["em"], ends=False)]
        + [_estimate(row[budget][metric]) for metric in TITLES]
        for row in _ranked(table)
    ]
    head = ("entry", "seeds", "EM at the start", *TITLES.values())
    if budget == "steps":
        title, note = f"After {table['steps']} steps", "Finished runs only."
    else:
        tokens = table["tokens"]
        title = "After equally many generated tokens" + (f": {tokens:,.0f}" if tokens else "")
        note = (
            "The largest number that every finished run reached, tokens of measuring included; scores lie on straight "
            "lines between evaluations."
        )
    note = f"{note} In per cent on development questions; means over seeds with 95 % intervals (Student's t)."
    return Section(title, TableView(head, rows), [note])


def _differences(table: Mapping[str, Any], order: Sequence[str]) -> Iterator[Section]:
    """To the baseline: by seed at both budgets, and pooled over questions."""
    baseline = table["entries"][table["baseline"]]["title"]
    others = [row for row in _ranked(table) if row["difference"]]
    if not others:
        return
    for budget in order:
        rows = [[row["title"], *_difference_cells(row, f"seed_{budget}", ("em", "f1", "coverage"))] for row in others]
        head = ("entry", "seeds", *(word for t in TITLES.values() for word in (t, "p")))
        yield Section(
            f"Minus {baseline}, by seed, at equal {budget}",
            TableView(head, rows),
            [
                "A seed is one observation: Student's t over the differences of equal seeds. Holm's correction over "
                "entries."
            ],
        )
    if all(row["difference"]["question"]["em"] is None for row in others):
        return
    rows = [[row["title"], *_difference_cells(row, "question", ("em", "f1"))] for row in others]
    yield Section(
        f"Minus {baseline}, over questions, at equal steps",
        TableView(("entry", "questions", "EM", "p", "F1", "p"), rows),
        [
            "A question is one observation, its score the mean over the shared seeds: bootstrap and random sign flips. "
            "This says whether these policies differ, not whether other seeds would. Holm's correction over entries."
        ],
    )


def _difference_cells(row: Mapping[str, Any], kind: str, metrics: Sequence[str]) -> list[str]:
    found = [row["difference"][kind][metric] for metric in metrics]
    counts = [each["count"] for each in found if each is not None]
    cells = [str(max(counts)) if counts else "0"]
    for each in found:
        cells += [_estimate(each, signed=True), NONE if each is None else _p(each.get("p_holm"))]
    return cells


def _pairwise(table: Mapping[str, Any]) -> Section | None:
    """EM of the row minus that of the column."""
    names = table["ranking"]
    if len(names) < 2:
        return None
    cells: dict[tuple[str, str], str] = {}
    for pair in table["pairs"]:
        for one, two, sign in ((pair["first"], pair["other"], -1), (pair["other"], pair["first"], 1)):
            cells[one, two] = _pair_cell(pair, sign)
    titles = {name: table["entries"][name]["title"] for name in names}
    rows = [[titles[name], *(cells.get((name, other), "") for other in names)] for name in names]
    note = (
        "EM of the row minus EM of the column, in points, over shared seeds; in brackets p by seed and p over "
        "questions, not corrected for the number of pairs."
    )
    return Section("Every two entries, at equal steps", TableView(("", *titles.values()), rows), [note])


def _pair_cell(pair: Mapping[str, Any], sign: int) -> str:
    seed, question = pair["seed"], pair["question"]
    if seed is None:
        return NONE
    return f"{_points(sign * seed['mean'])} ({_p(seed['p'])}; {_p(question['p'] if question else None)})"


def _cost(table: Mapping[str, Any]) -> Section:
    rows = []
    for row in _ranked(table):
        cost = row["cost"]
        if cost is None:
            rows.append([row["title"], *[NONE] * 8])
            continue
        numbers = [cost["prompt_tokens"], cost["response_tokens"], cost["measure_tokens"], cost.get("tokens_in_all")]
        cells = [NONE if number is None else f"{number:,.0f}" for number in numbers]
        rows.append([row["title"], *cells, *(f"{cost[f'seconds.{phase}']:.2f}" for phase in SECONDS)])
    tokens = ("prompt tokens", "generated", "generated in measuring", "generated in the whole run")
    head = ("entry", *tokens, *(f"{phase}, s" for phase in SECONDS))
    note = (
        "Means a training step, but for the whole run's tokens; measuring is what a credit rule samples or scores "
        "beyond the group."
    )
    return Section("Cost", TableView(head, rows), [note])


def _confirmed(table: Mapping[str, Any]) -> Section | None:
    confirmed = table["confirmed"]
    if not confirmed:
        return None
    titles = {name: row["title"] for name, row in table["entries"].items()}
    rows = [
        [titles.get(name, name), str(row["em"]["count"]), _estimate(row["em"]), _estimate(row["f1"])]
        for name, row in confirmed["entries"].items()
    ]
    note = f"{confirmed['questions']:,} test questions, the last checkpoint of every seed; 95 % intervals over seeds."
    looks = confirmed["looks"]
    if looks > 1:
        note += f" These questions were looked at {looks} times: only the first look is a confirmation."
    return Section("Confirmed on test questions", TableView(("entry", "seeds", "EM", "F1"), rows), [note])


def _stops(table: Mapping[str, Any]) -> Section | None:
    """Every run that is not finished, or that skipped updates."""
    rows = []
    for run in table["runs"]:
        remarks = [f"step {run['steps']} of {run['planned_steps']}"] if run["state"] != "finished" else []
        if run["message"]:
            remarks.append(f"exit code {run['exit_code']}: {run['message']} (log: {run['log']})")
        if run["skipped_updates"]:
            remarks.append(f"{run['skipped_updates']} updates skipped as not finite")
        if remarks:
            rows.append([f"{run['entry']}.seed{run['seed']}", run["state"], "; ".join(remarks)])
    if not rows:
        return Section("Alarms and stops", None, ["Every run is finished; no alarm, no update skipped."])
    return Section("Alarms and stops", TableView(("run", "state", "what happened"), rows, text=3))


def _ranked(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [table["entries"][name] for name in table["ranking"]]


def _estimate(estimate: Mapping[str, Any] | None, *, signed: bool = False, ends: bool = True) -> str:
    if estimate is None:
        return NONE
    mean = _points(estimate["mean"]) if signed else percent(estimate["mean"])
    low, high = estimate["low"], estimate["high"]
    return mean if low is None or not ends else f"{mean} [{between(low, high)}]"


def _points(difference: float) -> str:
    """A difference in points; what rounds to nothing has no minus."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}"


def _p(p: float | None) -> str:
    return NONE if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
