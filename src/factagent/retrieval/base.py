"""What a retriever promises, and how it says that it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from factagent.errors import ServiceError
from factagent.types import Passage, Question


class RetrievalError(ServiceError):
    """A search failed (server down, time-out, malformed reply). Its trajectories leave the group's statistics."""


class Retriever(Protocol):
    """Batch search.

    Every implementation holds to this: one result for each query, in order; the best passage first; at most `top_k`
    passages, fewer (or none) where fewer match; equal scores ordered by the position in the corpus; the result of a
    query does not depend on the other queries of the batch; safe to call from several threads.
    """

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Return the best passages of each query.

        Raises:
            RetrievalError: the search failed; an empty tuple is never used for a failure.
            ValueError: `top_k` is below 1.
        """
        ...


class AsyncRetriever(Protocol):
    """The same promise on an event loop; what `remote` gives, and `InThread` makes of a local index."""

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Return the best passages of each query; see `Retriever.search`."""
        ...


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A search with the episode that it belongs to.

    `key` names the random draws of the search: the episode's own key with the round behind it. So neither the batch
    that a search falls into nor a retry changes what is drawn, and a simulator can never answer from the question of
    another episode.
    """

    query: str
    question: Question
    key: tuple[str | int, ...]


Found: TypeAlias = "tuple[Passage, ...] | RetrievalError"
"""What came of one request. An error ends the episode of its own request; the others of the batch go on."""


@runtime_checkable
class EpisodeRetriever(Protocol):
    """An environment whose passages depend on the question being played, not on the query alone (a simulator)."""

    def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        """What each request found, in order; the best passage first, at most `top_k`.

        Raises:
            RetrievalError: the whole batch failed. An empty tuple is never used for a failure.
        """
        ...


@runtime_checkable
class AsyncEpisodeRetriever(Protocol):
    """The same promise on an event loop."""

    async def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        """What each request found; see `EpisodeRetriever.search_for`."""
        ...


def search_for(
    retriever: Retriever | EpisodeRetriever, requests: Sequence[SearchRequest], top_k: int
) -> Sequence[Found]:
    """Search with the whole request where the retriever asks for it, by the query alone where it does not.

    Raises:
        RetrievalError: the whole batch failed.
    """
    if isinstance(retriever, EpisodeRetriever):
        return retriever.search_for(requests, top_k)
    return retriever.search([request.query for request in requests], top_k)


async def search_one(
    retriever: AsyncRetriever | AsyncEpisodeRetriever, request: SearchRequest, top_k: int
) -> tuple[Passage, ...]:
    """`search_for` of one request on an event loop.

    Raises:
        RetrievalError: the search failed.
    """
    if isinstance(retriever, AsyncEpisodeRetriever):
        (found,) = await retriever.search_for([request], top_k)
    else:
        (found,) = await retriever.search([request.query], top_k)
    if isinstance(found, RetrievalError):
        raise found
    return found


class InThread:
    """An `AsyncRetriever` over a local one. One thread owns the search, so the event loop never waits for it."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Search in the thread; a search that was under way when its caller was cancelled runs to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._retriever.search, queries, top_k)
