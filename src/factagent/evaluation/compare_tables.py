"""Comparisons in Markdown: differences with intervals and p-values, then questions on which the runs disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from factagent.evaluation.compare import Comparison, Difference, Line
from factagent.evaluation.tables import between, percent, table

HEAD = ("set", "questions", "first", "other", "difference", "95 % interval", "p")


def comparison_markdown(comparisons: Sequence[Comparison]) -> str:
    """One section an evaluation that is held against the first."""
    corrected = len(comparisons) > 1
    return "\n\n".join(part for each in comparisons for part in _section(each, corrected)) + "\n"


def _section(comparison: Comparison, corrected: bool) -> Iterator[str]:
    yield f"# {comparison.other} against {comparison.first}"
    yield _counts(comparison)
    yield "## EM\n\n" + table((*HEAD, "wins", "losses"), (_em_row(line, corrected) for line in comparison.lines))
    yield "## F1\n\n" + table(HEAD, (_row(line, line.f1, corrected) for line in comparison.lines))
    yield (
        "Wins: only the other is right. EM: McNemar's exact test; F1: random sign flips; intervals: bootstrap of the "
        f"differences.{' p is corrected by Holm over the runs compared.' if corrected else ''}"
    )
    for title, examples in (("Only the other is right", comparison.won), ("Only the first is right", comparison.lost)):
        if examples:
            yield f"## {title}\n\n" + "\n".join(map(_example, examples))


def _counts(comparison: Comparison) -> str:
    parts = [f"{comparison.shared} questions shared, {comparison.unshared} not."]
    if comparison.failed:
        parts.append(f"{comparison.failed} shared ones left out: a server failed in one of the runs.")
    return " ".join(parts)


def _em_row(line: Line, corrected: bool) -> list[str]:
    return [*_row(line, line.em, corrected), str(line.wins), str(line.losses)]


def _row(line: Line, difference: Difference, corrected: bool) -> list[str]:
    p = difference.p_holm if corrected else difference.p
    return [
        line.set,
        str(line.questions),
        percent(difference.first),
        percent(difference.other),
        f"{100 * difference.difference:+.1f}",
        between(difference.low, difference.high),
        "< 0.001" if p < 0.001 else f"{p:.3f}",
    ]


def _example(example: dict[str, Any]) -> str:
    golds = " / ".join(example["golds"][:3])
    text = (
        f"{example['set']} {example['id']}: {example['question']} Gold: {golds}. First: {example['first'] or 'none'}. "
        f"Other: {example['other'] or 'none'}."
    )
    return "- " + " ".join(text.split())
