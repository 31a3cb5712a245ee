"""The tables of a report: configurations side by side, scores before and after training, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from factagent.analysis.curves import COLOURS, PHASES
from factagent.analysis.html import Content, Html, join, tag
from factagent.analysis.run_view import RunView, number_at

ESSENTIALS = (
    ("method", "Method"),
    ("model.path", "Model"),
    ("data.directory", "Data"),
    ("rollout.protocol", "Protocol"),
    ("rollout.prompt", "Prompt"),
    ("rollout.group_size", "Trajectories per question"),
    ("rollout.max_rounds", "Rounds at most"),
    ("rollout.temperature", "Temperature"),
    ("rollout.top_p", "Nucleus (top-p)"),
    ("schedule.questions_per_step", "Questions per step"),
    ("schedule.steps", "Steps planned"),
    ("credit.rule", "Credit rule"),
    ("credit.encoder", "Encoder of facts"),
    ("credit.utility", "Utility"),
    ("credit.prior", "Prior"),
    ("credit.counting", "Counting"),
    ("credit.process", "Process reward"),
    ("credit.attribution", "Attribution α"),
    ("credit.process_weight", "Process weight Ω"),
    ("credit.outcome", "Outcome reward"),
    ("learner.aggregation", "Loss aggregation"),
    ("learner.learning_rate", "Learning rate"),
    ("learner.clip_low", "Clip (low)"),
    ("learner.clip_high", "Clip (high)"),
    ("learner.kl_coef", "KL coefficient"),
    ("learner.precision", "Precision"),
    ("seed", "Seed"),
)


class Score(NamedTuple):
    """EM with its 95 % interval, all in [0, 1]; the ends are None where the run did not store them."""

    em: float
    low: float | None
    high: float | None


class ScoreRow(NamedTuple):
    """One line of the score table."""

    label: str
    questions: int | None
    before: Score | None
    after: Score | None
    kind: str


def score_rows(run: RunView) -> list[ScoreRow]:
    """All questions, then by hops, then by type: from the summary, else from the first and the last evaluation."""
    before, after = _first_and_last(run)
    if not before and not after:
        return []
    rows = [_row("all questions", before, after, "all")]
    for table, form in (("by_hop", "{} hop"), ("by_type", "{}")):
        one, other = before.get(table), after.get(table)
        one, other = (one if isinstance(one, Mapping) else {}), (other if isinstance(other, Mapping) else {})
        for label in sorted({*one, *other}):
            text = form.format(label) + ("s" if table == "by_hop" and label != "1" else "")
            rows.append(_row(text, _mapping(one.get(label)), _mapping(other.get(label)), table))
    return rows


def score_table(run: RunView) -> Html:
    """Scores before and after with their intervals, and a mark on a common axis from 0 to 100 %."""
    rows = score_rows(run)
    if not rows:
        return tag("p", "This run was never evaluated on development questions.", class_="quiet")
    head = ("Questions", "n", "Before", "After", "Change", "0 to 100 %: before (grey), after (blue), 95 % intervals")
    lines, kind = [], "all"
    for row in rows:
        lines.append(_score_line(row, first=row.kind != kind))
        kind = row.kind
    return tag(
        "table",
        tag("caption", f"Exact match on development questions, before and after training. {_span(run)}"),
        tag("thead", tag("tr", [tag("th", text, scope="col") for text in head])),
        tag("tbody", lines),
        class_="scores",
    )


def config_table(runs: Sequence[RunView]) -> Html:
    """What decides each run; lines in which the runs differ are marked."""
    lines = []
    for key, label in ESSENTIALS:
        values = [_config_value(run.config, key) for run in runs]
        if any(value not in (None, "") for value in values):
            differs = len({str(value) for value in values}) > 1
            cells = [tag("td", "–" if value in (None, "") else str(value)) for value in values]
            lines.append(tag("tr", tag("th", label, scope="row"), cells, class_="differs" if differs else None))
    return tag(
        "table",
        _run_heads(runs),
        tag("tbody", lines),
        class_="config",
    )


def cost_table(runs: Sequence[RunView]) -> Html:
    """Wall time by phase and tokens read and written, one column a run."""
    columns = [_costs(run) for run in runs]
    labels = [label for label in columns[0] if any(column[label] is not None for column in columns)]
    lines = []
    for label in labels:
        cells = [tag("td", column[label] or "–", class_="number") for column in columns]
        lines.append(tag("tr", tag("th", label, scope="row"), cells))
    return tag(
        "table",
        _run_heads(runs),
        tag("tbody", lines),
        class_="costs",
    )


def run_name(number: int, run: RunView) -> Html:
    """The run's name behind the colour that it has in the figures."""
    colour = COLOURS[number % len(COLOURS)]
    return tag("span", tag("span", class_="swatch", style=f"background:{colour}"), run.name, class_="run")


