"""A search engine played by a language model (ZeroSearch; methods.md, section 7).

Any OpenAI-compatible endpoint can be the simulator; it is asked through the endpoint policy, with its limits, retries
and key. A draw named by the search decides whether useful or noisy documents are asked for. Question and gold answer
travel with each search, so a simulator never answers from those of another episode, whichever of the batch still
search. What fails is a `RetrievalError`: an episode is never shown an empty observation for it.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from factagent.episode import OVERLONG
from factagent.policies.base import AsyncPolicy, GenerationRequest, PolicyError, seed_of
from factagent.protocols.state import State
from factagent.retrieval.base import Found, RetrievalError, SearchRequest
from factagent.retrieval.noise import is_useful
from factagent.retrieval.simulator_prompts import SimulatorPrompt
from factagent.types import Passage

if TYPE_CHECKING:
    from factagent.policies.endpoint_settings import EndpointSettings

Result = TypeVar("Result")

ATTEMPTS = 2
"""Replies asked for, each under a seed of its own, until one holds a document."""

_MARK = re.compile(r"\bDoc[ \t]*+(\d{1,3})[ \t*]*+(?:\(Title:([^\n]{0,200}?)\)[ \t*]*+:?|:)")
"""Where a document begins: `Doc 1:`, or with a title, `Doc 1(Title: Lund)`."""

_END_OF_THOUGHT = "</think>"


def parse_documents(text: str, top_k: int) -> tuple[Passage, ...]:
    """The documents of a simulator's reply, at most `top_k`; empty where it holds none.

    Document n begins at the first mark `Doc n:` behind document n - 1, so a mark out of order is text. What stands
    before the first, and behind the last that is wanted, is dropped, and each document becomes one line.
    """
    text = text.rpartition(_END_OF_THOUGHT)[2]
    marks: list[re.Match[str]] = []
    for mark in _MARK.finditer(text):
        if int(mark[1]) == len(marks) + 1:
            marks.append(mark)
    ends = [*(mark.start() for mark in marks[1:]), len(text)][: len(marks)]
    documents = [
        ((mark[2] or "").strip(), " ".join(text[mark.end() : end].replace("**", "").split()))
        for mark, end in zip(marks, ends, strict=True)
    ]
    kept = [(title, body) for title, body in documents[:top_k] if body]
    return tuple(
        Passage(f"simulated-{seed_of((title, body)):016x}", title, body, 1 / rank)
        for rank, (title, body) in enumerate(kept, 1)
    )


class AsyncSimulator:
    """An `AsyncEpisodeRetriever` over a policy that writes documents.

    Args:
        policy: the simulator; it bounds how many requests run at once.
        prompt: what it is told.
        noise: p, the probability that a search is answered with noisy documents.
    """

    def __init__(self, policy: AsyncPolicy, prompt: SimulatorPrompt, noise: float) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise={noise} must lie in [0, 1]")
        self._policy = policy
        self._prompt = prompt
        self._noise = noise

    async def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        """The documents that the simulator writes for each request, or how it failed; see `EpisodeRetriever`."""
        return list(await asyncio.gather(*(self._search(request, top_k) for request in requests)))

    async def _search(self, request: SearchRequest, top_k: int) -> Found:
        useful = is_useful(request, self._noise)
        messages = self._prompt.render(request.query, request.question, top_k, useful=useful)
        for attempt in range(ATTEMPTS):
            key = (*request.key, "simulate", attempt)
            try:
                reply = await self._policy.generate(GenerationRequest(messages, State(request.question, 1), None, key))
            except PolicyError as error:
                return RetrievalError(f"simulated search: {error}")
            if reply.finish_reason == OVERLONG:
                return RetrievalError("simulated search: the simulator's context is too short for its prompt")
            if documents := parse_documents(reply.text, top_k):
                return documents
        return RetrievalError(
            f"simulated search: {ATTEMPTS} replies to prompt '{self._prompt.name}' hold no 'Doc 1: ...'; use a larger "
            "simulator, more max_tokens, or a prompt that it follows"
        )


class SimulatedRetriever:
    """An `EpisodeRetriever` for callers without an event loop: a batch is simulated concurrently, then returned.

    Args:
        settings: the endpoint; `concurrency` bounds the requests at a time.
        prompt: what the simulator is told.
        noise: p, the probability that a search is answered with noisy documents.
    """

    def __init__(self, settings: EndpointSettings, prompt: SimulatorPrompt, noise: float) -> None:
        self._settings = settings
        self._prompt = prompt
        self._noise = noise

    def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        """See `AsyncSimulator.search_for`."""
        return _run_apart(lambda: self._search_for(requests, top_k))

    async def _search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        from factagent.policies.endpoint import EndpointPolicy

        async with EndpointPolicy(self._settings) as endpoint:
            return await AsyncSimulator(endpoint, self._prompt, self._noise).search_for(requests, top_k)


def _run_apart(work: Callable[[], Coroutine[object, object, Result]]) -> Result:
    """Run a coroutine on an event loop of its own, in a thread, whether or not the caller runs in a loop."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            outcome.set_exception(error)

    # A daemon, so that a second Ctrl-C ends the process without waiting for the simulator.
    threading.Thread(target=run, name="simulator", daemon=True).start()
    return outcome.result()
