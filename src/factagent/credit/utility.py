"""Utility of fact clusters: counts, Beta posterior, value against the group (section 4.2, eqs. 4-9; credit.md, 4).

Everything is vectorised over clusters: `presence_GK[i, k]` says that trajectory i meets cluster k. Counts over the
group have shape (K,); leave-one-out counts have shape (G, K), one row a member. The formulas broadcast over both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted: `support` N and `successes` S per cluster, over `size` trajectories of mean success `baseline`.

    Shapes: (K,) and scalars over the group; (G, K) and (G, 1) leave-one-out.
    """

    support: Floats
    successes: Floats
    size: int
    baseline: Floats


def ordered_sum(values_GK: Floats) -> Floats:
    """Sum over the members, the same to the last bit for every order of the members (equal multisets, equal sums)."""
    return np.asarray(np.sort(values_GK, axis=0).sum(axis=0), dtype=np.float64)


def count_group(presence_GK: Bools, success_G: Floats) -> Counts:
    """N(C), S(C) and the baseline of the group (eq. 8), counted over all its members.

    Args:
        presence_GK: whether member i's final store meets cluster k.
        success_G: success of each member, in [0, 1]; fractions make S fractional.

    Returns:
        Counts of shapes (K,) and (). An empty group has baseline 0.
    """
    size = len(success_G)
    support = presence_GK.sum(axis=0).astype(np.float64)
    successes = ordered_sum(presence_GK * success_G[:, None])
    baseline = ordered_sum(success_G) / size if size else np.zeros(())
    return Counts(support, successes, size, np.asarray(baseline))


def count_others(presence_GK: Bools, success_G: Floats) -> Counts:
    """Leave-one-out counts: for member i, N, S and the baseline over the other members (credit.md section 4).

    Returns:
        Counts of shapes (G, K) and (G, 1). With fewer than two members there are no others: everything is 0.
    """
    size = len(success_G)
    others_GG = ~np.eye(size, dtype=bool)
    support = others_GG.astype(np.float64) @ presence_GK
    weighted_GK = presence_GK * success_G[:, None]
    successes = ordered_sum(np.where(others_GG.T[:, :, None], weighted_GK[:, None, :], 0.0))
    baseline = ordered_sum(np.where(others_GG, success_G[:, None], 0.0)) / max(size - 1, 1)
    return Counts(support, successes, max(size - 1, 0), baseline[:, None])


def beta_prior(prior: Literal["symmetric", "centred"], strength: float, baseline: Floats) -> tuple[Floats, Floats]:
    """The pseudo-counts (a, b) of the prior Beta(a, b) (eq. 5; credit.md section 4).

    symmetric: a = b = epsilon. centred: a = 2 epsilon m, b = 2 epsilon (1 - m) with m the baseline, so that an unseen
    cluster is worth exactly as much as the group. In a group that failed (passed) throughout, a (b) is 0.
    """
    if prior == "symmetric":
        return np.full_like(baseline, strength), np.full_like(baseline, strength)
    return 2.0 * strength * baseline, 2.0 * strength * (1.0 - baseline)


def posterior_mean(successes: Floats, support: Floats, a: Floats, b: Floats) -> Floats:
    """P(C) = (S + a) / (N + a + b), the mean of the Beta posterior (eq. 7, section 4.2)."""
    return np.asarray((successes + a) / (support + a + b), dtype=np.float64)


def relative_utility(counts: Counts, prior: Literal["symmetric", "centred"], strength: float) -> Floats:
    """V(C) = P(C) - baseline (eq. 9, section 4.2). Range (-1, 1)."""
    return (
        posterior_mean(counts.successes, counts.support, *beta_prior(prior, strength, counts.baseline))
        - counts.baseline
    )


def contrast_utility(counts: Counts, strength: float) -> Floats:
    """V(C) = P(success | C present) - P(success | C absent), both with the centred prior (credit.md section 4).

    Where all members (or none) meet C, the side without data is the baseline. Range (-1, 1).
    """
    a, b = beta_prior("centred", strength, counts.baseline)
    total = counts.baseline * counts.size
    present = posterior_mean(counts.successes, counts.support, a, b)
    absent = posterior_mean(np.maximum(total - counts.successes, 0.0), counts.size - counts.support, a, b)
    return present - absent


def consensus_bonus(counts: Counts, consensus: float, centre: float) -> Floats:
    """The bonus kappa * (N/G - c0): what more members found independently is worth more (credit.md section 4)."""
    return np.asarray(consensus * (counts.support / max(counts.size, 1) - centre), dtype=np.float64)


def utility(
    counts: Counts,
    *,
    kind: Literal["relative", "contrast", "none"],
    prior: Literal["symmetric", "centred"],
    strength: float,
    consensus: float = 0.0,
    centre: float = 0.5,
) -> Floats:
    """V(C) by the chosen rule, plus the consensus bonus where kappa > 0; shape of `counts.support`.

    Where nothing was counted (leave-one-out of a lone member) there is no evidence, and V = 0; so with kind "none".
    """
    if counts.size == 0 or kind == "none":
        return np.zeros_like(counts.support)
    value = relative_utility(counts, prior, strength) if kind == "relative" else contrast_utility(counts, strength)
    return value + consensus_bonus(counts, consensus, centre) if consensus else value


def credible_interval(counts: Counts, a: Floats, b: Floats, mass: float = 0.95) -> tuple[Floats, Floats]:
    """Equal-tailed credible interval of theta ~ Beta(S + a, N - S + b) (eq. 6, section 4.2).

    A posterior with one parameter 0 (centred prior in an all-fail or all-pass group) is the point 0 or 1.
    """
    from scipy.special import betaincinv

    alpha, beta = counts.successes + a, np.maximum(counts.support - counts.successes, 0.0) + b
    proper = (alpha > 0.0) & (beta > 0.0)
    safe_alpha, safe_beta = np.where(proper, alpha, 1.0), np.where(proper, beta, 1.0)
    point = (alpha > 0.0).astype(np.float64)
    tail = (1.0 - mass) / 2.0
    low = np.where(proper, betaincinv(safe_alpha, safe_beta, tail), point)
    high = np.where(proper, betaincinv(safe_alpha, safe_beta, 1.0 - tail), point)
    return low, high
