"""What stands between the endpoint policy and the wire: the client with its limits, the reply, and what errors mean.

The SDK reads whatever a server sends. Here a body is bounded before it is read, a reply is checked piece by piece, and
each way in which a call can fail becomes a `CallError`, which knows whether another try may help.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import httpx2  # the transport that the SDK speaks through
import openai
from openai import AsyncOpenAI

from factagent.protocols.untrusted import plain_line
from factagent.types import Generation

if TYPE_CHECKING:
    from factagent.policies.endpoint_settings import EndpointSettings

AGAIN_STATUSES = frozenset({408, 409, 429})
"""Statuses below 500 after which another try may help."""

SHOWN_CHARS = 300
"""How much of a server's message an error repeats."""

_BODY_BYTES = 1 << 20
_TOKEN_BYTES = 4096
"""A body may hold the first plus the second for each token asked for: a streamed token takes a few hundred bytes."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|window|size)|maximum (model|sequence|input) length"
    r"|max_model_len|maximum number of tokens|prompt is too long|input is too long|too many (input )?tokens"
    r"|inputs` (tokens|must)",
    re.IGNORECASE,
)
"""How servers say that a prompt does not fit: OpenAI, vLLM, SGLang, TGI, llama.cpp and others word it differently."""

_TOO_LONG_STATUSES = frozenset({400, 413, 422})
_CUT_BY = {"length": "length", "content_filter": "content_filter"}
_BROKEN_OFF = frozenset({"abort", "error"})


class CallError(Exception):
    """One call failed.

    Args:
        problem: what happened and what to do, without key and one line.
        again: another try may help.
        retry_after_s: seconds that the server asks to wait, 0 where it does not say.
        too_long: the server says that the prompt does not fit its context.
    """

    def __init__(
        self, problem: str, *, again: bool = False, retry_after_s: float = 0.0, too_long: bool = False
    ) -> None:
        super().__init__(problem)
        self.again = again
        self.retry_after_s = retry_after_s
        self.too_long = too_long


def open_client(settings: EndpointSettings, key: str) -> AsyncOpenAI:
    """The SDK's client: four time-outs, bounded pool and bodies, no redirects, no retries of its own."""
    read_s = settings.liveness_timeout_s if settings.stream else settings.total_timeout_s
    limit = _BODY_BYTES + _TOKEN_BYTES * settings.max_tokens

    async def prepare(request: httpx2.Request) -> None:
        if not key:
            del request.headers["Authorization"]

    async def bound(response: httpx2.Response) -> None:
        response.stream = _bounded(response, limit)

    http_client = openai.DefaultAsyncHttpxClient(
        timeout=openai.Timeout(
            connect=settings.connect_timeout_s,
            read=read_s,
            write=settings.write_timeout_s,
            pool=settings.pool_timeout_s,
        ),
        limits=httpx2.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency),
        follow_redirects=False,
        event_hooks={"request": [prepare], "response": [bound]},
    )
    return AsyncOpenAI(
        api_key=key or "none",  # the SDK insists on one; `prepare` takes it off
        base_url=settings.url,
        max_retries=0,
        default_headers={"Accept-Encoding": "identity"},
        http_client=http_client,
    )


