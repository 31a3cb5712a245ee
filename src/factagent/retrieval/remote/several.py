"""One retriever over several servers: replicas of a corpus, or shards of it. They combine: a shard may be replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import Any, Self

from factagent.errors import UsageError
from factagent.http import CallFailure, RetryRule, TimeLimits, retrying
from factagent.retrieval.remote.client import NetworkRetriever, RemoteRetriever, all_or_first_failure
from factagent.retrieval.remote.transport import RemoteRetrievalError
from factagent.types import Passage

_ONE_TRY = RetryRule(tries=1)
FIRST_REST_S = 1.0
"""How long a replica rests after its first failure; each further one in a row doubles it."""
LONGEST_REST_S = 30.0


class _Several:
    """What both share: their servers, opened and closed together."""

    def __init__(self, servers: Sequence[NetworkRetriever]) -> None:
        if not servers:
            raise UsageError("no retrieval server given; name at least one URL")
        self._servers = tuple(servers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """All URLs, separated by blanks."""
        return " ".join(server.url for server in self._servers)

    async def aclose(self) -> None:
        """Close the connections to all servers."""
        for server in self._servers:
            await server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


class ShardedRetriever(_Several):
    """An `AsyncRetriever` over servers that hold parts of one corpus, in the order of its passages.

    Each search asks all of them for `top_k` passages and keeps the best by score; equal scores stand in the order of
    the shards, then of their replies. Scores must be comparable: the same encoder, or BM25 with the document
    frequencies of the whole corpus. A shard that fails fails the search: the rest alone would be a wrong ranking.

    Raises:
        UsageError: no shard, or one whose protocol carries no scores.
    """

    def __init__(self, shards: Sequence[NetworkRetriever]) -> None:
        super().__init__(shards)
        for shard in shards:
            if not shard.has_scores:
                raise UsageError(f"{shard!r} gives no scores to merge by; shards must speak another protocol")

    @classmethod
    def of(cls, urls: Sequence[str], protocol: str = "search-r1", **options: Any) -> Self:
        """One `RemoteRetriever` a URL, with these options for all."""
        return cls([RemoteRetriever(url, protocol, **options) for url in urls])

    @property
    def has_scores(self) -> bool:
        """Always true."""
        return True

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Return the best passages of each query over all shards.

        Raises:
            RemoteRetrievalError: names the first shard that failed.
        """
        answers = await all_or_first_failure([self._ask(i, queries, top_k) for i in range(len(self._servers))])
        return [
            tuple(sorted(chain.from_iterable(parts), key=lambda passage: -passage.score)[:top_k])
            for parts in zip(*answers, strict=True)
        ]

    async def ready(self, within_s: float) -> None:
        """Wait until every shard answers."""
        await all_or_first_failure([server.ready(within_s) for server in self._servers])

    async def _ask(self, index: int, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        try:
            return await self._servers[index].search(queries, top_k)
        except RemoteRetrievalError as error:
            detail = f"shard {index + 1} of {len(self._servers)}: {error.failure.detail}"
            raise RemoteRetrievalError(error.url, error.failure.reworded(detail)) from error


@dataclass(slots=True)
class _Health:
    """How often a replica failed in a row, and until when (loop time, seconds) it is left alone."""

    failures: int = 0
    rests_until: float = 0.0

    def note_failure(self, now: float) -> None:
        self.failures += 1
        self.rests_until = now + min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(self.failures - 1, 30))


class ReplicatedRetriever(_Several):
    """An `AsyncRetriever` over servers of the same corpus.

    Searches go round; where a replica does not answer (transport, 429, 5xx) the next one is asked, and the failed one
    rests for a while that doubles up to 30 s. When all rest, all are asked nevertheless. Other failures, such as a
    reply of another form, are raised: they mean that the replicas are not the same.

    Args:
        replicas: the servers; give them one try each (`of` does), for this class tries again.
        limits: `total_s` is the budget of a search over all replicas and rounds.
        retries: how often all replicas are tried in turn.

    Raises:
        UsageError: no replica.
    """

    def __init__(
        self,
        replicas: Sequence[NetworkRetriever],
        *,
        limits: TimeLimits | None = None,
        retries: RetryRule | None = None,
    ) -> None:
        super().__init__(replicas)
        self._total_s = (limits or TimeLimits()).total_s
        self._retries = retries or RetryRule()
        self._health = [_Health() for _ in replicas]
        self._next = 0

    @classmethod
    def of(
        cls,
        urls: Sequence[str],
        protocol: str = "search-r1",
        *,
        limits: TimeLimits | None = None,
        retries: RetryRule | None = None,
        **options: Any,
    ) -> Self:
        """One `RemoteRetriever` a URL, with these options for all."""
        replicas = [RemoteRetriever(url, protocol, limits=limits, retries=_ONE_TRY, **options) for url in urls]
        return cls(replicas, limits=limits, retries=retries)

    @property
    def has_scores(self) -> bool:
        """True where all replicas give scores."""
        return all(server.has_scores for server in self._servers)

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Return the best passages of each query.

        Raises:
            RemoteRetrievalError: no replica answered within the tries and the budget; says why for each.
        """
        try:
            return await retrying(lambda: self._ask_in_turn(queries, top_k), self._retries, self._total_s)
        except CallFailure as failure:
            raise RemoteRetrievalError(self.url, failure) from None

    async def ready(self, within_s: float) -> None:
        """Wait until every replica answers: a run should begin with all of them."""
        await all_or_first_failure([server.ready(within_s) for server in self._servers])

    async def _ask_in_turn(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        failures: list[tuple[str, CallFailure]] = []
        for index in self._order():
            try:
                found = await self._servers[index].search(queries, top_k)
            except RemoteRetrievalError as error:
                if not _may_differ_elsewhere(error.failure):
                    raise
                self._health[index].note_failure(asyncio.get_running_loop().time())
                failures.append((error.url, error.failure))
            else:
                self._health[index] = _Health()
                return found
        said = " | ".join(f"{url}: {failure.detail}" for url, failure in failures)
        raise failures[-1][1].reworded(f"no replica answered: {said}")

    def _order(self) -> list[int]:
        """Indices of the replicas: the healthy ones from the next in turn on, then those that rest, soonest first."""
        size = len(self._servers)
        turn = [(self._next + i) % size for i in range(size)]
        self._next = (self._next + 1) % size
        now = asyncio.get_running_loop().time()
        return sorted(turn, key=lambda index: max(0.0, self._health[index].rests_until - now))


def _may_differ_elsewhere(failure: CallFailure) -> bool:
    return failure.is_passing or (failure.status is not None and failure.status >= 500)
