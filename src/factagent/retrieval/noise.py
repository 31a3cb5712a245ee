"""Noisy search without a second model: some searches are answered with the passages of another question.

The stand-in for ZeroSearch's simulator (methods.md, section 7) on a machine that has none. Which searches, and which
other question, follows from the name of the search alone, so a repeated run sees the same noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from factagent.errors import ConfigError
from factagent.policies.base import seed_of
from factagent.retrieval.base import Found, Retriever, SearchRequest
from factagent.types import Question


def is_useful(request: SearchRequest, noise: float) -> bool:
    """Whether a search is answered well: where its draw from [0, 1) is above `noise`; always where that is 0."""
    return noise == 0 or Random(seed_of((*request.key, "noise"))).random() > noise


class CorpusNoise:
    """An `EpisodeRetriever` over a real one.

    Args:
        retriever: what answers, with the query or with another question's text.
        questions: where other questions are taken from.
        noise: p, the probability that a search is answered with another question's passages.

    Raises:
        ValueError: `noise` is not in [0, 1].
        ConfigError: there is no other question.
    """

    def __init__(self, retriever: Retriever, questions: Sequence[Question], noise: float) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise={noise} must lie in [0, 1]")
        if len({question.text for question in questions}) < 2:
            raise ConfigError("environment.kind 'corpus-noise' needs at least two different questions to mix up")
        self._retriever = retriever
        self._questions = questions
        self._noise = noise

    def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        """What each request found, or what another question would have; see `EpisodeRetriever`."""
        return [*self._retriever.search([self._query(request) for request in requests], top_k)]

    def _query(self, request: SearchRequest) -> str:
        if is_useful(request, self._noise):
            return request.query
        draws = Random(seed_of((*request.key, "other")))
        while (other := draws.choice(self._questions)).text == request.question.text:
            continue
        return other.text
