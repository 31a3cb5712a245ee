"""What a retriever promises, and how it says that it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from factagent.errors import ServiceError
from factagent.types import Passage


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


class InThread:
    """An `AsyncRetriever` over a local one. One thread owns the search, so the event loop never waits for it."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Search in the thread; a search that was under way when its caller was cancelled runs to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._retriever.search, queries, top_k)
