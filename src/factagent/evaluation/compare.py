"""Evaluations held against the first of them, on the questions that both answered.

EM is tested by McNemar's exact test: among the questions on which two evaluations disagree, each would win half if they
were equally good. F1 is tested by flipping the signs of the differences at random. Where several evaluations are held
against the first, p-values are corrected by Holm's method, within each metric and set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from factagent.errors import DataError, UsageError
from factagent.evaluation.intervals import paired_difference
from factagent.evaluation.results import read_results, read_summary
from factagent.evaluation.rows import ResultRow

FLIPS = 10_000
"""Random sign flips of the test of F1."""

EXAMPLES = 5
"""Questions named for each side."""

ALL = "all"
"""The line over every shared question."""

_FLIP_BLOCK = 1 << 22

Rows = Mapping[tuple[str, str], ResultRow]
Pairs = Sequence[tuple[ResultRow, ResultRow]]


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of an evaluation minus that of the first, on shared questions, in [-1, 1]."""

    first: float
    other: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float


@dataclass(frozen=True, slots=True)
class Line:
    """One set (or all of them): how many questions are shared, who wins, and the differences."""

    set: str
    questions: int
    wins: int
    """Questions that only the other evaluation has right by EM."""
    losses: int
    """Questions that only the first has right."""
    em: Difference
    f1: Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """One evaluation against the first."""

    first: str
    other: str
    shared: int
    unshared: int
    """Questions that only one of the two was asked."""
    failed: int
    """Shared questions left out because a server failed in one of the two."""
    lines: tuple[Line, ...]
    won: tuple[dict[str, Any], ...]
    """A few questions that only the other has right, with both answers."""
    lost: tuple[dict[str, Any], ...]


def compare(runs: Sequence[Path], seed: int = 0) -> list[Comparison]:
    """Hold each evaluation against the first.

    Raises:
        UsageError: fewer than two runs, or one that is unfinished.
        DataError: no shared question, a question that differs between runs, or scores of different versions.
    """
    if len(runs) < 2:
        raise UsageError(f"{len(runs)} evaluation to compare; give at least two directories")
    _check_versions(runs)
    first, *others = [_rows_of(run) for run in runs]
    comparisons = [_compare(first, other, (runs[0], run), seed) for run, other in zip(runs[1:], others, strict=True)]
    return _corrected(comparisons)


