"""The inner loops of BM25 search, compiled by numba.

The score of every (term, passage) pair is computed when the index is built; a search only adds up columns and keeps
the best. The loop is ours, not bm25s's, for three reasons: it orders equal scores by position (bm25s keeps whichever
its heap holds); numba may cache its machine code, so that a process starts in a fraction of a second rather than in
five; and it takes about 0.6 of the time, since it looks for the best 64 passages at a time and adds without checks for
negative positions. Those are kept out by `first_bad_term`, once a term.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

BLOCK = 64
"""Passages whose maximum is compared with the worst score kept, before any of them is looked at."""


def scan(
    data: Any, positions: Any, starts: Any, query_terms: Any, query_starts: Any, passages: int, top_k: int
) -> tuple[Any, Any]:
    """Score every query against the postings and keep the best, by score (high first), then position (low first).

    Args:
        data: float32 (P,), scores of the postings, all >= 0, grouped by term.
        positions: int32 (P,), passage of each posting, 0 <= position < passages (else memory is overwritten).
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
    scores = np.zeros((passages + BLOCK - 1) // BLOCK * BLOCK, np.float32)
    # Floats that are not negative have the order of their bits, and a maximum of integers is vectorised.
    bits = scores.view(np.int32)
    # Unsigned, since numba looks whether a signed index is negative.
    places = positions.view(np.uint32)
    for query in range(queries):
        for index in range(query_starts[query], query_starts[query + 1]):
            term = query_terms[index]
            for posting in range(np.uint64(starts[term]), np.uint64(starts[term + 1])):
                scores[np.uint64(places[posting])] += data[posting]
        threshold = np.float32(0)
        for begin in range(0, len(scores), BLOCK):
            block = bits[begin : begin + BLOCK]
            highest = np.int32(0)
            for offset in range(BLOCK):
                highest = max(highest, block[offset])
            if highest > np.float32(threshold).view(np.int32):
                for passage in range(begin, begin + BLOCK):
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
            block[:] = 0
    return best, best_scores


def first_bad_term(data: Any, positions: Any, starts: Any, terms: Any, checked: Any, passages: int) -> int:
    """The first of `terms` with a posting that `scan` must not see, or -1.

    Args:
        data: float32 (P,), scores of the postings: finite and >= 0, else the term is bad.
        positions: int32 (P,), passages of the postings: below `passages` and >= 0, else the term is bad.
        starts: int64 (terms + 1,), where each term's postings begin.
        terms: int64 (Q,), the terms to look at.
        checked: uint8 (terms,), 1 for a term found good before; such terms are not looked at, and new ones are marked.
        passages: number of passages.
    """
    for index in range(len(terms)):
        term = terms[index]
        if checked[term] == 0:
            for posting in range(starts[term], starts[term + 1]):
                inside = positions[posting] >= 0 and positions[posting] < passages
                if not (inside and data[posting] >= 0 and data[posting] < np.inf):
                    return int(term)
            checked[term] = 1
    return -1


@lru_cache(maxsize=2)
def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """`scan` or `first_bad_term` as machine code; the first use on a machine compiles for a few seconds and says so.
    There is no fall-back without numba; a user who disables it in the environment is told so.
    """
    import numba

    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        logger.warning("NUMBA_DISABLE_JIT is set: BM25 search runs as interpreted Python, about 100 times slower")
        return loop
    try:
        kernel: Callable[..., Any] = numba.njit(nogil=True, cache=True)(loop)
    except RuntimeError as error:
        logger.warning("numba cannot keep compiled code (%s); set NUMBA_CACHE_DIR to a writable folder", error)
        kernel = numba.njit(nogil=True)(loop)
    return kernel


def warm_up(data: Any, positions: Any, starts: Any) -> float:
    """Compile for the array types of an index, or load the cached code; return the seconds it took."""
    began = time.perf_counter()
    nothing = np.zeros(0, np.int64)
    compiled(scan)(data, positions, starts, nothing, np.zeros(1, np.int64), 1, 1)
    compiled(first_bad_term)(data, positions, starts, nothing, np.zeros(0, np.uint8), 1)
    seconds = time.perf_counter() - began
    if seconds > 1:
        logger.info("compiled the BM25 search loops in %.1f s; later processes take them from numba's cache", seconds)
    return seconds
