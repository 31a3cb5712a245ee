"""The tables of an evaluation in Markdown: sets and averages, the paper's rows beside them, hops, types, costs.

EM, F1 and the like are printed in per cent. Nothing depends on the clock, so equal results give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from factagent.evaluation.config import EvalConfig
from factagent.evaluation.paper import PaperRow, load_paper, macro_mean, paper_sizes, weighted_mean

NONE = "–"
AVERAGES = {
    "weighted": "average over questions",
    "macro": "average over sets",
    "paper_weighted": "average by the full sets' sizes",
}
"""Key in the summary -> what the table calls it."""


def markdown(config: EvalConfig, summary: Mapping[str, Any]) -> str:
    """All tables of an evaluation."""
    sections = [
        _title(config, summary),
        _scores(summary),
        _beside_the_paper(config, summary),
        _breakdown(summary, "by_hop", "hops", "By number of hops"),
        _breakdown(summary, "by_type", "type", "By type of question"),
        _evidence(summary),
        _costs(summary),
        _stops(summary),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """A Markdown table; the first `text` columns are words, the others numbers."""
    lines = [head, [*["---"] * text, *["---:"] * (len(head) - text)], *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent; a dash where there is none."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def between(low: float, high: float) -> str:
    """An interval of shares, in per cent."""
    return f"{percent(low)} to {percent(high)}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _title(config: EvalConfig, summary: Mapping[str, Any]) -> str:
    rollout = config.rollout
    decoding = "greedy" if rollout.temperature == 0 else f"temperature {rollout.temperature:g}"
    decoding += f", top-p {rollout.top_p:g}" if rollout.temperature > 0 and rollout.top_p < 1 else ""
    named = f"{config.method} ({config.mode}): " if config.method else ""
    budget = f"{rollout.max_rounds} rounds, top-{rollout.top_k}"
    method = f"{named}{rollout.protocol}, prompt {rollout.prompt}, {budget}, {decoding}"
    searched = config.retriever.spec or f"BM25 over {config.retriever.corpus}"
    failed = f" {summary['failed']} failed and are in no mean." if summary["failed"] else ""
    return (
        f"# {config.model.shown}\n\n{method}; retrieval: {searched}. "
        f"{summary['scored']} of {summary['questions']} questions scored.{failed}"
    )


def _scores(summary: Mapping[str, Any]) -> str:
    rows = [_score_row(name, row["n"], row) for name, row in _scored(summary)]
    rows += [_score_row(AVERAGES[key], summary["scored"], row) for key, row in summary["averages"].items()]
    head = ("set", "questions", "EM", "95 % interval", "F1", "cover-EM")
    return f"## Scores\n\n{table(head, rows)}\n\nIntervals: bootstrap over questions, within each set."


def _score_row(name: str, count: int, row: Mapping[str, Any]) -> list[str]:
    shares = (percent(row["em"]), between(row["low"], row["high"]), percent(row["f1"]), percent(row["cover_em"]))
    return [name, str(count), *shares]


def _beside_the_paper(config: EvalConfig, summary: Mapping[str, Any]) -> str:
    """This evaluation above the paper's rows, on the sets that both have."""
    paper, sizes = load_paper(), paper_sizes()
    em = {name: 100 * row["em"] for name, row in _scored(summary) if name in sizes}
    if not em:
        return ""
    names = [name for name in sizes if name in em]
    head = ["method", *(paper.sets[name].title for name in names), "weighted", "macro"]
    rows = [_paper_row(f"this: {config.model.shown}", em, names)]
    rows += [_paper_row(_paper_name(row, names), row.em, names) for row in paper.rows]
    return "\n\n".join(["## Beside the paper", table(head, rows), *_paper_notes(names, summary)])


def _paper_row(label: str, em: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """EM by set, with both averages over these sets by the sizes of the full sets."""
    shown = {name: em[name] for name in names}
    averages = (weighted_mean(shown, paper_sizes()), macro_mean(shown))
    return [label, *(f"{value:.1f}" for value in shown.values()), *(f"{value:.1f}" for value in averages)]


def _paper_name(row: PaperRow, names: Sequence[str]) -> str:
    """The row's name, with a star where a cell shown is not as printed."""
    return f"{row.size} {row.method}{' *' if any(name in row.printed_as for name in names) else ''}"


def _paper_notes(names: Sequence[str], summary: Mapping[str, Any]) -> Iterator[str]:
    sizes = paper_sizes()
    yield "EM in per cent. Averages over the sets shown; `weighted` by the numbers of questions of the full sets."
    partial = [f"{name} {summary['sets'][name]['n']} of {sizes[name]}" for name in names]
    if any(summary["sets"][name]["n"] != sizes[name] for name in names):
        yield f"This evaluation scored parts of the sets: {', '.join(partial)}."
    rows = load_paper().rows
    if "bamboogle" in names and (corrected := [row for row in rows if row.printed_as]):
        cells = ", ".join(f"{row.size} {row.printed_as['bamboogle']:.1f}" for row in corrected)
        yield f"\\* Bamboogle as printed: {cells}. {corrected[0].note}"
    yield "Where the rows come from:"
    sources: dict[str, list[str]] = {}
    for row in rows:
        sources.setdefault(row.note, []).append(f"{row.size} {row.method}")
    yield "\n".join(f"- {', '.join(each)}: {note}" for note, each in sources.items())


def _breakdown(summary: Mapping[str, Any], key: str, label: str, title: str) -> str:
    """EM and F1 by a property, for sets in which questions differ in it or are known to have it."""
    rows = [
        [name, each, str(row["n"]), percent(row["em"]), between(row["low"], row["high"]), percent(row["f1"])]
        for name, scores in _scored(summary)
        for each, row in scores[key].items()
        if set(scores[key]) != {"unknown"}
    ]
    if not rows:
        return ""
    head = ("set", label, "questions", "EM", "95 % interval", "F1")
    return f"## {title}\n\n{table(head, rows, text=2)}\n\nIntervals: Wilson."


def _evidence(summary: Mapping[str, Any]) -> str:
    """Recall of gold passages and coverage of gold facts, for the sets that have such annotations."""
    keys = ("gold_passage_recall", "first_search_recall", "coverage")
    rows = [
        [name, *(percent(row[key]) for key in keys)]
        for name, row in _scored(summary)
        if any(row[key] is not None for key in keys)
    ]
    if not rows:
        return ""
    head = ("set", "gold passages found", "by the first search", "gold facts in the store")
    return f"## Evidence\n\n{table(head, rows)}\n\nOver the questions that have gold titles, or gold facts."


def _costs(summary: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            f"{row['steps']:.2f}",
            f"{row['searches']:.2f}",
            percent(row["parse_error_rate"]),
            *(f"{row[key]:.0f}" if row[key] else NONE for key in ("prompt_tokens", "response_tokens")),
        ]
        for name, row in _scored(summary)
    ]
    head = ("set", "steps", "searches", "invalid actions", "prompt tokens", "response tokens")
    note = "Means a question; invalid actions as a share of all. A dash: tokens are not counted."
    return f"## Costs\n\n{table(head, rows)}\n\n{note}"


def _stops(summary: Mapping[str, Any]) -> str:
    rows = [(name, str(count)) for name, count in summary["stop_reasons"].items()]
    return f"## How episodes ended\n\n{table(('stop reason', 'questions'), rows)}"


def _scored(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The sets of which a question was scored."""
    return [(name, row) for name, row in summary["sets"].items() if row["n"]]
