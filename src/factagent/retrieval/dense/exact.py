"""Exact search: a fast scan of all vectors that keeps somewhat more than asked for, and an exact re-rank of those.

The scan multiplies chunks of rows with all queries in bf16 (CPU with AMX, or GPU) and carries a running best. bf16
keeps eight bits, too few to tell apart scores around 0.8, so each product is made relative to the query's current
threshold (the matrix product adds the bias before it rounds): numbers are finest near zero, where the choice is made.

Kept rows are scored again in float64 from the stored fp16 rows. The difference between both scores shows how far the
scan errs. A query is done only if no row that the scan left out can belong to the best, were the scan wrong by five
times the largest difference seen near the cut; else more rows are kept. The check is empirical: only a row for which
the scan erred more than that could be missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factagent.errors import ServiceError, UsageError
from factagent.retrieval.dense.vectors import VectorShards, best_first, rescore
from factagent.retrieval.free_memory import GIB, free_gpu_memory, free_memory
from factagent.sentence_models import torch_threads

logger = logging.getLogger(__name__)

ScanPrecision = Literal["bf16", "fp32"]

BLOCK = 128
"""Rows whose best score stands for all of them while the best blocks are chosen."""
CHUNK_ROWS = {"cpu": 32_768, "cuda": 262_144}
QUERIES_AT_ONCE = 512
WIDEST = 4_096
"""The scan keeps at most this many rows for a query; beyond it lie only corpora of near-equal vectors."""
_SAMPLE = 2_048
_SHARE_OF_FREE = 0.8
_ERROR_FACTOR = 5.0
_ERROR_FLOOR = 1e-7


class ExactIndex:
    """Inner-product search over all vectors, on the CPU or a GPU.

    The scan's copy of the vectors (2 bytes a number in bf16, 4 in fp32) is held in the device's memory where it fits
    `memory_bytes` (default: four fifths of what is free); else every search reads the vectors from their files.

    Args:
        vectors: the stored rows.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        precision: what the scan computes in; the results are the same.
        threads: of torch, while it searches.
        chunk_rows: rows multiplied at once; rounded up to a multiple of 128.
        slack: how many rows beyond `top_k` the scan keeps at first (at least half of `top_k`).
        memory_bytes: the most that the scan's copy may take.

    Raises:
        ServiceError: the device is not there.
    """

    def __init__(
        self,
        vectors: VectorShards,
        *,
        device: str = "auto",
        precision: ScanPrecision = "bf16",
        threads: int = 1,
        chunk_rows: int | None = None,
        slack: int = 10,
        memory_bytes: int | None = None,
    ) -> None:
        for name, value in (("threads", threads), ("chunk_rows", chunk_rows or 1), ("slack", slack)):
            if value < 1:
                raise UsageError(f"{name}={value}: must be at least 1")
        self.vectors = vectors
        self.device = open_device(device)
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._threads = threads
        self._slack = slack
        rows = chunk_rows or CHUNK_ROWS["cuda" if self.device.type == "cuda" else "cpu"]
        self._chunk_rows = min(-(-rows // BLOCK) * BLOCK, -(-len(vectors) // BLOCK) * BLOCK)
        self._lock = threading.Lock()
        self._resident: tuple[Tensor, ...] = ()
        if self._fits(memory_bytes):
            with torch_threads(threads):
                self._resident = tuple(self._read_chunks())
        step = max(1, len(vectors) // _SAMPLE)
        sample = vectors.gather(np.arange(0, len(vectors), step, dtype=np.int64))
        self._sample = torch.from_numpy(sample).to(self.device, self.dtype)

    @property
    def resident_bytes(self) -> int:
        """Memory that the scan's copy takes on the device; 0 where searches read the files."""
        return sum(chunk.nbytes for chunk in self._resident)

    def __len__(self) -> int:
        return len(self.vectors)

    def top(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `k` best rows for each query vector (n, d): positions int64 and inner products float32, both (n, k).

        Best first, equal scores by position; fewer than `k` columns where there are fewer rows.

        Raises:
            ValueError: `k` is below 1, or the queries are not finite vectors of this dimension.
        """
        queries = check_queries(vectors, self.vectors.dimension, k)
        k = min(k, len(self))
        positions = np.empty((len(queries), k), dtype=np.int64)
        scores = np.empty((len(queries), k), dtype=np.float32)
        with self._lock, torch_threads(self._threads), torch.inference_mode():
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                part = slice(start, start + QUERIES_AT_ONCE)
                self._search(queries[part], k, positions[part], scores[part])
        return positions, scores

    def _search(
        self, queries: NDArray[np.float32], k: int, positions: NDArray[np.int64], scores: NDArray[np.float32]
    ) -> None:
        """Fill in the results of a group of queries, going over those again for which the scan kept too few."""
        pending = np.arange(len(queries))
        width = min(k + max(self._slack, k // 2), len(self))
        while len(pending):
            found, scanned = self._scan(torch.from_numpy(queries[pending]).to(self.device), width)
            exact = rescore(self.vectors, queries[pending], found)
            positions[pending], scores[pending] = best_first(found, exact, k)
            if width == len(self) or width >= WIDEST + k:
                return
            # The lower half: errors grow with the distance from the threshold, and rows left out lie close to it.
            error = np.abs(exact - scanned)[:, width // 2 :].max(axis=1)
            reachable = scanned[:, -1] + _ERROR_FACTOR * error + _ERROR_FLOOR
            pending = pending[reachable >= scores[pending, k - 1]]
            width = min(8 * width, WIDEST + k, len(self))

    def _scan(self, queries: Tensor, width: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Positions and approximate scores (n, width) of the best rows, best first."""
        reduced = queries.to(self.dtype)
        scores = torch.full((len(queries), width), -torch.inf, device=self.device)
        positions = torch.full((len(queries), width), -1, dtype=torch.int64, device=self.device)
        threshold = self._first_threshold(reduced, width)
        start = 0
        for chunk in self._resident or self._read_chunks():
            relative_to = threshold.to(self.dtype)
            products = torch.nn.functional.linear(chunk, reduced, -relative_to)
            found, rows = _candidates(products, relative_to.float(), scores[:, -1], width)
            scores, order = torch.cat([scores, found], dim=1).topk(width, dim=1)
            positions = torch.cat([positions, rows + start], dim=1).gather(1, order)
            threshold = torch.maximum(threshold, scores[:, -1])
            start += len(chunk)
        return positions.cpu().numpy(), scores.cpu().numpy()

    def _first_threshold(self, queries: Tensor, width: int) -> Tensor:
        """About where the scores of the best rows lie, from an even sample of all rows; (n,) float32."""
        rank = min(-(-width * len(self._sample) // len(self)), len(self._sample))
        products = torch.nn.functional.linear(queries, self._sample).float()
        return products.topk(rank, dim=1).values[:, -1]

    def _read_chunks(self) -> Iterator[Tensor]:
        for start in range(0, len(self), self._chunk_rows):
            rows = self.vectors.read(start, min(start + self._chunk_rows, len(self)))
            yield torch.from_numpy(rows).to(self.device).to(self.dtype)

    def _fits(self, memory_bytes: int | None) -> bool:
        """Say what the scan's copy needs and what is free, and decide whether to hold it."""
        needed = len(self) * self.vectors.dimension * self.dtype.itemsize
        free = free_gpu_memory()[self.device.index or 0] if self.device.type == "cuda" else free_memory()
        allowed = int(_SHARE_OF_FREE * free) if memory_bytes is None else memory_bytes
        decision = (
            "held in memory"
            if needed <= allowed
            else (
                "read from disk in every search; for what would fit see: "
                f"factagent index plan --passages {len(self)} --ram {free // GIB}GiB"
            )
        )
        logger.log(
            logging.INFO if needed <= allowed else logging.WARNING,
            "%d vectors need %.2f GiB on %s (%.2f GiB free, %.2f GiB allowed): %s",
            *(len(self), needed / GIB, self.device, free / GIB, allowed / GIB, decision),
        )
        return needed <= allowed


def open_device(name: str) -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:N".

    Raises:
        UsageError: the name is none of these.
        ServiceError: there is no such GPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise UsageError(f"device '{name}': choose auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ServiceError(f"device '{name}': torch sees {torch.cuda.device_count()} GPUs; choose cpu or auto")
    return torch.device(name)


def check_queries(vectors: NDArray[Any], dimension: int, k: int) -> NDArray[np.float32]:
    """The query vectors as contiguous float32.

    Raises:
        ValueError: `k` is below 1, or the queries are not finite vectors of this dimension.
    """
    if k < 1:
        raise ValueError(f"k={k}: must be at least 1")
    queries = np.ascontiguousarray(vectors, dtype=np.float32)
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise ValueError(f"query vectors of shape {queries.shape}: the index needs (n, {dimension})")
    if not np.isfinite(queries).all():
        raise ValueError("query vectors hold NaN or infinity; the encoder's weights may be damaged")
    return queries


def _candidates(products: Tensor, relative_to: Tensor, worst: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Rows of a chunk that may enter the best `width`: scores and row numbers, (n, some) each.

    The best `width` rows lie in the `width` blocks with the highest maxima, so only those blocks are looked into, and
    of these only as many as hold something better than the `worst` score that is kept.

    Args:
        products: (rows, n) scores less `relative_to`.
        relative_to: (n,).
        worst: (n,) the lowest score kept so far.
        width: how many are kept.
    """
    rows, n = products.shape
    if rows % BLOCK:  # only the last chunk: padding copies
        products = torch.nn.functional.pad(products, (0, 0, 0, -rows % BLOCK), value=-torch.inf)
    blocks = products.view(-1, BLOCK, n)
    maxima = blocks.amax(dim=1).T.float() + relative_to[:, None]
    useful = min(int((maxima > worst[:, None]).sum(dim=1).max()), width)
    best = maxima.topk(useful, dim=1).indices
    queries = torch.arange(n, device=products.device)[:, None]
    scores = blocks[best, :, queries].float() + relative_to[:, None, None]
    places = best[:, :, None] * BLOCK + torch.arange(BLOCK, device=products.device)
    return scores.flatten(1), places.flatten(1)
