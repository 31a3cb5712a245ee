"""The ASGI application: searches in every form of `wire`, health, readiness, metrics, and the API document.

Every answer that is no result is `{"error": {"code", "message", "field"}}`. What the client did wrong is 4xx, a full or
loading server 503 with `Retry-After`, and a search that raised 500; nothing of the exception leaves the process.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from factagent.retrieval.server.batching import Found, SearchFailed, SearchQueue, Unavailable
from factagent.retrieval.server.limits import Limits, read_body
from factagent.retrieval.server.metrics import CONTENT_TYPE, Metrics
from factagent.retrieval.server.openapi import document
from factagent.retrieval.wire import RequestError, decode_request, encode_error, encode_reply

JSON = "application/json"
OPEN_PATHS = ("/health", "/ready")
"""Paths that need no token: whoever watches over the process asks there."""
SEARCH_PATHS = ("/retrieve", "/search", "/batch_search")
WATCH_AFTER_S = 0.02
"""From then on it is noticed when the client of a waiting search goes away."""
CLIENT_GONE = 499
"""Counted where nobody is left to answer; never sent."""


def build_app(
    searches: SearchQueue, metrics: Metrics, *, top_k: int = 3, limits: Limits | None = None, token: str | None = None
) -> ASGIApp:
    """The application over a queue of searches.

    Args:
        searches: where searches wait.
        metrics: where requests are counted; what `/metrics` shows.
        top_k: passages for a query whose request does not say.
        limits: what one request may ask for.
        token: required as `Authorization: Bearer TOKEN` on all but `OPEN_PATHS`, where given.
    """
    limits = limits or Limits()
    endpoints = _Endpoints(searches, metrics, limits, top_k, document(limits, top_k, token=token is not None))
    routes = [Route(path, endpoints.search, methods=["POST"]) for path in SEARCH_PATHS]
    routes += [
        Route("/health", endpoints.health),
        Route("/ready", endpoints.ready),
        Route("/metrics", endpoints.metrics),
        Route("/openapi.json", endpoints.openapi),
    ]
    app = Starlette(routes=routes, exception_handlers=_HANDLERS)
    app.router.redirect_slashes = False
    paths = frozenset(route.path for route in routes)
    return _Door(app, _Search(endpoints.search), metrics, paths, token)


class _Endpoints:
    def __init__(
        self, searches: SearchQueue, metrics: Metrics, limits: Limits, top_k: int, api: Mapping[str, object]
    ) -> None:
        self._searches, self._metrics, self._limits, self._top_k = searches, metrics, limits, top_k
        self._api = orjson.dumps(api, option=orjson.OPT_INDENT_2)

    async def search(self, request: Request) -> Response:
        began = time.perf_counter()
        call = decode_request(request.scope["path"], await read_body(request, self._limits.body_bytes))
        self._limits.check(call)
        results = await self._found(request, call.queries, call.top_k or self._top_k)
        response = Response(encode_reply(call, results), media_type=JSON)
        self._metrics.request_seconds.observe(time.perf_counter() - began)
        return response

    async def health(self, request: Request) -> Response:
        return Response(b'{"status":"alive"}', media_type=JSON)

    async def ready(self, request: Request) -> Response:
        self._searches.check_ready()
        return Response(b'{"status":"ready"}', media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        return Response(self._api, media_type=JSON)

    async def _found(self, request: Request, queries: Sequence[str], top_k: int) -> list[Found]:
        """Wait for the search, and give it up where the client goes away first."""
        results = self._searches.submit(queries, top_k)
        if results.done():
            return results.result()
        watch = _Watch(request.receive, lambda: self._searches.give_up(results))
        try:
            return await results
        except asyncio.CancelledError:
            if watch.gone:
                raise ClientDisconnect from None
            raise
        finally:
            watch.end()


class _Watch:
    """Calls back when the client goes away. It begins late: to watch a short search costs more than it saves."""

    def __init__(self, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._receive, self._on_gone = receive, on_gone
        self._handle = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)
        self._task: asyncio.Task[None] | None = None
        self.gone = False

    def end(self) -> None:
        self._handle.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._on_gone()


class _Search:
    """Searches as an application of their own: they are the traffic, and the router would cost as much again."""

    def __init__(self, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._endpoint(request)
        except Exception as error:
            kind = next(kind for kind in _HANDLERS if isinstance(error, kind))
            await (await _HANDLERS[kind](request, error))(scope, receive, send)
            if kind is Exception:
                raise  # unexpected: the server's log shall have it
        else:
            await response(scope, receive, send)


class _Door:
    """Outermost: asks for the token, counts every answer by path and code, and lets searches past the router."""

    def __init__(
        self, app: ASGIApp, search: ASGIApp, metrics: Metrics, paths: frozenset[str], token: str | None
    ) -> None:
        self._app, self._search, self._metrics, self._paths = app, search, metrics, paths
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        status = CLIENT_GONE

        async def counting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app_for(scope)(scope, receive, counting)
        finally:
            self._metrics.count(path, status)

    def _app_for(self, scope: Scope) -> ASGIApp:
        if not self._admits(scope):
            return _UNAUTHORISED
        return self._search if scope["path"] in SEARCH_PATHS and scope["method"] == "POST" else self._app

    def _admits(self, scope: Scope) -> bool:
        if self._token is None or scope["path"] in OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token, self._token)


def _error(status: int, code: str, message: str, field: str | None = None, **headers: str) -> Response:
    body = encode_error(RequestError(status, code, message, field))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, named, media_type=JSON)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # noqa: S101 - Starlette types handlers by Exception
    return _error(error.status, error.code, str(error), error.field)


async def _unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unavailable)  # noqa: S101
    return _error(503, error.code, str(error), retry_after=str(error.retry_after_s))


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, SearchFailed):
        return _error(500, "search_failed", str(error))
    return _error(500, "internal_error", "the server failed; its log says why")


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    codes = {404: "no_such_path", 405: "method_not_allowed"}
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _error(error.status_code, codes.get(error.status_code, "refused"), message, **(error.headers or {}))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


_UNAUTHORISED = _error(
    401, "unauthorised", "send the server's token as 'Authorization: Bearer TOKEN'", www_authenticate="Bearer"
)

_HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    RequestError: _refused,
    Unavailable: _unavailable,
    SearchFailed: _failed,
    HTTPException: _no_such_route,
    ClientDisconnect: _gone,
    Exception: _failed,
}
"""What answers each kind of error; the first that fits."""
