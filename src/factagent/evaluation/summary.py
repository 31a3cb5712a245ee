"""The summary of an evaluation: scores a set, averages over sets, counts; nothing in it depends on the clock.

Rows are taken in the order of the sets and their questions, whatever order they were answered in, so that an evaluation
which was interrupted ends with the same bytes as one that was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from factagent.evaluation.intervals import percentiles, resampled_means
from factagent.evaluation.paper import paper_sizes, weighted_mean
from factagent.evaluation.rows import SCHEMA, ResultRow
from factagent.evaluation.runner import summarise
from factagent.rewards import NORMALISATION

METRICS = ("em", "f1", "cover_em")


def summarise_sets(
    rows_of_set: Mapping[str, Sequence[ResultRow]], asked: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """Everything that `summary.json` holds.

    Args:
        rows_of_set: the rows of each set, in the order of its questions.
        asked: how many questions each set has in this evaluation.
        seed: of the bootstrap.

    Returns:
        `schema`, `normalisation`, `questions`, `answered`, `scored`, `failed`, `stop_reasons`, `sets` (see
        `runner.summarise`; a set's own interval is by bootstrap, with `f1_low`, `f1_high`; by hops and type
        it is Wilson's, which has a width for few questions too) and `averages` (see `averages`).
    """
    rows = [row for each in rows_of_set.values() for row in each]
    stops = Counter(row.stop_reason.value for row in rows)
    return {
        "schema": SCHEMA,
        "normalisation": NORMALISATION,
        "questions": sum(asked.values()),
        "answered": len(rows),
        "scored": sum(not row.failed for row in rows),
        "failed": sum(row.failed for row in rows),
        "stop_reasons": dict(sorted(stops.items())),
        "sets": {name: _one_set(each, asked[name], seed) for name, each in rows_of_set.items()},
        "averages": averages(rows_of_set, seed),
    }


def averages(rows_of_set: Mapping[str, Sequence[ResultRow]], seed: int) -> dict[str, Any]:
    """Means over the sets that have a scored question, with 95 % intervals by bootstrap within each set.

    Returns:
        `weighted`: over questions, as the paper averages; `macro`: over sets, as everybody else does;
        `paper_weighted`: by the sizes of the full sets, where all seven are there. Each holds `em`, `f1`, `cover_em`,
        and `low` and `high` of EM.
    """
    scored = {name: [row for row in rows if not row.failed] for name, rows in rows_of_set.items()}
    scored = {name: rows for name, rows in scored.items() if rows}
    if not scored:
        return {}
    weights: dict[str, dict[str, float]] = {
        "weighted": {name: float(len(rows)) for name, rows in scored.items()},
        "macro": dict.fromkeys(scored, 1.0),
    }
    if (sizes := paper_sizes()).keys() == scored.keys():
        weights["paper_weighted"] = {name: float(sizes[name]) for name in scored}
    # A seed a set, so that the sets are resampled independently of each other.
    resampled = {
        name: resampled_means([row.em for row in rows], seed + index)
        for index, (name, rows) in enumerate(scored.items())
    }
    return {kind: _average(scored, resampled, each) for kind, each in weights.items()}


def _average(
    scored: Mapping[str, Sequence[ResultRow]], resampled: Mapping[str, Any], weights: Mapping[str, float]
) -> dict[str, float]:
    means = {metric: {name: _mean(rows, metric) for name, rows in scored.items()} for metric in METRICS}
    total = sum(weights.values())
    low, high = percentiles(sum(resampled[name] * (weights[name] / total) for name in scored))
    values = {metric: weighted_mean(each, weights) for metric, each in means.items()}
    return values | {"low": low, "high": high}


def _one_set(rows: Sequence[ResultRow], asked: int, seed: int) -> dict[str, Any]:
    summary: dict[str, Any] = {"questions": asked, **summarise(rows)}
    scored = [row for row in rows if not row.failed]
    for metric, ends in (("em", ("low", "high")), ("f1", ("f1_low", "f1_high"))) if scored else ():
        values = [getattr(row, metric) for row in scored]
        summary |= zip(ends, percentiles(resampled_means(values, seed)), strict=True)
    return summary


def _mean(rows: Sequence[ResultRow], metric: str) -> float:
    return float(sum(getattr(row, metric) for row in rows) / len(rows))