def duration(seconds: float) -> str:
    """Seconds as "42 s", "4 min 05 s" or "3 h 12 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _run_heads(runs: Sequence[RunView]) -> Html:
    return tag("thead", tag("tr", tag("th"), [tag("th", run_name(n, run), scope="col") for n, run in enumerate(runs)]))


def _costs(run: RunView) -> dict[str, str | None]:
    totals = {phase: sum(run.series(f"seconds.{phase}")[1]) for phase in PHASES}
    wall = number_at(run.summary, "seconds")
    wall = wall if wall is not None else sum(run.series("seconds.total")[1])
    steps = sum(row["step"] > 0 for row in run.metrics)
    costs: dict[str, str | None] = {"Steps done": f"{steps:,}", "Wall time": duration(wall) if wall else None}
    for phase, value in totals.items():
        costs[f"of it {phase}"] = duration(value) if value else None
    for key, label in (("prompt_tokens", "Prompt tokens"), ("response_tokens", "Generated tokens")):
        values = run.series(key)[1]
        costs[f"{label}, training"] = f"{sum(values):,.0f}" if values else None
    before, after = _first_and_last(run)
    for key, label in (("prompt_tokens", "Prompt tokens"), ("response_tokens", "Generated tokens"), ("steps", "Steps")):
        pair = [number_at(row, key) for row in (before, after)]
        shown = " → ".join("–" if value is None else f"{value:,.1f}" for value in pair)
        costs[f"{label} per development question, before → after"] = None if pair == [None, None] else shown
    return costs


def _first_and_last(run: RunView) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The scores before and after training, each with `by_hop` and `by_type` as an evaluation has them."""
    summary, evaluations = run.summary, run.evaluations
    if number_at(summary, "em_before") is None or number_at(summary, "em_after") is None:
        first = evaluations[0][1] if evaluations else {}
        return first, evaluations[-1][1] if len(evaluations) > 1 else {}
    sides = []
    for side in ("before", "after"):
        interval = summary.get(f"interval_{side}")
        low, high = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
        scores = {**_mapping(summary.get(side)), "em": summary[f"em_{side}"], "low": low, "high": high}
        scores["n"] = summary.get("n", scores.get("n"))
        for table in ("by_hop", "by_type"):
            scores[table] = {
                label: {**_mapping(_mapping(row).get(side)), "n": _mapping(row).get("n")}
                for label, row in _mapping(summary.get(table)).items()
            }
        sides.append(scores)
    return sides[0], sides[1]


def _row(label: str, before: Mapping[str, Any], after: Mapping[str, Any], kind: str) -> ScoreRow:
    count = number_at(after, "n")
    count = count if count is not None else number_at(before, "n")
    return ScoreRow(label, None if count is None else int(count), _score(before), _score(after), kind)


def _score(row: Mapping[str, Any]) -> Score | None:
    em = number_at(row, "em")
    return None if em is None else Score(em, number_at(row, "low"), number_at(row, "high"))


def _score_line(row: ScoreRow, *, first: bool) -> Html:
    change = None if row.before is None or row.after is None else 100 * (row.after.em - row.before.em)
    return tag(
        "tr",
        tag("th", row.label, scope="row"),
        tag("td", "" if row.questions is None else f"{row.questions:,}", class_="number"),
        [tag("td", _percent(score), class_="number") for score in (row.before, row.after)],
        tag(
            "td",
            "–" if change is None else "0.0" if abs(change) < 0.05 else f"{change:+.1f}".replace("-", "−"),
            class_="number strong",
        ),
        tag("td", _dumbbell(row)),
        class_="all" if row.kind == "all" else "first" if first else None,
    )


def _percent(score: Score | None) -> Content:
    if score is None:
        return "–"
    ends = "" if score.low is None or score.high is None else f"[{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return [f"{100 * score.em:.1f} ", tag("small", ends)]


def _dumbbell(row: ScoreRow) -> Html:
    """Both scores on one axis, as an inline drawing."""
    width, parts = 260, []
    parts += [tag("line", x1=x, x2=x, y1=1, y2=21, stroke="#e4e4e4") for x in range(5, width, 50)]
    for score, y, colour in ((row.before, 7, "#9a9a9a"), (row.after, 15, COLOURS[0])):
        if score is None:
            continue
        if score.low is not None and score.high is not None:
            ends = {"x1": _axis(score.low), "x2": _axis(score.high)}
            parts.append(tag("line", **ends, y1=y, y2=y, stroke=colour, stroke_width=2))
        parts.append(tag("circle", cx=_axis(score.em), cy=y, r=3.4, fill=colour))
    return tag("svg", parts, width=width, height=22, role="img", aria_label="scores on an axis from 0 to 100 %")


def _axis(share: float) -> str:
    return f"{5 + 250 * min(1.0, max(0.0, share)):.1f}"


def _span(run: RunView) -> str:
    if number_at(run.summary, "em_after") is not None:
        steps = number_at(run.summary, "steps")
        return "" if steps is None else f"Before: step 0. After: step {steps:.0f}."
    steps_seen = [step for step, _ in run.evaluations]
    return f"The run has no summary; these are the evaluations of steps {steps_seen[0]} and {steps_seen[-1]}."


def _config_value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def notes_list(runs: Sequence[RunView]) -> Html:
    """What was missing or incomplete, by run."""
    notes = [tag("li", f"{run.name}: {note}") for run in runs for note in dict.fromkeys(run.notes)]
    return tag("ul", notes, class_="notes") if notes else join(None)
