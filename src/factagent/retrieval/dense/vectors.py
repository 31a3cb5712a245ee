"""Vectors on disk: fp16 rows in one or several memory-mapped shards, read by range or by position.

Scores that leave dense search come from `rescore` alone. It multiplies the stored rows with the query in float64, one
query at a time, so that a score depends neither on the batch, nor on the machine's matrix library, nor on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factagent.errors import CorruptError
from factagent.retrieval.passages import map_array


class VectorShards:
    """The rows of one matrix, cut into shards.

    Args:
        shards: (rows, dimension) arrays of float16 or float32, usually memory maps. All but the last may differ in
            length too.

    Raises:
        ValueError: no shard, or shards of different dimensions or of another type.
    """

    def __init__(self, shards: Sequence[NDArray[Any]]) -> None:
        if not shards or any(shard.ndim != 2 or shard.shape[1] != shards[0].shape[1] for shard in shards):
            raise ValueError(f"shards of shapes {[shard.shape for shard in shards]}: need (rows, d), one d for all")
        if any(shard.dtype not in (np.float16, np.float32) for shard in shards):
            raise ValueError(f"shards of types {sorted({str(s.dtype) for s in shards})}: need float16 or float32")
        self._shards = tuple(shards)
        self._ends = np.cumsum([len(shard) for shard in shards])
        self.dimension = int(shards[0].shape[1])

    @classmethod
    def open(cls, paths: Sequence[Path]) -> VectorShards:
        """Memory-map the shards in files.

        Raises:
            CorruptError: a file is no plain array, or holds another type or shape than vectors have.
        """
        shards = [map_array(path) for path in paths]
        for path, shard in zip(paths, shards, strict=True):
            fits = shard.ndim == 2 and shard.dtype in (np.float16, np.float32) and shard.shape[1] == shards[0].shape[1]
            if not fits or not len(shard):
                problem = f"{shard.dtype} of shape {shard.shape}; need float16 (rows, {shards[0].shape[-1]})"
                raise CorruptError(f"{path}: {problem}; build the index again")
        return cls(shards)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def nbytes(self) -> int:
        """Size of the rows, in bytes."""
        return sum(shard.nbytes for shard in self._shards)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Copy the rows `start` to `stop` (excluded) into memory, in the stored type."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        parts = []
        for number in range(int(first), int(last) + 1):
            begin = int(self._ends[number]) - len(self._shards[number])
            parts.append(self._shards[number][max(start - begin, 0) : stop - begin])
        return np.array(parts[0]) if len(parts) == 1 else np.concatenate(parts)

    def gather(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows at `positions` (n,), float32 (n, dimension)."""
        rows = np.empty((len(positions), self.dimension), dtype=np.float32)
        numbers = np.searchsorted(self._ends, positions, side="right")
        for number in np.unique(numbers):
            chosen = np.flatnonzero(numbers == number)
            begin = int(self._ends[number]) - len(self._shards[number])
            rows[chosen] = self._shards[number][positions[chosen] - begin]
        return rows


def rescore(vectors: VectorShards, queries: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Exact inner products of each query (n, d) with the rows at its positions (n, c); -inf where a position is -1."""
    scores = np.full(positions.shape, -np.inf, dtype=np.float32)
    for query, row, result in zip(queries.astype(np.float64), positions, scores, strict=True):
        there = np.flatnonzero(row >= 0)
        rows = vectors.gather(row[there]).astype(np.float64)
        # Not `rows @ query`: BLAS may sum in another order for another number of rows.
        result[there] = np.einsum("cd,d->c", rows, query)
    return scores


def best_first(
    positions: NDArray[np.int64], scores: NDArray[np.float32], top_k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The `top_k` best of each row: scores high first, equal scores by position."""
    order = np.lexsort((positions, -scores), axis=1)[:, :top_k]
    return np.take_along_axis(positions, order, axis=1), np.take_along_axis(scores, order, axis=1)
