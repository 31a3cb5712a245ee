"""From cluster utilities to process rewards of steps (section 4.2, eqs. 10-12; credit.md section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from factagent.types import Action, Assert, Search

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ABSENT = -1
_BELOW_ONE = float(np.nextafter(1.0, 0.0))


def first_steps(facts: Sequence[tuple[int, int]], clusters: int) -> Ints:
    """The step at which a trajectory first met each cluster, `ABSENT` (-1) where it never did.

    Args:
        facts: (assert step, cluster) of each asserted fact, in the order of assertion.
        clusters: number K of clusters in the group.

    Returns:
        Shape (K,).
    """
    first_K = np.full(clusters, ABSENT, dtype=np.int64)
    for step, cluster in facts:
        if first_K[cluster] == ABSENT:
            first_K[cluster] = step
    return first_K


def potentials(first_K: Ints, utility_K: Floats, steps: int) -> Floats:
    """Phi(s_t) = tanh(sum of V over the distinct clusters met up to step t) (eq. 10, section 4.2).

    Returns:
        Shape (steps,), strictly inside (-1, 1): tanh rounds to 1 near 19, so it is held one ulp below.
    """
    met_K = first_K != ABSENT
    gain_S = np.bincount(first_K[met_K], weights=utility_K[met_K], minlength=steps)
    return np.clip(np.tanh(np.cumsum(gain_S)), -_BELOW_ONE, _BELOW_ONE)


def shaping(potential_S: Floats) -> Floats:
    """shape_t = Phi(s_t) - Phi(s_{t-1}) with Phi(s_0) = 0 (eq. 11); 0 where no new cluster was met. Shape (S,)."""
    return np.diff(potential_S, prepend=0.0)


def source_steps(actions: Sequence[Action]) -> Ints:
    """For each assert the latest search before it, t' in eq. 12; `ABSENT` for other steps and where there was none."""
    sources_S = np.full(len(actions), ABSENT, dtype=np.int64)
    latest = ABSENT
    for step, action in enumerate(actions):
        if isinstance(action, Search):
            latest = step
        elif isinstance(action, Assert):
            sources_S[step] = latest
    return sources_S


def redistribute(shaping_S: Floats, source_S: Ints, attribution: float) -> Floats:
    """process[t] += (1 - alpha) shape_t and process[t'] += alpha shape_t (eq. 12, section 4.2). The sum is kept.

    A step without a source keeps its whole shaping; several asserts after one search each pay alpha to it.
    """
    has_source_S = source_S != ABSENT
    moved_S = np.where(has_source_S, attribution * shaping_S, 0.0)
    process_S = shaping_S - moved_S
    np.add.at(process_S, source_S[has_source_S], moved_S[has_source_S])
    return process_S


def reward_to_go(process_S: Floats) -> Floats:
    """The undiscounted sum of this and all later process rewards (`process = "return"`, credit.md section 8)."""
    return np.asarray(np.cumsum(process_S[::-1])[::-1], dtype=np.float64)
