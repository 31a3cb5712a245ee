"""One question, asked: the policy of a model's name or address, the episode, and its record."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from factagent.episode import Episode
from factagent.errors import UsageError
from factagent.evaluation.config import TINY, EpisodeConfig
from factagent.evaluation.provenance import SourcedFact, sourced_facts
from factagent.policies.base import AsyncPolicy, GenerationRequest, Policy
from factagent.protocols import build_protocol
from factagent.retrieval.base import InThread, Retriever
from factagent.rollout_async import Finished, OnStep, run_episode
from factagent.types import Answer, Assert, Generation, Invalid, Passage, Question, Search, Step, Trajectory


@dataclass(frozen=True, slots=True)
class AskSettings:
    """What is asked of whom; the fields are the options of `factagent ask`."""

    question: str
    model: str
    model_name: str | None
    protocol: str
    prompt: str | None
    top_k: int
    max_rounds: int
    max_tokens: int | None
    timeout_s: float
    api_key_env: str

    @property
    def is_endpoint(self) -> bool:
        """Whether `model` is the address of a server."""
        return self.model.startswith(("http://", "https://"))

    @property
    def prompt_name(self) -> str:
        """The prompt; the tiny policy knows the terse one only."""
        return self.prompt or f"{self.protocol}-{'terse' if self.model == TINY else 'full'}"

    @property
    def reply_tokens(self) -> int:
        """The longest reply, in tokens."""
        default = 1024 if self.is_endpoint else 128 if self.model == TINY else 512
        return self.max_tokens or default


def run_ask(settings: AskSettings, retriever: Retriever, on_step: OnStep | None = None) -> Finished:
    """Play the question's episode, greedily.

    Raises:
        ConfigError: the protocol, the prompt, the model or its address is refused.
        MissingExtraError: by the command line, where the model needs an extra that is not installed.
    """
    protocol = build_protocol(settings.protocol, settings.prompt_name)
    question = Question("ask", settings.question, ())
    episode = Episode(question, protocol, max_rounds=settings.max_rounds, top_k=settings.top_k)

    async def play() -> Finished:
        async with _policy(settings) as policy:
            return await run_episode(
                episode, ("ask",), policy, InThread(retriever), timeout_s=settings.timeout_s, on_step=on_step
            )

    return asyncio.run(play())


@asynccontextmanager
async def _policy(settings: AskSettings) -> AsyncIterator[AsyncPolicy]:
    if not settings.is_endpoint:
        yield _Here(_load(settings))
        return
    from factagent.policies.endpoint import EndpointPolicy
    from factagent.policies.endpoint_settings import EndpointSettings

    try:
        endpoint = EndpointSettings(
            url=settings.model,
            model=settings.model_name,
            max_tokens=settings.reply_tokens,
            api_key_env=settings.api_key_env,
            total_timeout_s=settings.timeout_s,
            concurrency=1,
            tries=3,  # somebody is waiting
        )
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--model {settings.model}: {problem}") from error
    async with EndpointPolicy(endpoint) as policy:
        yield policy


def _load(settings: AskSettings) -> Policy:
    from factagent.evaluation.local import load_model, prepare_process

    prepare_process(os.cpu_count() or 1)
    config = EpisodeConfig(max_new_tokens=settings.reply_tokens)
    return load_model(settings.model, "auto", config, temperature=0.0)


class _Here:
    """A policy of this process, one request at a time, without blocking the event loop."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def generate(self, request: GenerationRequest) -> Generation:
        (generation,) = await asyncio.to_thread(self._policy.generate, [request])
        return generation


def record_of(settings: AskSettings, finished: Finished) -> dict[str, Any]:
    """The result as `--json` prints it; see docs/howto/ask.md."""
    trajectory = finished.trajectory
    return {
        "schema": 1,
        "question": settings.question,
        "answer": trajectory.answer,
        "stop_reason": trajectory.stop_reason.value,
        "error": finished.error,
        "facts": [_fact(sourced) for sourced in sourced_facts(trajectory)],
        "rounds": [_round(number, step) for number, step in enumerate(trajectory.steps, 1)],
        "tokens": _tokens(trajectory),
    }


def _fact(sourced: SourcedFact) -> dict[str, Any]:
    fact, passage = sourced.fact, sourced.passage
    return {
        "triple": list(fact.triple),
        "summary": fact.summary,
        "round": fact.assert_step + 1,
        "source_round": None if fact.source_step is None else fact.source_step + 1,
        "passage": None if passage is None else {"id": passage.id, "title": passage.title},
        "found_in_passage": sourced.found,
    }


def _round(number: int, step: Step) -> dict[str, Any]:
    action = step.action
    match action:
        case Search(query):
            found = step.observation.passages if step.observation is not None else ()
            content: dict[str, Any] = {"action": "search", "query": query, "passages": [_passage(p) for p in found]}
        case Assert(triples, summary):
            content = {"action": "assert", "triples": [list(triple) for triple in triples], "summary": summary}
        case Answer(response):
            content = {"action": "answer", "response": response}
        case Invalid(reason, detail):
            content = {"action": "invalid", "reason": reason, "detail": detail}
    return {"round": number, **content}


def _passage(passage: Passage) -> dict[str, Any]:
    return {"id": passage.id, "title": passage.title, "text": passage.text, "score": passage.score}


def _tokens(trajectory: Trajectory) -> dict[str, int | None]:
    """Tokens of all rounds; null where a round's are unknown."""
    generations = [step.generation for step in trajectory.steps]
    known = bool(generations) and all(generation.prompt_tokens for generation in generations)
    return {
        "prompt": sum(generation.prompt_tokens for generation in generations) if known else None,
        "response": sum(generation.sampled_tokens for generation in generations) if known else None,
    }
