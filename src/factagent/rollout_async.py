"""The asyncio driver of episodes: for policies and retrievers behind a network.

It feeds the same state machine as the lock-step driver (`rollout.py`); for a policy and a retriever that answer a
request the same way whenever it is asked, both give the same trajectories, whatever the concurrency. A server that
fails ends its own episode only, with a stop reason that leaves the statistics (reliability.md, R7), and the message of
the failure stands beside the trajectory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from factagent.episode import Episode, NeedsPassages
from factagent.policies.base import AsyncPolicy, GenerationRequest, PolicyError
from factagent.retrieval.base import (
    AsyncEpisodeRetriever,
    AsyncRetriever,
    RetrievalError,
    SearchRequest,
    search_one,
)
from factagent.types import StopReason, Trajectory

EPISODE_TIMEOUT_S = 1800.0
"""Seconds that one episode may take, waiting for its turn at a server included."""

OnStep = Callable[[Episode], None]
"""Called with the episode each time that its state has grown by a step."""

Key = tuple[str | int, ...]
"""Names the random draws of an episode; the round is appended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished episode: its record, and what failed where its stop reason is a failure."""

    trajectory: Trajectory
    error: str | None = None
    """The failure's message; None where the episode came to its own end."""


async def run_episode(
    episode: Episode,
    key: Key,
    policy: AsyncPolicy,
    retriever: AsyncRetriever | AsyncEpisodeRetriever,
    *,
    timeout_s: float | None = EPISODE_TIMEOUT_S,
    on_step: OnStep | None = None,
) -> Finished:
    """Drive one episode to its end, in place, from whatever state it is in.

    A failed search, a failed generation and the time-out end it with `retrieval_failed`, `policy_failed` and `timeout`.
    Other errors are defects and are raised. Cancelling the call cancels what it waits for; the episode then stays where
    it was and may be driven on.

    Args:
        key: names the random draws of the episode.
        timeout_s: seconds for the whole episode; None for no limit.
        on_step: called after each step, in the event loop, so it must be quick.
    """
    try:
        async with asyncio.timeout(timeout_s) as clock:
            await _drive(episode, key, policy, retriever, on_step)
    except RetrievalError as error:
        return _failed(episode, StopReason.RETRIEVAL_FAILED, str(error))
    except PolicyError as error:
        return _failed(episode, StopReason.POLICY_FAILED, str(error))
    except TimeoutError:
        if not clock.expired():
            raise  # somebody else's time-out, which should have come as an error of ours
        waited_for = "the retriever" if isinstance(episode.request, NeedsPassages) else "the policy"
        problem = f"the episode did not end within {timeout_s} s; it waited for {waited_for} last"
        return _failed(episode, StopReason.TIMEOUT, problem)
    return Finished(episode.trajectory)


async def run_many(
    episodes: Iterable[Episode],
    keys: Iterable[Key],
    policy: AsyncPolicy,
    retriever: AsyncRetriever | AsyncEpisodeRetriever,
    *,
    concurrency: int,
    timeout_s: float | None = EPISODE_TIMEOUT_S,
    on_step: OnStep | None = None,
) -> AsyncGenerator[tuple[int, Finished], None]:
    """Drive many episodes, at most `concurrency` at a time; yields (position, result) as they finish.

    Episodes are taken from the iterable when there is room, so a long set is never held as a whole. Whoever may leave
    the loop early closes the generator, which cancels what runs: `async with contextlib.aclosing(run_many(...))`.

    Args:
        keys: one an episode, in the same order.
        concurrency: episodes at a time. A policy that allows fewer requests at once makes episodes wait for their turn,
            which counts against `timeout_s`.

    Raises:
        ValueError: `concurrency` is below 1, or there is not one key an episode.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency} must be at least 1")
    waiting = enumerate(zip(episodes, keys, strict=True))
    running: dict[asyncio.Task[Finished], int] = {}

    def start(index: int, episode: Episode, key: Key) -> None:
        call = run_episode(episode, key, policy, retriever, timeout_s=timeout_s, on_step=on_step)
        running[asyncio.create_task(call, name=f"episode {index}")] = index

    try:
        while True:
            for index, (episode, key) in islice(waiting, concurrency - len(running)):
                start(index, episode, key)
            if not running:
                return
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=running.__getitem__):
                yield running[task], task.result()
                del running[task]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _drive(
    episode: Episode,
    key: Key,
    policy: AsyncPolicy,
    retriever: AsyncRetriever | AsyncEpisodeRetriever,
    on_step: OnStep | None,
) -> None:
    played = len(episode.state.steps)
    while (request := episode.request) is not None:
        if isinstance(request, NeedsPassages):
            search = SearchRequest(request.query, episode.state.question, (*key, episode.state.round))
            passages = await search_one(retriever, search, request.top_k)
            episode.feed_passages(passages[: request.top_k])
        else:
            episode.feed_generation(await policy.generate(GenerationRequest.of(request, key)))
        if on_step is not None and len(episode.state.steps) > played:
            played = len(episode.state.steps)
            on_step(episode)


def _failed(episode: Episode, reason: StopReason, problem: str) -> Finished:
    episode.fail(reason)
    return Finished(episode.trajectory, problem)
