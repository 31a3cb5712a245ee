"""95 % intervals: of a mean (bootstrap, or Student's t for a few runs), of a proportion (Wilson), of a difference on
the same questions (paired).

Resampling draws from a generator seeded by the caller, so the same values and seed give the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
CONFIDENCE = 0.95
_BLOCK = 1 << 22


class Interval(NamedTuple):
    """An estimate and the ends of its interval."""

    mean: float
    low: float
    high: float


def bootstrap_mean(
    values: Sequence[float], seed: int, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval:
    """Percentile bootstrap of the mean: resample the values with replacement, take the quantiles of the means.

    Where all values are equal the interval has no width; for shares of few questions take `wilson_interval`.

    Args:
        values: one value a question (never one a trajectory: members of a group are not independent).
        seed: of the resampling.
        resamples: number of resamples.
        confidence: share of the resampled means inside the interval, in (0, 1).

    Raises:
        ValueError: no value, or one that is not finite; `resamples` below 1; `confidence` outside (0, 1).
    """
    data = _checked(values, confidence)
    return Interval(float(data.mean()), *percentiles(resampled_means(values, seed, resamples), confidence))


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Student's interval of the mean of a few runs: mean +- t s / sqrt(n), t with n - 1 degrees of freedom.

    Raises:
        ValueError: fewer than two values, or one that is not finite; `confidence` outside (0, 1).
    """
    from scipy.stats import t

    data = _checked(values, confidence)
    if len(data) < 2:
        raise ValueError("an interval over runs needs at least two")
    mean, error = float(data.mean()), float(data.std(ddof=1)) / len(data) ** 0.5
    half = float(t.ppf((1 + confidence) / 2, len(data) - 1)) * error
    return Interval(mean, mean - half, mean + half)


def resampled_means(values: Sequence[float], seed: int, resamples: int = RESAMPLES) -> npt.NDArray[np.float64]:
    """Means of resamples with replacement, shape (resamples,): add those of several sets for a mean over sets.

    Raises:
        ValueError: no value, or one that is not finite; `resamples` below 1.
    """
    data = _checked(values, CONFIDENCE)
    if resamples < 1:
        raise ValueError(f"resamples={resamples}: must be at least 1")
    generator, means = np.random.default_rng(seed), []
    left, rows = resamples, max(1, _BLOCK // len(data))
    while left > 0:
        block = min(left, rows)
        means.append(data[generator.integers(len(data), size=(block, len(data)))].mean(axis=1))
        left -= block
    return np.concatenate(means)


def percentiles(means: npt.NDArray[np.float64], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The ends that hold the share `confidence` of the resampled means between them."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def wilson_interval(successes: float, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Ends of Wilson's score interval of a proportion; it has a width even at 0 and 1, and stays inside [0, 1].

    With p = successes / trials and z the normal quantile:
    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n).

    Raises:
        ValueError: `trials` below 1, or `successes` outside [0, trials].
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"successes={successes} of trials={trials}: need trials >= 1 and 0 <= successes <= trials")
    _check_confidence(confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = successes / trials, z * z / trials
    centre = (share + weight / 2) / (1 + weight)
    half = z * ((share * (1 - share) + weight / 4) / trials) ** 0.5 / (1 + weight)
    # Rounding may leave the ends a hair inside the share itself at 0 and 1.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def paired_difference(
    before: Sequence[float],
    after: Sequence[float],
    seed: int,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Bootstrap of mean(after - before) over questions answered twice; `before[i]` and `after[i]` share a question.

    Raises:
        ValueError: lengths differ, or as in `bootstrap_mean`.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before and {len(after)} after: they must share their questions")
    differences = _checked(after, confidence) - _checked(before, confidence)
    return bootstrap_mean(differences.tolist(), seed, resamples, confidence)


def _checked(values: Sequence[float], confidence: float) -> npt.NDArray[np.float64]:
    _check_confidence(confidence)
    data = np.asarray(values, np.float64)
    if data.ndim != 1 or not len(data):
        raise ValueError("an interval needs at least one value")
    if not np.isfinite(data).all():
        raise ValueError("an interval needs finite values")
    return data


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must lie between 0 and 1")
