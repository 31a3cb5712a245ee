"""The inner loop of BM25 search, compiled by numba.

bm25s computes the score of every (term, passage) pair when the index is built; a search only adds up columns and keeps
the best. This loop is ours, not bm25s's, for two reasons: it orders equal scores by position (bm25s keeps whichever
its heap holds), and numba may cache its machine code, so that a process starts in a fraction of a second rather than
in five.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

Kernel = Callable[..., tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]


def scan(
    data: Any, positions: Any, starts: Any, query_terms: Any, query_starts: Any, passages: int, top_k: int
) -> tuple[Any, Any]:
    """Score every query against the postings and keep the best, by score (high first), then position (low first).

    Args:
        data: float32 (P,), scores of the postings, all >= 0, grouped by term.
        positions: int32 (P,), passage of each posting.
        starts: int64 (terms + 1,), where each term's postings begin.
        query_terms: int64 (Q,), term ids of all queries, one after the other, repeats kept.
        query_starts: int64 (queries + 1,), where each query begins in `query_terms`.
        passages: number of passages.
        top_k: results kept for a query.

    Returns:
        Positions int64 (queries, top_k), -1 where fewer passages scored above 0, and scores float32 of equal shape.
    """
    queries = len(query_starts) - 1
    best = np.full((queries, top_k), -1, np.int64)
    best_scores = np.zeros((queries, top_k), np.float32)
    scores = np.zeros(passages, np.float32)
    for query in range(queries):
        scores[:] = 0
        for index in range(query_starts[query], query_starts[query + 1]):
            term = query_terms[index]
            for posting in range(starts[term], starts[term + 1]):
                scores[positions[posting]] += data[posting]
        threshold = np.float32(0)
        for passage in range(passages):
            score = scores[passage]
            # Passages come in order of position, so of two equal scores the first stays ahead.
            if score > threshold:
                place = top_k - 1
                while place > 0 and score > best_scores[query, place - 1]:
                    best[query, place] = best[query, place - 1]
                    best_scores[query, place] = best_scores[query, place - 1]
                    place -= 1
                best[query, place] = passage
                best_scores[query, place] = score
                threshold = best_scores[query, top_k - 1]
    return best, best_scores


@lru_cache(maxsize=1)
def compiled_scan() -> Kernel:
    """`scan` as machine code; the first use on a machine compiles for a few seconds and says so.
    There is no fall-back without numba; a user who disables it in the environment is told so.
    """
    import numba

    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        logger.warning("NUMBA_DISABLE_JIT is set: BM25 search runs as interpreted Python, about 100 times slower")
        return scan
    try:
        kernel: Any = numba.njit(nogil=True, cache=True)(scan)
    except RuntimeError as error:
        logger.warning("numba cannot keep compiled code (%s); set NUMBA_CACHE_DIR to a writable folder", error)
        kernel = numba.njit(nogil=True)(scan)
    result: Kernel = kernel
    return result


def warm_up(data: Any, positions: Any, starts: Any) -> float:
    """Compile for the array types of an index, or load the cached code; return the seconds it took."""
    began = time.perf_counter()
    nothing = np.zeros(0, np.int64)
    compiled_scan()(data, positions, starts, nothing, np.zeros(1, np.int64), 1, 1)
    seconds = time.perf_counter() - began
    if seconds > 1:
        logger.info("compiled the BM25 search loop in %.1f s; later processes take it from numba's cache", seconds)
    return seconds
