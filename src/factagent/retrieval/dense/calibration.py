"""Recall of an approximate index against exact search, and the least `nprobe` that reaches a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from factagent.errors import CorruptError
from factagent.retrieval.dense.approximate import ApproximateIndex
from factagent.retrieval.dense.approximate_manifest import RECALL_AT
from factagent.retrieval.dense.vectors import VectorShards

BLOCK_ROWS = 16_384
"""Rows in memory at a time as float32: 50 MB at 768 dimensions."""
NOISE = 0.5
"""Length of the noise added to a unit vector to make a query of it; the cosine with its passage is then about .89."""


class Sample(NamedTuple):
    """Queries (n, d), the true best positions (n, 3) of each, and the position to leave out (or -1)."""

    queries: NDArray[np.float32]
    best: NDArray[np.int64]
    left_out: NDArray[np.int64]


def blocks(
    shards: VectorShards, start: int, stop: int, rows: int = BLOCK_ROWS
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Position of the first row, and the rows, of consecutive blocks of the range, which the build and the check read.

    Raises:
        CorruptError: a value is NaN or infinite.
    """
    for first in range(start, stop, rows):
        yield first, finite(shards.read(first, min(first + rows, stop)).astype(np.float32))


def finite(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same rows.

    Raises:
        CorruptError: a value is NaN or infinite.
    """
    if not np.isfinite(rows).all():
        raise CorruptError("the stored vectors hold NaN or infinity; encode the corpus again")
    return rows


def perturbed_sample(shards: VectorShards, count: int, rng: np.random.Generator, told: Callable[[int], None]) -> Sample:
    """Queries made of passages and noise.

    The passage itself, which any index finds, is left out of both the true and the found, so that recall is about its
    neighbours.
    """
    own = np.sort(rng.choice(len(shards), min(count, len(shards)), replace=False)).astype(np.int64)
    rows = shards.gather(own)
    noise = rng.standard_normal(rows.shape).astype(np.float32)
    noise *= NOISE * np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    queries = rows + noise
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), np.float32(1e-12))
    return Sample(queries, _without(exact_top(shards, queries, RECALL_AT + 1, told), own), own)


def sample_of(shards: VectorShards, queries: NDArray[np.float32], told: Callable[[int], None]) -> Sample:
    """The sample of real queries."""
    queries = np.ascontiguousarray(queries, np.float32)
    return Sample(queries, exact_top(shards, queries, RECALL_AT, told), np.full(len(queries), -1))


def exact_top(
    shards: VectorShards, queries: NDArray[np.float32], k: int, told: Callable[[int], None]
) -> NDArray[np.int64]:
    """Positions (n, min(k, passages)) of the best vectors in one pass over the shards, ties by position."""
    best = np.zeros((len(queries), 0), np.int64)
    scores = np.zeros((len(queries), 0), np.float32)
    for start, block in blocks(shards, 0, len(shards)):
        found = queries @ block.T
        width = min(k, len(block))
        top = np.sort(np.argpartition(-found, width - 1, axis=1)[:, :width], axis=1)
        best = np.hstack((best, top + start))
        scores = np.hstack((scores, np.take_along_axis(found, top, 1)))
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best, scores = np.take_along_axis(best, order, 1), np.take_along_axis(scores, order, 1)
        told(start + len(block))
    return best


def recall(index: ApproximateIndex, sample: Sample, nprobe: int) -> float:
    """Share of the true best positions that are among the index's best, 0 to 1. A corpus of one passage gives 1."""
    wanted = sample.best.shape[1]
    if not wanted:
        return 1.0
    extra = int(sample.left_out[0] >= 0)
    found, _ = index.top_with(sample.queries, wanted + extra, index.settings._replace(nprobe=nprobe))
    found = _without(found, sample.left_out) if extra else found
    return float((sample.best[:, :, None] == found[:, None, :]).any(2).mean())


def choose_nprobe(
    index: ApproximateIndex, sample: Sample, nlist: int, target: float, fixed: int | None = None
) -> tuple[int, float]:
    """The least `nprobe` whose recall reaches the target (or `fixed`), with its recall.

    Doubles until the target is reached, then halves the interval. Where even all lists miss it, the answer is the least
    of the doubled values with the highest recall.
    """
    if fixed is not None:
        fixed = min(fixed, nlist)
        return fixed, recall(index, sample, fixed)
    tried: dict[int, float] = {0: 0.0}
    nprobe = 1
    while tried.setdefault(nprobe, recall(index, sample, nprobe)) < target:
        if nprobe == nlist:
            best = max(tried.values())
            return min(n for n, value in tried.items() if n and value == best), best
        nprobe = min(2 * nprobe, nlist)
    low, high = max(n for n in tried if n < nprobe), nprobe
    while high - low > 1:
        middle = (low + high) // 2
        tried[middle] = recall(index, sample, middle)
        low, high = (low, middle) if tried[middle] >= target else (middle, high)
    return high, tried[high]


def _without(positions: NDArray[np.int64], left_out: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first places of each row (all but one of them) that are not the position to leave out."""
    kept = np.argsort(positions == left_out[:, None], axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(positions, np.sort(kept, axis=1), 1)
