"""A chat server that is real where it matters: a transformers model behind the OpenAI protocol, on loopback.

    with ChatServer(policy) as server:
        ...  # ask server.url; server.bodies holds what was asked

It serves `/v1/models`, `/v1/chat/completions` and `/v1/completions`, streamed or not, with token counts, stop strings
and the refusal of prompts that are too long, worded as vLLM words it. One thread owns the model.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from factagent.evaluation.config import TINY
from factagent.evaluation.local import model_path
from factagent.policies.sampling import generate_batch, uniforms_of
from factagent.policies.transformers import SamplingSettings, TransformersPolicy
from factagent.types import Message


@dataclass(frozen=True)
class Completion:
    """One reply, with its counts."""

    text: str
    finish_reason: str
    prompt_tokens: int
    response_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.response_tokens
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.response_tokens}
        return {**counts, "total_tokens": total}


class PromptTooLong(Exception):
    """The prompt and the reply asked for do not fit the model's context."""


class ChatServer:
    """Serve `policy` under `name`; only its model and codec are used, its settings are those of each request."""

    def __init__(self, policy: TransformersPolicy, name: str = "tiny") -> None:
        self.policy = policy
        self.name = name
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        """The `Authorization` header of each request."""
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._socket = socket.socket()
        self._server = uvicorn.Server(uvicorn.Config(self._app(), log_level="error", lifespan="off", ws="none"))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    def __enter__(self) -> ChatServer:
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(128)  # who connects before uvicorn accepts waits in the queue
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()
        self._model_thread.shutdown()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "tests"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        body = await self._read(request)
        messages = [Message(each["role"], each["content"]) for each in body["messages"]]
        return await self._answer(body, self.policy.codec.encode_prompt(messages), "chat.completion")

    async def _complete(self, request: Request) -> Response:
        body = await self._read(request)
        prompt = body["prompt"]
        ids = self.policy.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        return await self._answer(body, ids, "text_completion")

    async def _read(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        return body

    async def _answer(self, body: dict[str, Any], ids: Sequence[int], kind: str) -> Response:
        if body["model"] != self.name:
            problem = {"message": f"The model `{body['model']}` does not exist.", "code": 404}
            return JSONResponse({"error": {**problem, "type": "NotFoundError"}}, 404)
        loop = asyncio.get_running_loop()
        try:
            completion = await loop.run_in_executor(self._model_thread, self._generate, body, tuple(ids))
        except PromptTooLong as error:
            return JSONResponse({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}, 400)
        if not body.get("stream"):
            return JSONResponse(_whole(kind, self.name, completion))
        counted = (body.get("stream_options") or {}).get("include_usage", False)
        return StreamingResponse(_events(kind, self.name, completion, counted), media_type="text/event-stream")

    def _generate(self, body: dict[str, Any], ids: tuple[int, ...]) -> Completion:
        codec, model = self.policy.codec, self.policy.model
        limit = body.get("max_tokens") or 16
        context = model.config.max_position_embeddings
        if len(ids) + limit > context:
            raise PromptTooLong(
                f"This model's maximum context length is {context} tokens. However, you requested {limit} output "
                f"tokens and your prompt contains at least {len(ids)} input tokens. Please reduce the length."
            )
        (sample,) = generate_batch(
            model,
            [ids],
            uniforms_of([("server", body.get("seed") or 0)], limit),
            temperature=body.get("temperature", 1.0),
            max_new_tokens=limit,
            stop_ids=sorted(codec.stop_ids),
            pad_id=self.policy.tokenizer.pad_token_id or 0,
            max_batch_tokens=self.policy.settings.batch_tokens,
            autocast=False,
        )
        text = codec.decode(sample.response_ids)
        finish = sample.finish_reason
        for stop in body.get("stop") or ():
            if stop in text:
                text, finish = text.partition(stop)[0], "stop"
        return Completion(text, finish, len(ids), len(sample.response_ids))


MAX_TOKENS = 60


def serve_tiny() -> ChatServer:
    """The packaged tiny policy, greedy and in fp32, behind a server."""
    torch.set_num_threads(1)
    settings = SamplingSettings(temperature=0, max_new_tokens=MAX_TOKENS)
    return ChatServer(TransformersPolicy.load(model_path(TINY), settings, device="cpu", dtype=torch.float32))


def _whole(kind: str, model: str, completion: Completion) -> dict[str, Any]:
    content = (
        {"text": completion.text}
        if kind == "text_completion"
        else {"message": {"role": "assistant", "content": completion.text}}
    )
    choice = {"index": 0, **content, "finish_reason": completion.finish_reason, "logprobs": None}
    names = {"id": "c-1", "object": kind, "created": 0, "model": model}
    return {**names, "choices": [choice], "usage": completion.usage}


async def _events(kind: str, model: str, completion: Completion, counted: bool) -> AsyncIterator[bytes]:
    for choices, usage in _chunks(kind, completion, counted):
        name = kind if kind == "text_completion" else f"{kind}.chunk"
        chunk = {"id": "c-1", "object": name, "created": 0, "model": model, "choices": choices, "usage": usage}
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def _chunks(kind: str, completion: Completion, counted: bool) -> Iterator[tuple[list[Any], dict[str, int] | None]]:
    """A first chunk with the role only, the text in pieces, the reason why it ended, and the counts if asked for."""

    def choice(text: str, finish: str | None = None) -> list[Any]:
        content = {"text": text} if kind == "text_completion" else {"delta": {"content": text}}
        return [{"index": 0, **content, "finish_reason": finish}]

    yield choice(""), None
    for start in range(0, len(completion.text), 7):
        yield choice(completion.text[start : start + 7]), None
    yield choice("", completion.finish_reason), None
    if counted:
        yield [], completion.usage
