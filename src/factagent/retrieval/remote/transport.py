"""One HTTP exchange with a retrieval server: bytes out, bytes in, every failure typed.

Replies are read as they come and only up to a limit. They are asked for uncompressed and a compressed one is refused,
so that a small reply cannot become a large one. Redirects are not followed.
"""

from __future__ import annotations

import os
import ssl
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

import httpx

from factagent.errors import UsageError
from factagent.http import CallFailure, FailureKind, TimeLimits, printable, retry_after_s
from factagent.retrieval.base import RetrievalError
from factagent.retrieval.wire import decode_error

_ERROR_BYTES = 4096
"""How much of an error's body is read for the message."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

_KINDS: tuple[tuple[type[httpx.TransportError], FailureKind], ...] = (
    (httpx.TimeoutException, FailureKind.TIMEOUT),
    (httpx.ConnectError, FailureKind.REFUSED),
    (httpx.ProxyError, FailureKind.REFUSED),
    (httpx.NetworkError, FailureKind.RESET),
    (httpx.TransportError, FailureKind.BAD_HTTP),
)
"""The first that fits decides."""

_CUT_OFF = ("Server disconnected", "peer closed connection")
"""How the protocol errors begin that are a broken connection; all others mean that the peer does not speak HTTP."""

_ADVICE = {
    FailureKind.REFUSED: "check the URL and that the server runs (factagent serve retrieval)",
    FailureKind.TIMEOUT: "look at the server's load, or allow more time (TimeLimits)",
    FailureKind.RESET: "look at the server's log: it, or a proxy before it, closes connections",
    FailureKind.BAD_HTTP: "check scheme, host and port: what listens there is no HTTP server as expected",
    FailureKind.HTTP_STATUS: "look at the server's log",
    FailureKind.BAD_JSON: "check that the URL is a retrieval server's",
    FailureKind.BAD_SCHEMA: "choose the protocol that the server speaks",
    FailureKind.TOO_LARGE: "ask for fewer passages, or raise max_reply_bytes",
    FailureKind.BUDGET: "look at the server's load and health, or raise the budget (TimeLimits.total_s)",
}


class RemoteRetrievalError(RetrievalError):
    """A search over the network failed.

    Attributes:
        url: the server, or the servers, separated by blanks.
        failure: its kind, status, tries and seconds.
    """

    def __init__(self, url: str, failure: CallFailure, secret: str | None = None) -> None:
        if secret:  # a server may send back what it was sent
            failure = failure.reworded(failure.detail.replace(secret, "***"))
        super().__init__(f"{url}: {failure.detail} ({failure.kind}, {failure.spent}); {_ADVICE[failure.kind]}")
        self.url, self.failure = url, failure

    @property
    def kind(self) -> FailureKind:
        """What went wrong, in one word."""
        return self.failure.kind


def base_url(url: str, path: str) -> str:
    """The URL of a server without a slash at its end, and without `path` where the user gave it along.

    Raises:
        UsageError: not http or https, no host, or parts that a server's URL must not have; passwords are not repeated.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"retrieval URL {url!r}: {error}; it must look like http://host:8000") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the retrieval URL of host {parts.hostname!r} holds a user or password; use token_env")
    wrong = parts.scheme not in ("http", "https") or not parts.hostname or port == 0
    if wrong or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"retrieval URL {url!r}: must look like http://host:8000, without query or fragment")
    prefix = parts.path.rstrip("/").removesuffix(path).rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, prefix, "", ""))


def read_token(variable: str | None) -> str | None:
    """The bearer token that an environment variable holds; None where no variable is named.

    Raises:
        UsageError: the variable is not set, or its value cannot be sent; the value is not repeated.
    """
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise UsageError(f"the environment variable {variable} is not set; put the retrieval server's token there")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"the environment variable {variable} holds characters that no token has (blank, newline, ..)")
    return token


def open_client(url: str, limits: TimeLimits, connections: int, token: str | None) -> httpx.AsyncClient:
    """A pooled client. Environment variables for proxies do not apply to a server on this machine."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "factagent"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    parts = urlsplit(url)
    local = parts.hostname in _LOOPBACK
    # Reading the certificates of all authorities takes longer than a search; plain HTTP on this machine needs none. An
    # empty context trusts nobody, so it could not be misused.
    plain = local and parts.scheme == "http"
    return httpx.AsyncClient(
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
        headers=headers,
        timeout=httpx.Timeout(connect=limits.connect_s, read=limits.read_s, write=limits.write_s, pool=limits.pool_s),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=30.0),
        follow_redirects=False,
        trust_env=not local,
    )


async def exchange(client: httpx.AsyncClient, method: str, url: str, content: bytes | None, limit: int) -> bytes:
    """Send one request and read the body of the reply, at most `limit` bytes.

    Raises:
        CallFailure: no reply, a status other than 200, a reply that is compressed or too long.
    """
    headers = None if content is None else {"Content-Type": "application/json"}
    try:
        async with client.stream(method, url, content=content, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                await _refuse_status(response)
            return await _read(response, limit)
    except httpx.TransportError as error:
        raise CallFailure(_kind_of(error), _in_words(error)) from error


async def _read(response: httpx.Response, limit: int) -> bytes:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        problem = f"the reply came compressed ({printable(encoding, 40)}), which was not asked for"
        raise CallFailure(FailureKind.BAD_HTTP, problem)
    announced = response.headers.get("content-length", "")
    too_large = f"the reply exceeds {limit} bytes"
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise CallFailure(FailureKind.TOO_LARGE, f"{too_large}: it announces {printable(announced, 40)}")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > limit:
            raise CallFailure(FailureKind.TOO_LARGE, too_large)
    return bytes(body)


async def _refuse_status(response: httpx.Response) -> NoReturn:
    """Raise the failure of a status, with the beginning of what the server says about it."""
    status = f"answered {response.status_code} {printable(response.reason_phrase, 60)}".rstrip()
    if response.has_redirect_location:
        location = printable(response.headers["location"])
        detail = f"{status} to {location}; redirects are not followed, give the server's own URL"
        raise CallFailure(FailureKind.HTTP_STATUS, detail, status=response.status_code)
    said = printable(decode_error(await _beginning(response)))
    raise CallFailure(
        FailureKind.HTTP_STATUS,
        f"{status}: {said}" if said else status,
        status=response.status_code,
        retry_after_s=retry_after_s(response.headers.get("retry-after")),
    )


async def _beginning(response: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) >= _ERROR_BYTES:
            break
    return bytes(body[:_ERROR_BYTES])


def _kind_of(error: httpx.TransportError) -> FailureKind:
    if isinstance(error, httpx.RemoteProtocolError) and str(error).startswith(_CUT_OFF):
        return FailureKind.RESET
    return next(kind for base, kind in _KINDS if isinstance(error, base))


def _in_words(error: httpx.TransportError) -> str:
    """`ReadTimeout`, or the class with what it says; httpx leaves the text of some errors empty."""
    said = printable(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