def as_plain(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The comparisons as one JSON object."""
    return {"comparisons": [asdict(each) for each in comparisons]}


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the smallest of m is multiplied by m, the next by m - 1, and so on, never decreasing."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def mcnemar(wins: int, losses: int) -> float:
    """The two-sided p-value of McNemar's exact test; 1 where the two never disagree."""
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def sign_flip(differences: npt.NDArray[np.float64], seed: int, flips: int = FLIPS) -> float:
    """The two-sided p-value of a mean of paired differences, by random sign flips (the observed one counts as one)."""
    moved = differences[differences != 0]
    if not len(moved):
        return 1.0
    generator, reached, left = np.random.default_rng(seed), 0, flips
    # A hair below, so that sums that are equal but for rounding count as reached.
    bar = abs(moved.sum()) * (1 - 1e-12)
    while left:
        block = min(left, max(1, _FLIP_BLOCK // len(moved)))
        signs = generator.integers(0, 2, size=(block, len(moved)), dtype=np.int8) * 2.0 - 1.0
        reached += int((np.abs(signs @ moved) >= bar).sum())
        left -= block
    return (1 + reached) / (1 + flips)


def paired_t(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's t-test of a mean of paired differences; 1 where all are 0.

    None where the test is not defined: fewer than two differences, or all alike (but for rounding) and not 0.
    """
    if len(differences) < 2:
        return None
    if max(differences) - min(differences) < 1e-12:
        return None if abs(differences[0]) > 1e-12 else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)


def _check_versions(runs: Sequence[Path]) -> None:
    summaries = [read_summary(run) for run in runs]
    for name in ("schema", "normalisation"):
        for run, summary in zip(runs[1:], summaries[1:], strict=True):
            if (old := summaries[0].get(name)) != (new := summary.get(name)):
                raise DataError(
                    f"{runs[0]} has {name} {old}, {run} has {new}: not comparable; evaluate one of them again"
                )


def _rows_of(run: Path) -> dict[tuple[str, str], ResultRow]:
    return {row.key: row for row in read_results(run)}


def _compare(first: Rows, other: Rows, paths: tuple[Path, Path], seed: int) -> Comparison:
    keys = [key for key in first if key in other]
    if not keys:
        raise DataError(f"{paths[0]} and {paths[1]} share no question (by set and id); compare runs on the same sets")
    for key in keys:
        if (first[key].question, first[key].golds) != (other[key].question, other[key].golds):
            raise DataError(f"{paths[0]} and {paths[1]}: question {key[1]!r} of set '{key[0]}' is not the same in both")
    pairs = sorted(((first[key], other[key]) for key in keys), key=lambda pair: pair[0].key)
    kept = [pair for pair in pairs if not (pair[0].failed or pair[1].failed)]
    if not kept:
        raise DataError(f"{paths[0]} and {paths[1]}: a server failed at every shared question; resume them first")
    sets = sorted({one.set for one, _ in kept})
    lines = [_line(name, [pair for pair in kept if pair[0].set == name], seed) for name in sets]
    return Comparison(
        first=str(paths[0]),
        other=str(paths[1]),
        shared=len(keys),
        unshared=len(first.keys() ^ other.keys()),
        failed=len(pairs) - len(kept),
        lines=(_line(ALL, kept, seed), *lines),
        won=_examples(pair for pair in kept if pair[1].em > pair[0].em),
        lost=_examples(pair for pair in kept if pair[1].em < pair[0].em),
    )


def _line(name: str, pairs: Pairs, seed: int) -> Line:
    wins = sum(other.em > first.em for first, other in pairs)
    losses = sum(other.em < first.em for first, other in pairs)
    f1_change = np.array([other.f1 - first.f1 for first, other in pairs])
    em, f1 = (_difference(pairs, metric, seed) for metric in ("em", "f1"))
    em_p, f1_p = mcnemar(wins, losses), sign_flip(f1_change, seed)
    em, f1 = replace(em, p=em_p, p_holm=em_p), replace(f1, p=f1_p, p_holm=f1_p)
    return Line(name, len(pairs), wins, losses, em, f1)


def _difference(pairs: Pairs, metric: str, seed: int) -> Difference:
    """Means and the interval of their difference; the tests are filled in by the caller."""
    before, after = ([getattr(row, metric) for row in side] for side in zip(*pairs, strict=True))
    interval = paired_difference(before, after, seed)
    return Difference(float(np.mean(before)), float(np.mean(after)), *interval, p=1.0, p_holm=1.0)


def _examples(pairs: Iterable[tuple[ResultRow, ResultRow]]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "set": first.set,
            "id": first.id,
            "question": first.question,
            "golds": list(first.golds),
            "first": first.answer,
            "other": other.answer,
        }
        for first, other in islice(pairs, EXAMPLES)
    )


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Fill in `p_holm`, over the comparisons that have a line for the set."""
    lines = {(index, line.set): line for index, each in enumerate(comparisons) for line in each.lines}
    for name in {name for _, name in lines}:
        places = [place for place in lines if place[1] == name]
        em = holm([lines[place].em.p for place in places])
        f1 = holm([lines[place].f1.p for place in places])
        for place, em_p, f1_p in zip(places, em, f1, strict=True):
            line = lines[place]
            lines[place] = replace(line, em=replace(line.em, p_holm=em_p), f1=replace(line.f1, p_holm=f1_p))
    return [
        replace(each, lines=tuple(lines[index, line.set] for line in each.lines))
        for index, each in enumerate(comparisons)
    ]
