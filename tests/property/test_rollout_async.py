"""The asyncio driver gives what the lock-step driver gives, whatever the concurrency and whoever is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.episode import Episode
from factagent.policies.base import GenerationRequest, seed_of
from factagent.policies.scripted import ScriptedExpert
from factagent.protocols import build_protocol
from factagent.retrieval.base import RetrievalError
from factagent.rollout import run_episodes
from factagent.rollout_async import run_many
from factagent.types import Generation, Passage, Question, StopReason, Trajectory, Triple

some = settings(max_examples=settings().max_examples // 5)  # an example is a whole set of episodes

FACTS = {
    "1": (Triple("Anna", "born in", "Lund"), Triple("Anna", "works for", "Volvo")),
    "2": (Triple("Lund", "located in", "Sweden"),),
    "3": (Triple("Bo", "born in", "Oslo"),),
}
PASSAGES = [
    Passage("1", "Anna", "Anna was born in Lund. Anna works for Volvo."),
    Passage("2", "Lund", "Lund is located in Sweden."),
    Passage("3", "Bo", "Bo was born in Oslo."),
]
QUESTIONS = [
    Question("q0", "In which country was Anna born?", ("Sweden",), evidences=(*FACTS["1"][:1], *FACTS["2"])),
    Question("q1", "Where was Bo born?", ("Oslo",), evidences=FACTS["3"]),
    Question("q2", "Who employs Anna?", ("Volvo",), evidences=FACTS["1"][1:]),
    Question("q3", "Where is nowhere?", ("?",), evidences=(Triple("Nowhere", "located in", "nothing"),)),
]


class Shelf:
    """Finds passages that share a word with the query; fails for those that mention a forbidden word."""

    def __init__(self, forbidden: str) -> None:
        self.forbidden = forbidden

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        return [self.find(query)[:top_k] for query in queries]

    def find(self, query: str) -> tuple[Passage, ...]:
        words = set(query.lower().split())
        return tuple(p for p in PASSAGES if words & set(p.text.lower().replace(".", "").split()))


class SlowShelf(Shelf):
    """The same on an event loop, each search as late as its query says."""

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:  # type: ignore[override]
        await naps(seed_of(list(queries)))
        if self.forbidden and any(self.forbidden in query for query in queries):
            raise RetrievalError(f"no shelf for {queries}")
        return super().search(queries, top_k)


class SlowExpert:
    """The scripted expert as an `AsyncPolicy`, each reply as late as its key says."""

    def __init__(self, expert: ScriptedExpert) -> None:
        self.expert = expert

    async def generate(self, request: GenerationRequest) -> Generation:
        await naps(seed_of(request.key))
        (generation,) = self.expert.generate([request])
        return generation


async def naps(seed: int) -> None:
    """Give the turn to others a number of times."""
    for _ in range(Random(seed).randrange(6)):
        await asyncio.sleep(0)


def episodes(protocol: str, max_rounds: int, top_k: int) -> list[Episode]:
    built = build_protocol(protocol, f"{protocol}-full")
    return [Episode(q, built, member=m, max_rounds=max_rounds, top_k=top_k) for q in QUESTIONS for m in range(2)]


def keys(seed: int) -> list[tuple[str | int, ...]]:
    return [(seed, question.id, member) for question in QUESTIONS for member in range(2)]


async def gather(
    shelf: SlowShelf, expert: ScriptedExpert, seed: int, concurrency: int, *made: object
) -> list[Trajectory]:
    found: dict[int, Trajectory] = {}
    errors: dict[int, str | None] = {}
    run = run_many(
        episodes(*made),
        keys(seed),
        SlowExpert(expert),
        shelf,
        concurrency=concurrency,  # type: ignore[arg-type]
    )
    async with aclosing(run) as results:
        async for index, finished in results:
            assert index not in found
            found[index], errors[index] = finished.trajectory, finished.error
    for index, trajectory in found.items():
        assert trajectory.stop_reason.is_failure == (errors[index] is not None)
    return [found[index] for index in range(len(found))]


@some
@given(
    concurrency=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    noise=st.sampled_from([0.0, 0.4, 1.0]),
    protocol=st.sampled_from(["factagent", "react"]),
    max_rounds=st.integers(1, 6),
    top_k=st.integers(1, 3),
)
def test_both_drivers_play_the_same(
    concurrency: int, seed: int, noise: float, protocol: str, max_rounds: int, top_k: int
) -> None:
    expert = ScriptedExpert(noise=noise, passage_facts=FACTS, seed=seed)
    lockstep = episodes(protocol, max_rounds, top_k)
    run_episodes(lockstep, keys(seed), expert, Shelf(""))
    found = asyncio.run(gather(SlowShelf(""), expert, seed, concurrency, protocol, max_rounds, top_k))
    assert found == [episode.trajectory for episode in lockstep]


@some
@given(concurrency=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_a_failed_search_ends_its_own_episode_only(concurrency: int, seed: int) -> None:
    expert = ScriptedExpert(passage_facts=FACTS, seed=seed)
    healthy = asyncio.run(gather(SlowShelf(""), expert, seed, 1, "factagent", 6, 3))
    found = asyncio.run(gather(SlowShelf("Anna"), expert, seed, concurrency, "factagent", 6, 3))
    for trajectory, other in zip(found, healthy, strict=True):
        if trajectory.stop_reason is StopReason.RETRIEVAL_FAILED:
            assert trajectory.steps[-1].observation is None
            assert trajectory.steps[:-1] == other.steps[: len(trajectory.steps) - 1]
        else:
            assert trajectory == other
    failed = [trajectory.stop_reason is StopReason.RETRIEVAL_FAILED for trajectory in found]
    assert any(failed)
    assert not all(failed)
