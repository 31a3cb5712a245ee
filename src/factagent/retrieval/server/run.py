"""Starts and stops the server: socket first, then the index, then requests until a signal, then a drain.

The port is taken before the index is loaded, so that a port in use is known at once; until the index is loaded the
server answers `/health` and refuses searches with 503.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
import uvloop
from starlette.types import ASGIApp

from factagent.errors import ServiceError, UsageError
from factagent.retrieval.base import Retriever
from factagent.retrieval.server.app import build_app
from factagent.retrieval.server.batching import SearchQueue
from factagent.retrieval.server.limits import Limits
from factagent.retrieval.server.metrics import Metrics

logger = logging.getLogger(__name__)

DRAIN_S = 3.5
"""After a signal: how long requests may go on waiting for their search."""
_CLOSE_S = 4
# Clients keep their connections in pools; one that closes under a pooled request costs a retry.
_KEEP_ALIVE_S = 75
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how to serve.

    Raises:
        UsageError: a number out of range, or a queue or batch that one allowed request would not fit.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port."""
    top_k: int = 3
    """Passages for a query whose request does not say."""
    token: str | None = field(default=None, repr=False)
    max_queue: int = 4096
    """Queries that may wait."""
    max_batch: int = 256
    """Queries in one search."""
    cache: int = 10_000
    """Results kept; 0 for none."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise UsageError(f"port {self.port}: must be between 0 and 65535")
        if not 1 <= self.top_k <= self.limits.top_k:
            raise UsageError(f"top-k {self.top_k}: must be between 1 and the limit of a request, {self.limits.top_k}")
        for name, value in (("queue", self.max_queue), ("batch", self.max_batch)):
            if value < self.limits.queries:
                raise UsageError(f"{name} {value}: must hold one request of {self.limits.queries} queries, the limit")


def serve(
    open_retriever: Callable[[], Retriever],
    settings: ServerSettings,
    on_ready: Callable[[str, Retriever], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; searches that wait then have `DRAIN_S` to be answered.

    Args:
        open_retriever: opens the index; called once, in the thread that searches.
        settings: where and how.
        on_ready: called with the URL and the retriever as soon as searches are answered.

    Raises:
        ServiceError: the address cannot be bound.
        FactAgentError: whatever `open_retriever` raises.
    """
    listener = _bind(settings.host, settings.port)
    url = _url(settings.host, listener.getsockname()[1])
    if settings.token is None and not _is_loopback(listener):
        logger.warning("%s is open to the network and asks for no token; see --token-env", url)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(open_retriever, settings, listener, lambda retriever: on_ready and on_ready(url, retriever)))


async def _serve(
    open_retriever: Callable[[], Retriever],
    settings: ServerSettings,
    listener: socket.socket,
    on_ready: Callable[[Retriever], object],
) -> None:
    metrics = Metrics()
    searches = SearchQueue(metrics, max_waiting=settings.max_queue, max_batch=settings.max_batch, cache=settings.cache)
    app = build_app(searches, metrics, top_k=settings.top_k, limits=settings.limits, token=settings.token)
    server = RetrievalServer(app, searches)
    with _stopped_by_signals(server):
        loading = asyncio.ensure_future(searches.load(open_retriever))
        loading.add_done_callback(lambda done: _loaded(done, server, on_ready))
        await server.serve([listener])
    if loading.done():
        loading.result()
    else:
        loading.cancel()


def _loaded(
    loading: asyncio.Future[Retriever], server: uvicorn.Server, on_ready: Callable[[Retriever], object]
) -> None:
    if loading.cancelled() or loading.exception() is not None:
        server.should_exit = True
    else:
        on_ready(loading.result())


class RetrievalServer(uvicorn.Server):
    """uvicorn over an application of `app.build_app`; a drain that lasts too long refuses what still waits."""

    def __init__(self, app: ASGIApp, searches: SearchQueue) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_S,
            )
        )
        self._searches = searches

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(DRAIN_S, self._searches.stop)
        await super().shutdown(sockets)
        self._searches.stop()


@contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Make signals end `server` quietly: uvicorn raises each again when it is done, to end the process by it."""

    def stop(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ServiceError(f"cannot listen on {host} port {port}: {reason}; choose another --port or --host") from error
    listener.setblocking(False)
    return listener


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
