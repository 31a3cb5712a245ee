"""A group on a cluster: its episodes played together, its credit assigned once, its samples made.

Nothing here knows verl or Ray. Credit runs in a thread of its own, so that a worker's other groups go on generating
while it does; a group stays in one worker, so no trajectory is sent anywhere to be compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from factagent.credit.assign import GroupCredit
from factagent.credit.rule_choice import assign
from factagent.episode import Episode
from factagent.evaluation.local import protocol_of
from factagent.policies.base import AsyncPolicy
from factagent.retrieval.base import AsyncRetriever
from factagent.rollout_async import Finished, run_episode
from factagent.train.config import RunConfig
from factagent.train.loop import samples_of
from factagent.train.samples import Sample
from factagent.types import Group, Question

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class CreditedGroup:
    """A group with its credit and the samples that the learner gets; none where fewer than two members survived.

    `problems` are the messages of the failures that ended members, `credit_s` the seconds that credit took.
    """

    group: Group
    credit: GroupCredit
    samples: list[Sample]
    problems: tuple[str, ...]
    credit_s: float

    @property
    def dropped(self) -> bool:
        """Whether the group gives nothing to learn from: too few members survived to compare them."""
        return not self.samples


class GroupPlayer:
    """Plays questions in groups, on one event loop.

    Args:
        config: the run.
        policy: samples for training.
        greedy: the same model, decoding greedily, for validation.
        retriever: opens the retriever; called once, on the event loop that searches with it.
        episodes_at_once: episodes under way at most; the others wait before their first prompt is made.
        timeout_s: of one episode, from when it is under way.
    """

    def __init__(
        self,
        config: RunConfig,
        policy: AsyncPolicy,
        greedy: AsyncPolicy,
        retriever: Callable[[], AsyncRetriever],
        *,
        episodes_at_once: int,
        timeout_s: float,
    ) -> None:
        self._config = config
        self._policy, self._greedy = policy, greedy
        self._open = retriever
        self._retriever: AsyncRetriever | None = None
        self._slots = asyncio.Semaphore(episodes_at_once)
        self._timeout_s = timeout_s
        self._protocol = protocol_of(config.rollout)
        self._encoder = config.credit.load_encoder()
        self._credit_thread = ThreadPoolExecutor(1, thread_name_prefix="credit")

    async def play(self, question: Question, step: int) -> CreditedGroup:
        """Sample the group of a question in a training step, and credit it."""
        key = (self._config.seed, "train", step)
        members = range(self._config.rollout.group_size)
        finished = await asyncio.gather(*(self._episode(question, member, self._policy, key) for member in members))
        group = Group(question, tuple(one.trajectory for one in finished))
        problems = tuple(one.error for one in finished if one.error is not None)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._credit_thread, self._credited, group, problems)

    async def evaluate(self, question: Question) -> Group:
        """Play a question once, greedily."""
        one = await self._episode(question, 0, self._greedy, ("eval",))
        return Group(question, (one.trajectory,))

    def _credited(self, group: Group, problems: tuple[str, ...]) -> CreditedGroup:
        began = time.perf_counter()
        (credit,) = assign([group], self._config.credit, self._encoder)
        seconds = time.perf_counter() - began
        samples = samples_of(
            [group],
            [credit],
            append=self._protocol.context == "append",
            compares_members=self._config.credit.compares_members,
        )
        return CreditedGroup(group, credit, samples, problems, seconds)

    async def _episode(self, question: Question, member: int, policy: AsyncPolicy, key: Key) -> Finished:
        rollout = self._config.rollout
        async with self._slots:
            if self._retriever is None:
                self._retriever = self._open()
            episode = Episode(
                question, self._protocol, member=member, max_rounds=rollout.max_rounds, top_k=rollout.top_k
            )
            return await run_episode(
                episode, (*key, question.id, member), policy, self._retriever, timeout_s=self._timeout_s
            )
