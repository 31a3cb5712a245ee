"""Hybrid retrieval: reciprocal rank fusion of any retrievers over one corpus.

A passage at rank r of a retriever with weight w gains w / (k + r); ranks count from 1, and a passage that a retriever
does not return gains nothing from it. Scores of the retrievers play no part, so BM25 and cosines need no common scale.
(Cormack, Clarke, Büttcher 2009; k = 60 is theirs.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from factagent.configuration import load_config
from factagent.errors import UsageError
from factagent.retrieval.base import Retriever
from factagent.types import Passage

HYBRID_NAME = "hybrid.toml"
RANK_CONSTANT = 60.0
DEPTH = 100


class HybridConfig(BaseModel):
    """The file `hybrid.toml`: which retrievers, and how they are fused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    retrievers: tuple[str, ...] = Field(min_length=2)
    """What `opening.open_retriever` takes; directories are relative to the file."""
    weights: tuple[float, ...] = ()
    """One for each retriever; empty for equal ones."""
    k: float = RANK_CONSTANT
    depth: int = DEPTH


def read_hybrid(path: Path) -> HybridConfig:
    """Read `hybrid.toml`, with the directories in it made relative to the working directory.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or a value is refused.
    """
    config = load_config(HybridConfig, path)
    places = (spec if "://" in spec else str(path.parent / spec) for spec in config.retrievers)
    return config.model_copy(update={"retrievers": tuple(places)})


class HybridRetriever:
    """A retriever (`base.Retriever`) that fuses the rankings of several.

    Equal fused scores are ordered by the best rank that a passage has anywhere, then by its id. The text of a passage
    is that of the first retriever that returned it.

    Args:
        retrievers: two or more over one corpus: passages are the same where their ids are.
        weights: one for each retriever, above 0; None for equal ones.
        k: how little the first ranks stand out, at least 0.
        depth: how many passages are asked of each retriever; at least as many as the search wants.

    Raises:
        UsageError: a number is out of range.
    """

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        *,
        weights: Sequence[float] | None = None,
        k: float = RANK_CONSTANT,
        depth: int = DEPTH,
    ) -> None:
        self._retrievers = tuple(retrievers)
        self._weights = tuple(weights or [1.0] * len(self._retrievers))
        self._k, self._depth = k, depth
        if len(self._retrievers) < 2:
            raise UsageError(f"a hybrid of {len(self._retrievers)} retrievers: give at least 2")
        if len(self._weights) != len(self._retrievers):
            raise UsageError(f"weights={list(self._weights)}: give one for each of {len(self._retrievers)} retrievers")
        if not all(math.isfinite(weight) and weight > 0 for weight in self._weights):
            raise UsageError(f"weights={list(self._weights)}: must be finite and above 0")
        if not (math.isfinite(k) and k >= 0 and depth >= 1):
            raise UsageError(f"k={k}, depth={depth}: k must be at least 0, depth at least 1")

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """The passages with the highest fused scores; `Passage.score` is the fused score.

        Raises:
            RetrievalError: one of the retrievers failed; there is no ranking from the others alone.
            ValueError: `top_k` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k={top_k}: must be at least 1")
        depth = max(self._depth, top_k)
        rankings = [retriever.search(queries, depth) for retriever in self._retrievers]
        return [self._fuse([ranking[number] for ranking in rankings])[:top_k] for number in range(len(queries))]

    def _fuse(self, rankings: Sequence[tuple[Passage, ...]]) -> tuple[Passage, ...]:
        passages: dict[str, Passage] = {}
        scores: dict[str, float] = {}
        best_rank: dict[str, int] = {}
        for weight, ranking in zip(self._weights, rankings, strict=True):
            for rank, passage in enumerate(ranking, start=1):
                passages.setdefault(passage.id, passage)
                scores[passage.id] = scores.get(passage.id, 0.0) + weight / (self._k + rank)
                best_rank[passage.id] = min(rank, best_rank.get(passage.id, rank))
        order = sorted(passages, key=lambda identifier: (-scores[identifier], best_rank[identifier], identifier))
        return tuple(replace(passages[identifier], score=scores[identifier]) for identifier in order)