def _bounded(response: httpx2.Response, limit: int) -> httpx2.AsyncByteStream:
    """The body of a response, which raises once it is longer than `limit` bytes.

    Raises:
        CallError: the body is compressed, so that its length says nothing.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise CallError("it compresses its replies, although asked not to")
    stream = response.stream

    class Bounded(httpx2.AsyncByteStream):
        read = 0

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in stream:
                self.read += len(piece)
                if self.read > limit:
                    raise CallError(f"its reply is longer than {limit} bytes; no reply of the length asked for is")
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()


class Reply:
    """A reply as it arrives, in one piece or in many."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._finish: str | None = None
        self._chosen = False
        self._tokens = (0, 0)

    def add(self, piece: Any) -> bool:
        """Take a completion, or a chunk of one; True where it holds something that was generated.

        Raises:
            CallError: this is no completion.
        """
        choices = getattr(piece, "choices", None)
        if not isinstance(choices, list):
            raise CallError(f"its reply is no completion (a {type(piece).__name__} without a list of choices)")
        self._count(getattr(piece, "usage", None))
        if not choices:
            return False  # the chunk with the token counts has none
        choice = choices[0]
        message = getattr(choice, "delta", None) or getattr(choice, "message", None) or choice
        text = getattr(message, "text" if message is choice else "content", None)
        finish = getattr(choice, "finish_reason", None)
        if not isinstance(text, str | None) or not isinstance(finish, str | None):
            raise CallError("its reply has a choice whose text or finish_reason is no string")
        self._chosen = True
        self._finish = finish or self._finish
        self._parts.append(text or "")
        # Thoughts that a server keeps apart are not part of the reply, but a sign of life.
        return bool(text or getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None))

    def generation(self) -> Generation:
        """The whole reply.

        Raises:
            CallError: there was none, or it broke off.
        """
        if not self._chosen:
            raise CallError("its reply holds no choices; a server that cannot stream needs stream = false")
        if self._finish is None:
            raise CallError("its reply broke off without a finish_reason", again=True)
        if self._finish in _BROKEN_OFF:
            raise CallError(f"it ended the reply with finish_reason '{self._finish}'", again=True)
        prompt_tokens, response_tokens = self._tokens
        return Generation(
            "".join(self._parts),
            finish_reason=_CUT_BY.get(self._finish, "stop"),
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
        )

    def _count(self, usage: Any) -> None:
        counts = tuple(getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
        if all(type(count) is int and count >= 0 for count in counts):
            self._tokens = counts


def call_errors() -> tuple[type[Exception], ...]:
    """What a call may raise: the SDK's errors, the transport's, and those of reading what is no JSON or too deep."""
    return (CallError, openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, ValueError, RecursionError)


def explain(error: Exception, settings: EndpointSettings, secrets: Sequence[str]) -> CallError:
    """What an error means, without the key in it."""
    if isinstance(error, CallError):
        return error
    if isinstance(error, openai.APIStatusError):
        return _explain_status(error, settings, secrets)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return CallError(f"no answer in time ({_name(error)})", again=True)
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        return CallError(f"cannot be reached, or hung up ({_name(error)}); is the server running?", again=True)
    if isinstance(error, openai.APIError):
        return CallError(f"it reports an error: {_said(error, secrets)}")
    return CallError(f"its reply cannot be read ({type(error).__name__}); is this the base URL of an API?")


def _explain_status(error: openai.APIStatusError, settings: EndpointSettings, secrets: Sequence[str]) -> CallError:
    status, said = error.status_code, _said(error, secrets)
    if status in _TOO_LONG_STATUSES and (error.code == "context_length_exceeded" or _TOO_LONG.search(said)):
        return CallError(said, too_long=True)
    again = status in AGAIN_STATUSES or status >= 500
    step = ""
    if status in (401, 403):
        step = f"; the key is read from the environment variable {settings.api_key_env}"
    elif status == 404:
        step = "; check the model's name, and that the base URL is complete (most end in /v1)"
    elif 300 <= status < 400:
        step = "; redirects are not followed, give the address where the API is"
    wait_s = _retry_after(error.response.headers.get("retry-after", "")) if again else 0.0
    return CallError(f"HTTP {status}: {said or 'no message'}{step}", again=again, retry_after_s=wait_s)


def _said(error: openai.APIError, secrets: Sequence[str]) -> str:
    """The server's own message: one line, cut, without the key where the server repeats it."""
    body: Any = error.body
    while isinstance(body, dict):
        body = next((body[key] for key in ("message", "error", "detail") if body.get(key)), str(body))
    text = plain_line(str(body or error.message))
    for secret in secrets:
        text = text.replace(secret, "***")
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def _retry_after(header: str) -> float:
    """Seconds that a `Retry-After` header asks for: a number, or a date; 0 where it says neither."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(0.0, seconds) if seconds < float("inf") else 0.0


def _name(error: BaseException) -> str:
    """The most telling name of an error: the SDK hides the transport's behind its own."""
    return type(error.__cause__ or error).__name__
