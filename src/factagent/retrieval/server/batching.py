"""One thread owns the search; whatever was asked while it searched is its next batch.

There is no timer: an idle server searches at once, a busy one in batches that grow with the load. Everything here but
the search itself runs on the event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from factagent.errors import FactAgentError, TryAgainError, UsageError
from factagent.retrieval.base import RetrievalError, Retriever
from factagent.retrieval.server.metrics import Metrics
from factagent.types import Passage

logger = logging.getLogger(__name__)

T = TypeVar("T")
Found = tuple[Passage, ...]
_LONGEST_RETRY_S = 60


class Unavailable(TryAgainError):
    """The server cannot take a search now: loading, full or stopping. `retry_after_s` is a whole number."""

    def __init__(self, code: str, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.code, self.retry_after_s = code, retry_after_s


class SearchFailed(FactAgentError):
    """The retriever raised. The reason is in the log; it is not for the client."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """One request: its queries, those still to be searched, and the future that its handler awaits."""

    queries: Sequence[str]
    top_k: int
    missing: list[str]
    found: dict[str, Found]
    results: asyncio.Future[list[Found]]


class SearchQueue:
    """Takes searches on the event loop, answers from the cache, and hands batches to the thread that owns the search.

    Args:
        metrics: where queue, batches, searches and cache hits are counted.
        max_waiting: queries that may wait; a request beyond that is refused at once.
        max_batch: queries in one search, at most. One request is never split.
        cache: results kept, one for each (query, number of passages); 0 for no cache.

    Raises:
        UsageError: a number out of range.
    """

    def __init__(self, metrics: Metrics, *, max_waiting: int = 4096, max_batch: int = 256, cache: int = 10_000) -> None:
        if max_waiting < 1 or max_batch < 1 or cache < 0:
            raise UsageError(f"queue {max_waiting}, batch {max_batch}, cache {cache}: must be at least 1, 1 and 0")
        self._metrics = metrics
        self._max_waiting, self._max_batch = max_waiting, max_batch
        self._cache = _Cache(cache)
        self._queue: deque[_Waiting] = deque()
        self._waiting = 0
        metrics.queue_queries.set_function(lambda: self._waiting)
        self._thread = _SearchThread()
        self._retriever: Retriever | None = None
        self._batch: list[_Waiting] = []
        self._stopping = False
        self._query_s = 0.0

    async def load(self, open_retriever: Callable[[], Retriever]) -> Retriever:
        """Open the retriever in the thread that will search it; until then `submit` refuses."""
        retriever = await self._thread.run(open_retriever)
        self._retriever = retriever
        return retriever

    def check_ready(self) -> None:
        """Raise Unavailable where the index is not loaded, the queue is full, or the server stops."""
        self._check_up()
        if self._waiting >= self._max_waiting:
            raise self._full()

    def submit(self, queries: Sequence[str], top_k: int) -> asyncio.Future[list[Found]]:
        """Ask for the best `top_k` passages of each query; `give_up` takes the wish back.

        Raises:
            Unavailable: loading, stopping, or more would wait than may. The future may hold it too, or SearchFailed.
        """
        self._check_up()
        found = {query: passages for query in queries if (passages := self._cache.get((query, top_k))) is not None}
        missing = [query for query in dict.fromkeys(queries) if query not in found]
        if missing and self._waiting and self._waiting + len(missing) > self._max_waiting:
            raise self._full()
        waiting = _Waiting(queries, top_k, missing, found, asyncio.get_running_loop().create_future())
        if found:
            self._metrics.cache_hits.inc(len(found))
        if not missing:
            waiting.results.set_result([found[query] for query in queries])
            return waiting.results
        self._metrics.cache_misses.inc(len(missing))
        self._queue.append(waiting)
        self._waiting += len(missing)
        if not self._batch:
            self._search_next()
        return waiting.results

    def give_up(self, results: asyncio.Future[list[Found]]) -> None:
        """Cancel a future of `submit` and take its work out of the queue, if it is not searched yet."""
        results.cancel()
        for waiting in self._queue:
            if waiting.results is results:
                self._queue.remove(waiting)
                self._waiting -= len(waiting.missing)
                return

    def stop(self) -> None:
        """Refuse whatever waits, is searched or comes; a search under way ends, or not, for nobody."""
        self._stopping = True
        for waiting in (*self._batch, *self._queue):
            if not waiting.results.done():
                waiting.results.set_exception(Unavailable("stopping", "the server is stopping"))
        self._queue.clear()
        self._thread.end()

    def _check_up(self) -> None:
        if self._stopping:
            raise Unavailable("stopping", "the server is stopping")
        if self._retriever is None:
            raise Unavailable("loading", "the index is being loaded", 5)

    def _search_next(self) -> None:
        batch, retriever = self._take(), self._retriever
        self._batch = batch
        if batch and retriever is not None:
            running = self._thread.run(lambda: _search(retriever, batch))
            running.add_done_callback(lambda done: self._finish(batch, done.result()))

    def _take(self) -> list[_Waiting]:
        """The longest waiting request and, up to the maximum, those that ask for as many passages."""
        batch: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        size = 0
        while self._queue and size < self._max_batch:
            waiting = self._queue.popleft()
            fits = not batch or (waiting.top_k == batch[0].top_k and size + len(waiting.missing) <= self._max_batch)
            (batch if fits else left).append(waiting)
            size += len(waiting.missing) if fits else 0
        self._queue.extendleft(reversed(left))
        self._waiting -= size
        return batch

    def _finish(self, batch: list[_Waiting], outcome: _Outcome) -> None:
        metrics = self._metrics
        metrics.batch_queries.observe(outcome.queries)
        metrics.search_seconds.observe(outcome.seconds)
        self._query_s = outcome.seconds / outcome.queries
        for waiting, found in zip(batch, outcome.found, strict=True):
            if found is None:
                metrics.search_failures.inc()
            self._answer(waiting, found)
        self._search_next()

    def _answer(self, waiting: _Waiting, found: Mapping[str, Found] | None) -> None:
        if found is not None:
            waiting.found.update((query, found[query]) for query in waiting.missing)
            for query in waiting.missing:
                self._cache.put((query, waiting.top_k), found[query])
        if waiting.results.done():
            return  # its client went away while it was searched
        if found is None:
            waiting.results.set_exception(SearchFailed("the search failed; the server's log says why"))
        else:
            waiting.results.set_result([waiting.found[query] for query in waiting.queries])

    def _full(self) -> Unavailable:
        retry = min(max(1, math.ceil(self._waiting * self._query_s)), _LONGEST_RETRY_S)
        return Unavailable("overloaded", f"{self._waiting} queries wait already; try again in {retry} s", retry)


class _Cache:
    """The most recently used results."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[tuple[str, int], Found] = OrderedDict()

    def get(self, key: tuple[str, int]) -> Found | None:
        found = self._results.get(key)
        if found is not None:
            self._results.move_to_end(key)
        return found

    def put(self, key: tuple[str, int], found: Found) -> None:
        self._results[key] = found
        if len(self._results) > self._size:
            self._results.popitem(last=False)


