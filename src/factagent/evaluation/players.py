"""How questions are played: in lock-step by a policy in this process, or one by one against an endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from factagent.data.corpus import read_facts
from factagent.episode import Episode
from factagent.evaluation.config import EXPERT, EndpointConfig, EvalConfig
from factagent.evaluation.local import load_evaluated, protocol_of
from factagent.evaluation.retrievers import open_async, open_blocking
from factagent.policies.base import AsyncPolicy, Policy
from factagent.policies.endpoint_settings import EndpointSettings
from factagent.policies.scripted import ScriptedExpert
from factagent.protocols.base import AgentProtocol
from factagent.retrieval.base import AsyncRetriever, RetrievalError, Retriever
from factagent.rollout import RolloutSettings, sample_groups
from factagent.rollout_async import run_episode
from factagent.types import Passage, Question, Trajectory

Played = tuple[Trajectory, str | None]
"""A trajectory, and what the server said where it failed."""


class Player(Protocol):
    """Plays questions of one set. `batch` of them are handed over at once, `concurrency` batches are under way."""

    @property
    def batch(self) -> int:
        """Questions a call."""
        ...

    @property
    def concurrency(self) -> int:
        """Calls at a time."""
        ...

    async def play(self, name: str, questions: Sequence[Question]) -> list[Played]:
        """Play each question of the set `name` once."""
        ...


@dataclass(frozen=True)
class LockStep:
    """Batches in lock-step. A batch blocks the event loop, so Ctrl-C takes effect when it is done and written."""

    protocol: AgentProtocol
    policy: Policy
    retriever: Retriever
    settings: RolloutSettings
    batch: int
    seed: int
    concurrency: int = 1

    async def play(self, name: str, questions: Sequence[Question]) -> list[Played]:
        """See `Player`."""
        retriever = _Noting(self.retriever)
        key = (self.seed, "eval", name)
        groups = sample_groups(questions, self.protocol, self.policy, retriever, self.settings, key)
        trajectories = [group.trajectories[0] for group in groups]
        return [(one, retriever.error if one.stop_reason.is_failure else None) for one in trajectories]


@dataclass(frozen=True)
class OneByOne:
    """Questions by themselves, many at once."""

    protocol: AgentProtocol
    policy: AsyncPolicy
    retriever: AsyncRetriever
    settings: RolloutSettings
    seed: int
    concurrency: int
    batch: int = 1

    async def play(self, name: str, questions: Sequence[Question]) -> list[Played]:
        """See `Player`."""
        played: list[Played] = []
        for question in questions:
            episode = Episode(question, self.protocol, max_rounds=self.settings.max_rounds, top_k=self.settings.top_k)
            key = (self.seed, "eval", name, question.id, 0)
            finished = await run_episode(episode, key, self.policy, self.retriever)
            played.append((finished.trajectory, finished.error))
        return played


class _Noting:
    """Keeps the message of a search that failed, which the lock-step driver turns into a stop reason."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self.error: str | None = None

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Search; see `Retriever`."""
        try:
            return self._retriever.search(queries, top_k)
        except RetrievalError as error:
            self.error = str(error)
            raise


@asynccontextmanager
async def open_player(config: EvalConfig) -> AsyncIterator[Player]:
    """The player of a configuration, with its policy and retriever."""
    protocol, settings = protocol_of(config.rollout), config.rollout.settings()
    if config.model.endpoint is None:
        policy: Policy = _expert(config, protocol) if config.model.path == EXPERT else load_evaluated(config)
        retriever = open_blocking(config.retriever)
        yield LockStep(protocol, policy, retriever, settings, config.batch_size, config.seed)
        return
    from factagent.policies.endpoint import EndpointPolicy

    settled = endpoint_settings(config, config.model.endpoint)
    async with EndpointPolicy(settled) as remote, open_async(config.retriever) as searcher:
        yield OneByOne(protocol, remote, searcher, settings, config.seed, config.concurrency)


def endpoint_settings(config: EvalConfig, endpoint: EndpointConfig) -> EndpointSettings:
    """How the endpoint is asked: its own keys, and those that the evaluation has for any model."""
    shared = {
        "temperature": config.rollout.temperature,
        "top_p": config.rollout.top_p if config.rollout.top_p < 1 else endpoint.top_p,
        "max_tokens": config.rollout.max_new_tokens,
        "concurrency": config.concurrency,
    }
    return EndpointSettings.model_validate(endpoint.model_dump() | shared)


def _expert(config: EvalConfig, protocol: AgentProtocol) -> ScriptedExpert:
    model = config.model
    facts = read_facts(model.facts) if model.facts else {}
    return ScriptedExpert(protocol.prompt.style, model.noise, facts, config.seed, protocol=protocol.name)
