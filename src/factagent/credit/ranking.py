"""How well a score separates positives from negatives: the area under the ROC curve, with intervals over questions.

The area is the share of pairs (positive, negative) in which the positive scores higher, ties counting half (the
Mann-Whitney statistic). Steps of one question depend on each other, so the bootstrap draws whole questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DECIMALS = 12
"""Scores are compared after rounding, so that values equal but for the last bits tie."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % percentile interval; NaN where nothing can be estimated."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairWins:
    """Won pairs by question, enough to weigh questions anew without touching the steps again.

    `wins_QQ[q, r]` sums over positives of question q and negatives of question r; `within_wins_Q` and `within_pairs_Q`
    count only pairs inside one group.
    """

    wins_QQ: Floats
    positives_Q: Floats
    negatives_Q: Floats
    within_wins_Q: Floats
    within_pairs_Q: Floats


def pair_wins(score_N: Floats, positive_N: Bools, question_N: Ints, group_N: Ints, questions: int) -> PairWins:
    """Count won pairs. Arrays are aligned over N steps; `question_N` lies in [0, questions)."""
    score_N = np.round(score_N, DECIMALS)
    positive_score, positive_question = score_N[positive_N], question_N[positive_N]
    wins_QQ = np.zeros((questions, questions))
    for question in np.unique(question_N[~positive_N]):
        negatives = np.sort(score_N[~positive_N & (question_N == question)])
        wins_QQ[:, question] = np.bincount(positive_question, _wins(positive_score, negatives), questions)
    within_wins_Q, within_pairs_Q = np.zeros(questions), np.zeros(questions)
    for group in np.unique(group_N):
        inside = group_N == group
        positives, negatives = score_N[inside & positive_N], np.sort(score_N[inside & ~positive_N])
        question = question_N[inside][0]
        within_wins_Q[question] += _wins(positives, negatives).sum()
        within_pairs_Q[question] += len(positives) * len(negatives)
    positives_Q = np.bincount(positive_question, minlength=questions).astype(np.float64)
    negatives_Q = np.bincount(question_N[~positive_N], minlength=questions).astype(np.float64)
    return PairWins(wins_QQ, positives_Q, negatives_Q, within_wins_Q, within_pairs_Q)


def pooled_auc(wins: PairWins, weight_RQ: Floats) -> Estimate:
    """The area over all pairs, also across groups; `weight_RQ` are bootstrap weights, one row a resample."""
    winners, losers = wins.positives_Q > 0.0, wins.negatives_Q > 0.0
    won_R = ((weight_RQ[:, winners] @ wins.wins_QQ[np.ix_(winners, losers)]) * weight_RQ[:, losers]).sum(axis=1)
    value = _ratio(wins.wins_QQ.sum(), wins.positives_Q.sum() * wins.negatives_Q.sum())
    return _estimate(value, _ratio(won_R, (weight_RQ @ wins.positives_Q) * (weight_RQ @ wins.negatives_Q)))


def within_auc(wins: PairWins, weight_RQ: Floats) -> Estimate:
    """The area over pairs inside one group, which is what a policy gradient compares."""
    value = _ratio(wins.within_wins_Q.sum(), wins.within_pairs_Q.sum())
    return _estimate(value, _ratio(weight_RQ @ wins.within_wins_Q, weight_RQ @ wins.within_pairs_Q))


def mean_of(value_Q: Floats, count_Q: Floats, weight_RQ: Floats) -> Estimate:
    """The mean of values summed by question (`value_Q` over `count_Q` observations)."""
    value = _ratio(value_Q.sum(), count_Q.sum())
    return _estimate(value, _ratio(weight_RQ @ value_Q, weight_RQ @ count_Q))


def bootstrap_weights(questions: int, resamples: int, seed: int) -> Floats:
    """How often each question is drawn in each resample of the questions with replacement. Shape (R, Q)."""
    random = np.random.default_rng(seed)
    return random.multinomial(questions, np.full(questions, 1.0 / questions), size=resamples).astype(np.float64)


def _wins(score_P: Floats, sorted_negatives: Floats) -> Floats:
    """For each positive score, the negatives it beats; a tie counts half."""
    below = np.searchsorted(sorted_negatives, score_P, side="left")
    up_to = np.searchsorted(sorted_negatives, score_P, side="right")
    return np.asarray((below + up_to) / 2.0, dtype=np.float64)


def _ratio(numerator: Floats | float, denominator: Floats | float) -> Floats:
    """Quotient, NaN where the denominator is 0."""
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    safe = np.where(bottom > 0.0, bottom, 1.0)
    return np.asarray(np.where(bottom > 0.0, top / safe, np.nan), dtype=np.float64)


def _estimate(value: Floats, value_R: Floats) -> Estimate:
    drawn = value_R[~np.isnan(value_R)]
    if np.isnan(value) or not len(drawn):
        return Estimate(float(value), float("nan"), float("nan"))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(float(value), float(low), float(high))