class _SearchThread:
    """Runs one job after the other. A daemon, so that a search that hangs cannot keep the process from ending."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        Thread(target=self._work, name="search", daemon=True).start()

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return asyncio.wrap_future(future)

    def end(self) -> None:
        """Let the thread end after the jobs that it has."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - the future carries it to whoever asked
                future.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of one batch: what was found for each request (None where its search failed), unique queries, seconds."""

    found: list[Mapping[str, Found] | None]
    queries: int
    seconds: float


def _search(retriever: Retriever, batch: list[_Waiting]) -> _Outcome:
    """Search for a batch, in the thread."""
    queries = list(dict.fromkeys(query for waiting in batch for query in waiting.missing))
    began = time.perf_counter()
    found = _found(retriever, batch, queries)
    return _Outcome(found, len(queries), time.perf_counter() - began)


def _found(retriever: Retriever, batch: list[_Waiting], queries: list[str]) -> list[Mapping[str, Found] | None]:
    """One search for all; where it raises, one for each request, so that a bad query fails only its own request."""
    try:
        found = dict(zip(queries, _checked(retriever.search(queries, batch[0].top_k)), strict=True))
    except RetrievalError:
        logger.exception("the search of %d queries failed", len(queries))
        return [None] * len(batch)
    except Exception:
        if len(batch) > 1:
            return [_found(retriever, [waiting], waiting.missing)[0] for waiting in batch]
        logger.exception("the search of %d queries failed", len(queries))
        return [None]
    return [found] * len(batch)


def _checked(results: list[Found]) -> list[Found]:
    """The results, if every score is a number: JSON has no other."""
    if not all(math.isfinite(passage.score) for found in results for passage in found):
        raise RetrievalError("the retriever gave a score that is not finite")
    return results
