"""Means over seeds, and differences to another entry: paired by seed, and pooled over questions.

The two differences answer two questions. Paired by seed, a run is one observation: would other seeds show it too?
(Student's t over the differences; few seeds give wide intervals.) Pooled over questions, a question is one observation,
its score the mean over the seeds that both entries have: do these trained policies differ on other questions?
(Bootstrap and random sign flips; the seeds are taken as they are.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from factagent.arena.reading import Metric, RunRecord
from factagent.evaluation.compare import paired_t, sign_flip
from factagent.evaluation.intervals import paired_difference, t_interval

Score = Callable[[RunRecord], float | None]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval, over `count` seeds or questions; without interval and p where one value is all."""

    mean: float
    low: float | None
    high: float | None
    count: int
    p: float | None = None


def over_seeds(records: Sequence[RunRecord], score: Score) -> Estimate | None:
    """Mean over the runs that have the score; None where none has."""
    values = [value for record in records if (value := score(record)) is not None]
    return estimate(values) if values else None


def paired_by_seed(first: Sequence[RunRecord], other: Sequence[RunRecord], score: Score) -> Estimate | None:
    """Mean of other - first over the seeds that both have; None where they share none."""
    before, after = _by_seed(first, score), _by_seed(other, score)
    differences = [after[seed] - before[seed] for seed in before if seed in after]
    if not differences:
        return None
    return replace(estimate(differences), p=paired_t(differences))


def pooled_by_question(
    first: Sequence[RunRecord], other: Sequence[RunRecord], metric: Metric, seed: int = 0
) -> Estimate | None:
    """Mean of other - first over the dev questions, each question's score a mean over the shared seeds.

    None where they share no finished seed whose answers were kept. `seed` is of the resampling.
    """
    before, after = ({r.seed: r.answers for r in side if r.answers is not None} for side in (first, other))
    seeds = [each for each in before if each in after]
    if not seeds:
        return None
    answers = [side[each] for side in (before, after) for each in seeds]
    keys = [key for key in answers[0] if all(key in rows for rows in answers)]
    if not keys:
        return None
    one, two = (
        [float(np.mean([side[each][key][metric] for each in seeds])) for key in keys] for side in (before, after)
    )
    p = sign_flip(np.array(two) - np.array(one), seed)
    return Estimate(*paired_difference(one, two, seed), len(keys), p)


def _by_seed(records: Sequence[RunRecord], score: Score) -> Mapping[int, float]:
    return {record.seed: value for record in records if (value := score(record)) is not None}


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of some runs' values with Student's interval, which one value alone does not have."""
    if len(values) < 2:
        return Estimate(values[0], None, None, 1)
    return Estimate(*t_interval(values), len(values))
