"""Outcome and total advantages (section 4.3, eqs. 13-14; credit.md section 7)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factagent.credit.utility import ordered_sum

Floats = NDArray[np.float64]

ETA = 1e-6
"""eta of eq. 13, added to every standard deviation that divides."""

VARIANCE_EPSILON = 1e-8
"""Added to a variance under the root."""


def outcome_advantages(outcome_G: Floats) -> Floats:
    """A_outcome_i = (R_i - mean) / (std + 1e-6), unbiased std (eq. 13, section 4.3).

    Exactly 0 where all outcomes are equal or the group has one member. Shape (G,).
    """
    size = len(outcome_G)
    if size < 2 or outcome_G.min() == outcome_G.max():
        return np.zeros(size)
    centred_G = outcome_G - ordered_sum(outcome_G) / size
    std = np.sqrt(ordered_sum(centred_G**2) / (size - 1))
    return np.asarray(centred_G / (std + ETA), dtype=np.float64)


def process_divisor(process_N: Floats) -> float:
    """The divisor of `process_scale = "batch-std"`: unbiased std over all steps of the batch + 1e-6.

    Not centred, so that a step without process reward keeps none. 1 where the batch shows no spread.
    """
    if len(process_N) < 2 or process_N.min() == process_N.max():
        return 1.0
    return float(np.std(np.sort(process_N), ddof=1)) + ETA


def total_advantages(outcome_advantage: float, process_S: Floats, process_weight: float) -> Floats:
    """A_total_ij = A_outcome_i + Omega * process_ij (eq. 14, section 4.3). Shape (S,).

    Omega = 0 returns the outcome advantage itself, bit for bit.
    """
    if process_weight == 0.0:
        return np.full(len(process_S), outcome_advantage)
    return outcome_advantage + process_weight * process_S


def whiten(values_N: Floats, weights_N: Floats) -> Floats:
    """Weighted mean 0 and unbiased variance 1; zeros where nothing varies or the weight is not above 1. Shape (N,)."""
    total = float(weights_N.sum())
    if total <= 1.0 or values_N.min() == values_N.max():
        return np.zeros(len(values_N))
    centred_N = values_N - float(weights_N @ values_N) / total
    variance = float(weights_N @ centred_N**2) / (total - 1.0)
    return np.asarray(centred_N / np.sqrt(variance + VARIANCE_EPSILON), dtype=np.float64)
