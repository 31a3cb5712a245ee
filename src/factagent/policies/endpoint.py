"""A policy behind any OpenAI-compatible server: chat or completions, one request a generation, many at once.

Replies are streamed, so that a server which stopped producing is noticed however long a reply may take. Nothing that a
server does ends otherwise than in a reply or in a `PolicyError` within `total_timeout_s`: the body is bounded,
redirects are not followed, compressed bodies are refused (reliability.md, R8 and R9). The key comes from the
environment and appears in no message.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from factagent.episode import OVERLONG
from factagent.http import CallFailure, FailureKind, RetryRule, printable, retrying
from factagent.policies.base import GenerationRequest, PolicyError, seed_of
from factagent.policies.endpoint_http import CallError, Reply, call_errors, explain, open_client
from factagent.policies.endpoint_settings import EndpointSettings
from factagent.protocols.untrusted import ROLE_MARKS
from factagent.types import Generation, Message

if TYPE_CHECKING:
    from factagent.policies.chat import ChatCodec

_T = TypeVar("_T")

PLAIN_ROLES = {"system": "", "user": "User: ", "assistant": "Assistant: "}
"""How the plain template of completions opens a message; messages stand a blank line apart."""

_TURN_MARKS = re.compile("|".join(re.escape(mark) for mark in ROLE_MARKS if "think" not in mark), re.IGNORECASE)
"""What could open a turn in a reply that goes back to the server; `<think>` is a mark of our own format."""


class EndpointPolicy:
    """An `AsyncPolicy`. Use it on one event loop, and close it there (`async with`, or `close`).

    Args:
        settings: the endpoint.
        environment: where the key is looked up; the process's own by default.

    Raises:
        MissingExtraError: by the command line, where the extra `endpoint` is not installed.
        DataError: the tokenizer of the settings cannot be read.
    """

    def __init__(self, settings: EndpointSettings, *, environment: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        key = (os.environ if environment is None else environment).get(settings.api_key_env, "").strip()
        self._secrets = (key,) if key else ()
        self._client = open_client(settings, key)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._model = settings.model
        self._codec = _load_codec(settings.tokenizer)
        self._rule = RetryRule(settings.tries, settings.first_wait_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def generate(self, request: GenerationRequest) -> Generation:
        """The reply to one request; `Generation.prompt_tokens` is 0 where the server counts nothing.

        A prompt that the server calls too long comes back with finish reason "overlong".

        Raises:
            PolicyError: the endpoint refused, failed in every try, or did not finish within the total time-out.
        """
        async with self._slots:
            model = await self.model_name()
            parameters = self._parameters(request, model)
            try:
                return await self._try(lambda: self._call(parameters))
            except _TooLong:
                return Generation("", finish_reason=OVERLONG)

    async def model_name(self) -> str:
        """The model that is asked; a server that lists one only need not be told its name.

        Raises:
            PolicyError: the server lists none or several, or cannot be asked.
        """
        if self._model is None:
            names = await self._try(self._list_models)
            if len(names) != 1:
                listed = printable(", ".join(names[:10]) or "none")
                raise PolicyError(f"{self._where()}: name the model; the server lists {listed}")
            self._model = names[0]
        return self._model

    def _parameters(self, request: GenerationRequest, model: str) -> dict[str, Any]:
        settings = self.settings
        stop = list(settings.stop)
        if settings.api == "chat":
            prompt: dict[str, Any] = {"messages": chat_messages(request.messages)}
        elif self._codec is not None:
            prompt = {"prompt": list(self._codec.encode_prompt(request.messages))}
        else:
            prompt = {"prompt": plain_prompt(request.messages)}
            stop.append("\nUser:")
        optional: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p, "stop": stop or None}
        if settings.temperature != 0:
            # Servers take seeds of different widths; 31 bits fit them all.
            optional["seed"] = seed_of(request.key) % 2**31
        if settings.stream and settings.usage:
            optional["stream_options"] = {"include_usage": True}
        return {
            "model": model,
            **prompt,
            settings.max_tokens_key: settings.max_tokens,
            "stream": settings.stream,
            **{name: value for name, value in optional.items() if value is not None},
            "extra_body": settings.extra_body or None,
        }

    async def _call(self, parameters: Mapping[str, Any]) -> Generation:
        """One try."""
        client = self._client
        create: Any = client.chat.completions.create if self.settings.api == "chat" else client.completions.create
        reply = Reply()
        if not self.settings.stream:
            reply.add(await create(**parameters))
            return reply.generation()
        liveness = self.settings.liveness_timeout_s
        try:
            async with asyncio.timeout(liveness) as clock, await create(**parameters) as stream:
                async for chunk in stream:
                    if reply.add(chunk):
                        clock.reschedule(asyncio.get_running_loop().time() + liveness)
        except TimeoutError:
            if not clock.expired():
                raise
            raise CallError(FailureKind.TIMEOUT, f"no token for {liveness:g} s") from None
        return reply.generation()

    async def _list_models(self) -> list[str]:
        page: Any = await self._client.models.list()
        listed = getattr(page, "data", None)
        names = [getattr(model, "id", None) for model in listed] if isinstance(listed, list) else [None]
        if not all(isinstance(name, str) for name in names):
            raise CallError(FailureKind.BAD_SCHEMA, "what it says at /models is no list; give the model's name")
        return [str(name) for name in names]

    async def _try(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call until it succeeds, by the rule that all clients follow, within the total budget."""

        async def once() -> _T:
            try:
                return await call()
            except call_errors() as error:
                problem = explain(error, self.settings, self._secrets)
            raise problem

        try:
            return await retrying(once, self._rule, self.settings.total_timeout_s)
        except CallFailure as failure:
            problem = failure
        # Outside of the except blocks: a traceback tells the text of errors that are being handled, key included.
        if isinstance(problem, CallError) and problem.too_long:
            raise _TooLong
        raise PolicyError(f"{self._where()}: {problem.detail} ({problem.spent})")

    def _where(self) -> str:
        model = f", model '{self._model}'" if self._model else ""
        return f"endpoint {self.settings.url}{model}"


class _TooLong(Exception):
    """The server says that the prompt does not fit."""


def chat_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as a chat server takes them.

    Prompts of ours hold no mark of a turn (`protocols.untrusted`); a reply of the policy's may, and an `append`
    protocol sends it back, so such marks are broken there.
    """
    return [{"role": m.role, "content": _sendable(m)} for m in messages]


def plain_prompt(messages: Sequence[Message]) -> str:
    """Messages as one text for a completion, ending where the reply begins."""
    turns = [PLAIN_ROLES[message.role] + _sendable(message) for message in messages]
    return "\n\n".join([*turns, PLAIN_ROLES["assistant"].rstrip()])


def _sendable(message: Message) -> str:
    """The content with marks of turns broken in replies, and lone surrogates, which UTF-8 lacks, shown as "?"."""
    content = message.content
    if message.role == "assistant":
        content = _TURN_MARKS.sub(lambda found: f"{found.group()[0]} {found.group()[1:]}", content)
    return content.encode("utf-8", "replace").decode("utf-8")


def _load_codec(directory: Path | None) -> ChatCodec | None:
    if directory is None:
        return None
    from factagent.policies.chat import ChatCodec
    from factagent.policies.transformers import load_tokenizer

    return ChatCodec(load_tokenizer(directory))
