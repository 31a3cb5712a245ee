"""The Ray actor that plays groups, and its manager. Imports verl.

verl's contract for a manager of agent loops: samples reach its queue, and the trainer learns their keys. Its own loop
class runs one trajectory at a time and hears nothing of the group, and its worker stores a trajectory before its
siblings are done; so this worker takes whole questions (docs/decisions/0009-verl-adapters.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from factagent.distributed.overrides import servers_of
from factagent.distributed.play import CreditedGroup, GroupPlayer
from factagent.distributed.policy import ServerPolicy
from factagent.distributed.rows import Row, rows_of
from factagent.distributed.servers import open_servers
from factagent.policies.transformers import load_tokenizer
from factagent.train.cluster import ClusterConfig
from factagent.train.config import RunConfig
from factagent.types import Group, Question

PARTITION = "train"


@dataclass(frozen=True)
class PlayedGroup:
    """What the driver keeps of a group: the record, and where its rows are. Tokens to train on stay in the queue."""

    position: int
    group: Group
    credit: Any
    problems: tuple[str, ...]
    dropped: bool
    credit_s: float
    keys: list[str]
    tags: list[dict[str, Any]]


def run_config(config: DictConfig) -> RunConfig:
    """The run's configuration, which travels inside verl's."""
    return RunConfig.model_validate_json(config.factagent.config)


class GroupWorker:
    """Plays and credits groups, and puts their rows into verl's queue.

    Args:
        config: verl's configuration, with ours inside.
        llm_client: verl's sampling servers.
        teacher_client: unused; part of verl's contract.
        reward_loop_worker_handles: unused; rewards are part of credit.
    """

    def __init__(
        self, config: DictConfig, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> None:
        tq.init()
        run = run_config(config)
        cluster = run.cluster or ClusterConfig()
        self._aggregation = run.learner.aggregation
        urls = tuple(config.factagent.servers)
        self._player = GroupPlayer(
            run,
            _policy(config, run, llm_client, run.rollout.temperature),
            _policy(config, run, llm_client, 0.0),
            lambda: open_servers(servers_of(run), urls),
            episodes_at_once=cluster.episodes_at_once,
            timeout_s=cluster.episode_timeout_s,
        )

    async def play(self, tasks: Sequence[tuple[int, Question]], step: int) -> list[PlayedGroup]:
        """Play the groups of (position, question) in a training step; their rows are in the queue when this returns."""
        return list(await asyncio.gather(*(self._play(position, question, step) for position, question in tasks)))

    async def evaluate(self, tasks: Sequence[tuple[int, Question]]) -> list[tuple[int, Group]]:
        """Play each question once, greedily."""
        groups = await asyncio.gather(*(self._player.evaluate(question) for _, question in tasks))
        return [(position, group) for (position, _), group in zip(tasks, groups, strict=True)]

    async def _play(self, position: int, question: Question, step: int) -> PlayedGroup:
        played = await self._player.play(question, step)
        rewards = [trajectory.outcome for trajectory in played.credit.trajectories]
        rows = rows_of(played.samples, step, position, rewards, self._aggregation)
        if rows:
            await _put(rows)
        return _record(position, played, rows)


class GroupManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """Deals questions to the workers, which verl spreads over the nodes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(GroupWorker)

    def start(self, questions: Sequence[Question], step: int) -> list[Any]:
        """Begin to play a step's groups; what comes back goes to `collect`."""
        return [
            worker.play.remote(tasks, step)
            for worker, tasks in zip(self.agent_loop_workers, self._deal(questions), strict=True)
        ]

    def collect(self, started: list[Any]) -> list[PlayedGroup]:
        """Wait until all groups are played; they come in the order of their questions.

        Raises:
            ray.exceptions.RayError: a worker died, or met a defect. Failing servers raise nothing here.
        """
        return sorted((one for part in ray.get(started) for one in part), key=lambda one: one.position)

    def evaluate(self, questions: Sequence[Question]) -> list[Group]:
        """Play each question once, greedily, in order."""
        started = [
            worker.evaluate.remote(tasks)
            for worker, tasks in zip(self.agent_loop_workers, self._deal(questions), strict=True)
        ]
        return [
            group for _, group in sorted((one for part in ray.get(started) for one in part), key=lambda one: one[0])
        ]

    def _deal(self, questions: Sequence[Question]) -> list[list[tuple[int, Question]]]:
        count = len(self.agent_loop_workers)
        return [list(enumerate(questions))[index::count] for index in range(count)]


def _policy(config: DictConfig, run: RunConfig, server: Any, temperature: float) -> ServerPolicy:
    """The sampling servers as a policy, within the prompt budget of the engine in this process."""
    from transformers import AutoConfig

    path, rollout = config.actor_rollout_ref.model.path, run.rollout
    context = getattr(AutoConfig.from_pretrained(path), "max_position_embeddings", None)
    limits = [rollout.max_prompt_tokens, context - rollout.max_new_tokens if context else None]
    name = config.actor_rollout_ref.rollout.name
    return ServerPolicy(
        server,
        load_tokenizer(path),
        temperature=temperature,
        top_p=rollout.top_p if temperature else 1.0,
        max_prompt_tokens=min(limit for limit in limits if limit is not None),
        max_new_tokens=rollout.max_new_tokens,
        stop_ids=_end_tokens(path),
        named_draws=name == "hf_cpu",
        options=_OPTIONS.get(name),
    )


_OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {"include_stop_str_in_output": True},
    "sglang": {"no_stop_trim": True},
}
"""What each sampler must be told so that a stop string stays in the reply."""


def _end_tokens(path: str) -> list[int]:
    """The end tokens of the model's generation config, where it has one."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        return []
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


async def _put(rows: Sequence[Row]) -> None:
    await tq.async_kv_batch_put(
        keys=[row.key for row in rows],
        fields=list_of_dict_to_tensordict([row.fields for row in rows]),
        tags=[row.tags for row in rows],
        partition_id=PARTITION,
    )


def _record(position: int, played: CreditedGroup, rows: Sequence[Row]) -> PlayedGroup:
    return PlayedGroup(
        position,
        played.group,
        played.credit,
        played.problems,
        played.dropped,
        played.credit_s,
        [row.key for row in rows],
        [row.tags for row in rows],
    )
