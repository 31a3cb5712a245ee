"""Vectors of real text for the dense benchmarks: hashed TF-IDF, reduced by SVD, placed in 768 dimensions.

Texts are the passages of the shared corpora and, to reach the number wanted, their sentences; queries are questions of
the shared sets, put through the same transformation. They are not the vectors of a trained encoder: near and far are
words in common. What is made once is kept under `runs/` and used again.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from factagent.data.corpus import iter_passages
from factagent.rows import read_rows

CORPORA = ("hotpotqa", "2wikimultihopqa", "wiki18_sample", "musique", "popqa_wiki", "nq_wiki")
QUESTIONS = ("hotpotqa.dev", "nq.test")
BUCKETS = 1 << 17
RANK = 256
FIT_ON = 20_000
NOISE = 0.1
"""Length of the random vector added to each text's unit vector, before it is normalised again."""
_BLOCK = 20_000
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class DenseVectors(NamedTuple):
    """Unit vectors: float16 rows of texts (count, dimension), memory-mapped; float32 queries (queries, dimension)."""

    rows: NDArray[np.float16]
    queries: NDArray[np.float32]


def dense_vectors(
    data: Path, cache: Path, count: int = 200_000, dimension: int = 768, queries: int = 1_024, seed: int = 0
) -> DenseVectors:
    """Vectors of `count` texts and of `queries` questions, made or read from `cache`."""
    name = f"lsa-{count}-{dimension}-{seed}"
    places = [cache / f"{name}.npy", cache / f"{name}-queries-{queries}.npy"]
    if not all(path.is_file() for path in places):
        cache.mkdir(parents=True, exist_ok=True)
        _make(data, places, count, dimension, queries, seed)
    rows, asked = (np.load(path, mmap_mode="r", allow_pickle=False) for path in places)
    return DenseVectors(rows, np.array(asked))


def _make(data: Path, places: list[Path], count: int, dimension: int, queries: int, seed: int) -> None:
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    texts = list(_first(count, _texts(data)))
    if len(texts) < count:
        raise SystemExit(f"{data}: its corpora give {len(texts)} texts; ask for at most that many")
    lsa = _Reduction(texts, dimension, rng)
    rows = np.empty((count, dimension), dtype=np.float16)
    for start in range(0, count, _BLOCK):
        rows[start : start + _BLOCK] = lsa.vectors(texts[start : start + _BLOCK], rng)
    questions = list(_first(queries, _questions(data)))
    for path, array in zip(places, (rows, lsa.vectors(questions, rng)), strict=True):
        partial = path.with_suffix(".partial")
        with partial.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
        partial.replace(path)
    print(json.dumps({"made": count, "queries": len(questions), "seconds": round(time.perf_counter() - began, 1)}))


class _Reduction:
    """TF-IDF in hashed words, its leading directions, and where they lie in the target space."""

    def __init__(self, texts: list[str], dimension: int, rng: np.random.Generator) -> None:
        from scipy.sparse.linalg import svds

        picked = rng.choice(len(texts), min(FIT_ON, len(texts)), replace=False)
        counts = _counts([texts[number] for number in sorted(picked.tolist())])
        occurs = np.asarray((counts > 0).sum(axis=0)).ravel()
        self._idf = np.log((1 + counts.shape[0]) / (1 + occurs)).astype(np.float32)
        rank = min(RANK, dimension, counts.shape[0] - 1)
        start = rng.standard_normal(min(counts.shape)).astype(np.float32)
        _, _, directions = svds(self._weighted(counts), k=rank, tol=1e-2, v0=start)
        place, _ = np.linalg.qr(rng.standard_normal((dimension, rank)))
        self._map = np.asarray(directions.T @ place.T, dtype=np.float32)

    def vectors(self, texts: list[str], rng: np.random.Generator) -> NDArray[np.float32]:
        rows = _unit(np.asarray(self._weighted(_counts(texts)) @ self._map))
        noise = rng.standard_normal(rows.shape).astype(np.float32)
        return _unit(rows + np.float32(NOISE / np.sqrt(rows.shape[1])) * noise)

    def _weighted(self, counts):  # type: ignore[no-untyped-def]  # scipy has no types
        weighted = counts.copy()
        weighted.data = np.log1p(weighted.data)
        return weighted.multiply(self._idf).tocsr().astype(np.float32)


def _counts(texts: list[str]):  # type: ignore[no-untyped-def]  # scipy has no types
    """Sparse (texts, buckets) counts of hashed words."""
    from scipy.sparse import csr_matrix

    hashed = [[zlib.crc32(word.encode()) % BUCKETS for word in _WORD.findall(text.lower())] for text in texts]
    starts = np.cumsum([0, *map(len, hashed)])
    columns = np.fromiter((bucket for row in hashed for bucket in row), np.int64, int(starts[-1]))
    counts = csr_matrix((np.ones(len(columns), np.float32), columns, starts), shape=(len(texts), BUCKETS))
    counts.sum_duplicates()
    return counts


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9), dtype=np.float32)


def _texts(data: Path) -> Iterator[str]:
    """Whole passages first, then their sentences of five words or more, each once."""
    passages = [p for name in CORPORA for p in iter_passages(data / "corpora" / f"{name}.jsonl.gz")]
    yield from (f"{passage.title} {passage.text}" for passage in passages)
    seen: set[str] = set()
    for passage in passages:
        for sentence in _SENTENCE.split(passage.text):
            if sentence not in seen and len(sentence.split()) >= 5:
                seen.add(sentence)
                yield f"{passage.title} {sentence}"


def _questions(data: Path) -> Iterator[str]:
    for name in QUESTIONS:
        yield from (row.text("question") for row in read_rows(data / "qa" / f"{name}.jsonl.gz"))


def _first(count: int, items: Iterable[str]) -> Iterator[str]:
    for _, item in zip(range(count), items, strict=False):
        yield item
