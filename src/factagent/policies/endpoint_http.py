"""What stands between the endpoint policy and the wire: the client with its limits, the reply, and what errors mean.

The SDK reads whatever a server sends. Here a body is bounded before it is read, a reply is checked piece by piece, and
each way in which a call can fail becomes a `CallError`, which knows whether another try may help.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx2  # the transport that the SDK speaks through
import openai
from openai import AsyncOpenAI

from factagent.http import CallFailure, FailureKind, printable, retry_after_s
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


class CallError(CallFailure):
    """One call failed.

    Args:
        kind: what went wrong.
        detail: the same in words, with what to do; the key may still stand in it, see `explain`.
        again: another try may help. None: as for any client, see `CallFailure.is_passing`.
        retry_after_s: seconds that the server asks to wait, None where it does not say.
        too_long: the server says that the prompt does not fit its context.
    """

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        again: bool | None = None,
        retry_after_s: float | None = None,
        too_long: bool = False,
    ) -> None:
        super().__init__(kind, detail, retry_after_s=retry_after_s)
        self.again = again
        self.too_long = too_long

    @property
    def is_passing(self) -> bool:
        """True where another try may succeed."""
        return super().is_passing if self.again is None else self.again


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
        raise CallError(FailureKind.BAD_HTTP, "it compresses its replies, although asked not to")
    stream = response.stream
    if not isinstance(stream, httpx2.AsyncByteStream):
        raise TypeError("the reply of a synchronous client")
    source: httpx2.AsyncByteStream = stream

    class Bounded(httpx2.AsyncByteStream):
        read = 0

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in source:
                self.read += len(piece)
                if self.read > limit:
                    raise CallError(
                        FailureKind.TOO_LARGE, f"its reply is longer than {limit} bytes; none of max_tokens is"
                    )
                yield piece

        async def aclose(self) -> None:
            await source.aclose()

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
            raise CallError(
                FailureKind.BAD_SCHEMA,
                f"its reply is no completion (a {type(piece).__name__} without a list of choices)",
            )
        self._count(getattr(piece, "usage", None))
        if not choices:
            return False  # the chunk with the token counts has none
        choice = choices[0]
        message = getattr(choice, "delta", None) or getattr(choice, "message", None) or choice
        text = getattr(message, "text" if message is choice else "content", None)
        finish = getattr(choice, "finish_reason", None)
        if not isinstance(text, str | None) or not isinstance(finish, str | None):
            raise CallError(FailureKind.BAD_SCHEMA, "its reply has a choice whose text or finish_reason is no string")
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
            problem = "its reply holds no choices; a server that cannot stream needs stream = false"
            raise CallError(FailureKind.BAD_SCHEMA, problem)
        if self._finish is None:
            raise CallError(FailureKind.RESET, "its reply broke off without a finish_reason")
        if self._finish in _BROKEN_OFF:
            raise CallError(FailureKind.RESET, f"it ended the reply with finish_reason '{self._finish}'")
        prompt_tokens, response_tokens = self._tokens
        return Generation(
            "".join(self._parts),
            finish_reason=_CUT_BY.get(self._finish, "stop"),
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
        )

    def _count(self, usage: Any) -> None:
        read, written = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
        if type(read) is int and type(written) is int and min(read, written) >= 0:
            self._tokens = read, written


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
        return CallError(FailureKind.TIMEOUT, f"no answer in time ({_name(error)})")
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        return CallError(FailureKind.RESET, f"cannot be reached, or hung up ({_name(error)}); is the server running?")
    if isinstance(error, openai.APIError):
        return CallError(FailureKind.BAD_SCHEMA, f"it reports an error: {_said(error, secrets)}")
    detail = f"its reply cannot be read ({type(error).__name__}); is this the base URL of an API?"
    return CallError(FailureKind.BAD_JSON, detail)


def _explain_status(error: openai.APIStatusError, settings: EndpointSettings, secrets: Sequence[str]) -> CallError:
    status, said = error.status_code, _said(error, secrets)
    if status in _TOO_LONG_STATUSES and (error.code == "context_length_exceeded" or _TOO_LONG.search(said)):
        return CallError(FailureKind.HTTP_STATUS, said, too_long=True)
    step = ""
    if status in (401, 403):
        step = f"; the key is read from the environment variable {settings.api_key_env}"
    elif status == 404:
        step = "; check the model's name, and that the base URL is complete (most end in /v1)"
    elif 300 <= status < 400:
        step = "; redirects are not followed, give the address where the API is"
    return CallError(
        FailureKind.HTTP_STATUS,
        f"HTTP {status}: {said}{step}",
        again=status in AGAIN_STATUSES or status >= 500,
        retry_after_s=retry_after_s(error.response.headers.get("retry-after")),
    )


def _said(error: openai.APIError, secrets: Sequence[str]) -> str:
    """The server's own message: one line, cut, without the key where the server repeats it."""
    body: Any = error.body
    while isinstance(body, dict):
        body = next((body[key] for key in ("message", "error", "detail") if body.get(key)), str(body))
    text = str(body or "no message")
    for secret in secrets:
        text = text.replace(secret, "***")
    return printable(text, SHOWN_CHARS)


def _name(error: BaseException) -> str:
    """The most telling name of an error: the SDK hides the transport's behind its own."""
    return type(error.__cause__ or error).__name__
