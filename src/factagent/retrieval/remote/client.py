"""A retriever behind HTTP: pooled, bounded in time and size, retried, typed errors."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import chain
from types import TracebackType
from typing import Protocol, Self, TypeVar

from factagent.errors import UsageError
from factagent.http import CallFailure, PollRule, RetryRule, TimeLimits, printable, retrying
from factagent.retrieval.remote.transport import RemoteRetrievalError, base_url, exchange, open_client, read_token
from factagent.retrieval.wire import Call, Form, ReplyError, decode_reply, encode_request
from factagent.types import Passage

Result = TypeVar("Result")

PROTOCOLS = {
    "search-r1": Form.SEARCH_R1,
    "verl-agent": Form.VERL_AGENT,
    "research": Form.RESEARCH_BATCH,
    "zerosearch": Form.ZEROSEARCH,
}
"""Protocol -> the form in which the client speaks it."""

_NO_SUCH_ROUTE = (404, 405, 501)
"""What a server that knows no `/ready` answers there."""


class NetworkRetriever(Protocol):
    """An `AsyncRetriever` that holds connections: it belongs to one event loop, and is closed."""

    @property
    def url(self) -> str:
        """Where it asks: one URL, or several separated by blanks."""
        ...

    @property
    def has_scores(self) -> bool:
        """False where the protocol carries no scores: all are 0 then."""
        ...

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """See `Retriever.search`."""
        ...

    async def ready(self, within_s: float) -> None:
        """Wait until searches are answered; raise `RetrievalError` if they are not within that many seconds."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


async def all_or_first_failure(work: Sequence[Coroutine[object, object, Result]]) -> list[Result]:
    """The results of all, awaited at the same time; where one fails the others are cancelled and its error raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first


class RemoteRetriever:
    """An `AsyncRetriever` over one server.

    A batch larger than the server takes in one request is split, and the parts are sent at the same time. A search
    either returns all its results or raises; the budget covers all its parts, tries and waits. The client belongs to
    the event loop that first searches with it. Close it with `async with` or `aclose`.

    Args:
        url: the server's, with or without the protocol's path.
        protocol: a key of `PROTOCOLS`.
        limits: the time-outs and the budget of a search.
        retries: how often a request is tried; searches are idempotent.
        connections: most connections, and so most requests under way.
        queries_per_request: most queries in one request, where the protocol takes several.
        max_reply_bytes: a longer reply is refused unread.
        token_env: environment variable that holds the bearer token; it is read now, and shown nowhere.

    Raises:
        UsageError: an unknown protocol, a malformed URL, a missing token, or a number below 1.
    """

    def __init__(
        self,
        url: str,
        protocol: str = "search-r1",
        *,
        limits: TimeLimits | None = None,
        retries: RetryRule | None = None,
        connections: int = 64,
        queries_per_request: int = 64,
        max_reply_bytes: int = 32 << 20,
        token_env: str | None = None,
    ) -> None:
        if protocol not in PROTOCOLS:
            raise UsageError(f"unknown retrieval protocol '{protocol}'; choose one of {', '.join(PROTOCOLS)}")
        if min(connections, queries_per_request, max_reply_bytes) < 1:
            raise UsageError(f"{connections=}, {queries_per_request=} and {max_reply_bytes=} must be at least 1")
        self.protocol = protocol
        self._form = PROTOCOLS[protocol]
        self.url = base_url(url, self._form.path)
        self._limits, self._retries = limits or TimeLimits(), retries or RetryRule()
        self._per_request = queries_per_request if self._form.takes_many else 1
        self._max_reply_bytes = max_reply_bytes
        self._token = read_token(token_env)
        self._client = open_client(self.url, self._limits, connections, self._token)
        # Requests queue here rather than in the pool, whose cost grows with the square of those that wait.
        self._slots = asyncio.Semaphore(connections)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"RemoteRetriever({self.url!r}, {self.protocol!r})"

    @property
    def has_scores(self) -> bool:
        """False for `zerosearch`, whose passages all have the score 0."""
        return self._form is not Form.ZEROSEARCH

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Return the best passages of each query.

        Raises:
            RemoteRetrievalError: no well-formed reply within the tries and the budget.
            ValueError: `top_k` is below 1.
            RuntimeError: called on another event loop than before, or after `aclose`.
        """
        if top_k < 1:
            raise ValueError(f"top_k={top_k} must be at least 1")
        self._stay_on_loop()
        size = self._per_request
        calls = [
            Call(self._form, tuple(queries[start : start + size]), top_k, self.has_scores)
            for start in range(0, len(queries), size)
        ]
        return await self._all(calls)

    async def _all(self, calls: Sequence[Call]) -> list[tuple[Passage, ...]]:
        """All calls at the same time; the first that fails ends the others."""
        return list(chain.from_iterable(await all_or_first_failure([self._ask(call) for call in calls])))

    async def _ask(self, call: Call) -> list[tuple[Passage, ...]]:
        try:
            return await retrying(lambda: self._once(call), self._retries, self._limits.total_s)
        except CallFailure as failure:
            # The causes below might show the token in a traceback.
            raise RemoteRetrievalError(self.url, failure, self._token) from None

    async def _once(self, call: Call) -> list[tuple[Passage, ...]]:
        async with self._slots:
            reply = await exchange(
                self._client, "POST", f"{self.url}{call.form.path}", encode_request(call), self._max_reply_bytes
            )
        try:
            return decode_reply(call, reply, self.url)
        except ReplyError as error:
            raise CallFailure(error.kind, printable(error.problem, 400)) from error

    async def ready(self, within_s: float) -> None:
        """Wait until the server answers searches.

        Raises:
            RemoteRetrievalError: it does not within that many seconds, or answers what no wait will change.
        """
        self._stay_on_loop()
        try:
            await retrying(self._probe, PollRule(), within_s)
        except CallFailure as failure:
            raise RemoteRetrievalError(self.url, failure, self._token) from None

    async def _probe(self) -> None:
        """One look: our own servers say on `/ready` what a search would wait for, then any must answer a search."""
        url = f"{self.url}/ready"
        try:
            await exchange(self._client, "GET", url, None, self._max_reply_bytes)
        except CallFailure as failure:
            if failure.status not in _NO_SUCH_ROUTE:
                raise
        await self._once(Call(self._form, ("ready",), 1, self.has_scores))

    async def aclose(self) -> None:
        """Close the connections; a search afterwards is a `RuntimeError`."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def _stay_on_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(f"{self!r} belongs to another event loop; make one in each, or use SyncRetriever")


async def check_ready(
    url: str, within_s: float = 60.0, *, protocol: str = "search-r1", token_env: str | None = None
) -> None:
    """Wait until the server at `url` answers a search, for at most `within_s` seconds; to call before rollouts.

    Raises:
        RemoteRetrievalError: it does not, and why.
        UsageError: see `RemoteRetriever`.
    """
    async with RemoteRetriever(url, protocol, token_env=token_env) as retriever:
        await retriever.ready(within_s)
