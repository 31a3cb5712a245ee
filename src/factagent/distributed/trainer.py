"""verl's synchronous trainer over our groups, advantages, objective, evaluation and run directory. Imports verl.

What verl does: sampling servers, log-probabilities, the reference, backward and optimiser over all ranks, weights to
the samplers, checkpoints. What is replaced: where prompts come from, what an advantage is, how rows are cut into
optimiser steps, the loss, validation, and what is written down. These hooks are methods that verl does not promise, so
its version is pinned and `make test-verl` runs all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.debug import marked_timer

from factagent.distributed.alarms import alarm_of_rows
from factagent.distributed.loss import stats_of, weighted_loss
from factagent.distributed.rows import PER_TOKEN, Layout, lay_out, share_of_group
from factagent.distributed.worker import PARTITION, GroupManager, PlayedGroup, run_config
from factagent.errors import TryAgainError
from factagent.evaluation.rows import ResultRow, line_of
from factagent.evaluation.runner import QuestionResult, score, summarise
from factagent.runs import RunDirectory, read_metrics
from factagent.train.loop import questions_of_step, rollout_metrics
from factagent.train.loss import LossConfig, LossStats
from factagent.train.run import summarise_run
from factagent.train.setup import load_questions


class _Position:
    """In the place of verl's data loader: the questions of a step follow from seed and step, so it has no state."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class ClusterTrainer(PPOTrainerSync):  # type: ignore[misc]
    """Trains a run on verl.

    Args:
        config: verl's configuration; `config.factagent` holds ours, the run directory and the search servers.
    """

    agent_loop_manager: GroupManager
    role_worker_mapping: dict[Any, Any]

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self.run_config = run_config(config)
        self.run = RunDirectory.open(Path(config.factagent.run))
        self._open = ExitStack()
        self._open.enter_context(self.run.lock())
        self._questions, self._dev = load_questions(self.run_config.data)
        self._started: list[Any] = []
        self._played: list[PlayedGroup] = []
        self._layout = Layout([], [], 1)
        self._eval: dict[str, Any] | None = None
        self._last_eval: dict[str, Any] | None = None
        self._dev_results: list[QuestionResult] = []

    def close(self) -> None:
        """Give the run directory free."""
        self._open.close()

    # ---- questions, in the order of the engine in this process

    def _init_dataloader(self) -> None:
        schedule = self.run_config.schedule
        self.train_dataloader = _Position()
        self.steps_per_epoch = max(1, len(self._questions) // schedule.questions_per_step)
        self.total_training_steps = int(self.config.trainer.total_training_steps)
        self.config.actor_rollout_ref.actor.optim.total_training_steps = max(1, self.total_training_steps)

    def prepare_step(self) -> dict[str, float]:
        """Hand the step's questions to the workers, without waiting."""
        count, seed = self.run_config.schedule.questions_per_step, self.run_config.seed
        questions = questions_of_step(self._questions, self.global_steps, count, seed)
        self._started = self.agent_loop_manager.start(questions, self.global_steps)
        return {}

    # ---- one step

    def _setup(self) -> None:
        super()._setup()
        learner = self.run_config.learner
        config = LossConfig(**{name: getattr(learner, name) for name in LossConfig.__dataclass_fields__})
        self.actor_rollout_wg.set_loss_fn(partial(weighted_loss, config))

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.config.trainer.device == "cpu":
            from factagent.distributed.cpu.worker import on_cpu

            self.role_worker_mapping = on_cpu(self.role_worker_mapping)

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        """Collect the groups, then log-probabilities, reference, advantages, update; nothing where no group is left."""
        with marked_timer("gen", timing_raw):
            self._played = self.agent_loop_manager.collect(self._started)
            self.on_sample_end()
        batch = KVBatchMeta(
            partition_id=PARTITION,
            keys=[key for one in self._played for key in one.keys],
            tags=[tags for one in self._played for tags in one.tags],
        )
        if not batch.keys:
            metrics.update(_no_update(), learning_rate=self._learning_rate)
            return _nothing_to_learn(self.global_steps)
        batch.extra_info["temperature"] = self.run_config.rollout.temperature
        batch = self._balance_batch(batch, metrics)
        with marked_timer("old_log_prob", timing_raw):
            batch = self._compute_old_log_prob(batch, metrics=metrics)
        if self.use_reference_policy:
            with marked_timer("ref", timing_raw):
                batch = self._compute_ref_log_prob(batch, metrics=metrics)
        with marked_timer("adv", timing_raw):
            batch = self._compute_advantage(batch, metrics=metrics)
        with marked_timer("update_actor", timing_raw):
            return self._update_actor(batch, metrics=metrics)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **_: object) -> KVBatchMeta:
        """Fill up to equal shares and put rows where their rank and mini-batch are (`rows.lay_out`)."""
        groups, lengths = ([tag[name] for tag in batch.tags] for name in ("group", "seq_len"))
        layout = lay_out(groups, lengths, self._ranks(), self.run_config.learner.updates_per_batch)
        count = len(batch.keys)
        batch = upsample_batch_to_divisible_size(batch, len(layout.order), self.tokenizer.eos_token_id)
        added = iter(range(count, len(batch.keys)))
        batch.reorder([next(added) if row is None else row for row in layout.order])
        self._layout = layout
        metrics["rows"], metrics["rows_added"] = count, len(batch.keys) - count
        return batch

    def _ranks(self) -> int:
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return int(max(workers._dispatch_info["actor"])) + 1

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Leave advantages as the credit made them; weights become shares of their mini-batch, zero in added rows."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(PER_TOKEN))
        layout = self._layout
        shares = self._shares(batch)
        columns = {name: list(data[name].unbind()) for name in PER_TOKEN}
        for place, tag in enumerate(batch.tags):
            if tag.get("is_padding", False):
                for name, filler in (("advantages", 0.0), ("token_weights", 0.0), ("step_ids", -1)):
                    columns[name][place] = torch.full((1,), filler, dtype=columns[name][place].dtype)
            else:
                share = shares[layout.part[place]][tag["group"]]
                columns["token_weights"][place] = columns["token_weights"][place] * share
        fields = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
        fields["returns"] = fields["advantages"]
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch.keys))
        )

    def _shares(self, batch: KVBatchMeta) -> list[dict[int, float]]:
        """What each group weighs in each mini-batch; rows that were added count nowhere."""
        tags_P: list[list[dict[str, Any]]] = [[] for _ in range(self._layout.parts)]
        for tag, part in zip(batch.tags, self._layout.part, strict=True):
            if not tag.get("is_padding", False):
                tags_P[part].append(tag)
        return [share_of_group(self.run_config.learner.aggregation, tags) for tags in tags_P]

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """As many optimiser steps as the layout has mini-batches."""
        layout, actor = self._layout, self.config.actor_rollout_ref.actor
        batch.extra_info.update(
            {
                "calculate_entropy": actor.entropy_coeff > 0,
                "distillation_use_topk": False,
                "distillation_only": False,
                "global_batch_size": layout.part_rows,
                "mini_batch_size": layout.part_rows,
                "epochs": 1,
                "seed": actor.data_loader_seed,
                "dataloader_kwargs": {"shuffle": False},
                "temperature": self.run_config.rollout.temperature,
            }
        )
        output = self.actor_rollout_wg.update_actor(batch)["metrics"]
        metrics.update(_learner_metrics(output))
        metrics["learning_rate"] = self._learning_rate
        return batch

    @property
    def _learning_rate(self) -> float:
        """Of this step; what verl's worker reports is that of the next one."""
        learner = self.run_config.learner
        rate: float = learner.learning_rate * min(1.0, self.global_steps / max(1, learner.warmup_steps))
        return rate

    # ---- validation

    def _validate(self) -> dict[str, float]:
        """Play the first `eval_questions` dev questions greedily; the project's own scores."""
        began = time.perf_counter()
        groups = self.agent_loop_manager.evaluate(self._dev[: self.run_config.schedule.eval_questions])
        self._dev_results = [score(group.question, group.trajectories[0]) for group in groups]
        report = summarise(self._dev_results)
        self._eval = self._last_eval = report
        if self.global_steps == 0:
            self.run.log_metrics({"step": 0, "eval": report, "seconds": {"eval": time.perf_counter() - began}})
        return {f"eval/{name}": value for name, value in report.items() if isinstance(value, int | float)}

    # ---- what is written down

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        """Write the step's row and trajectories as the engine in this process does; stop where an alarm says so."""
        schedule, step = self.run_config.schedule, global_steps
        groups, credits = [one.group for one in self._played], [one.credit for one in self._played]
        row: dict[str, Any] = {"step": step, **rollout_metrics(groups, credits), **_plain(metrics)}
        row["dropped_groups"] = float(sum(one.dropped for one in self._played))
        row["updates_skipped"] = int(row.get("updates_skipped", 0))
        row["questions_seen"] = step * schedule.questions_per_step
        if self._eval is not None:
            row["eval"], self._eval = self._eval, None
        if schedule.save_trajectories_every and step % schedule.save_trajectories_every == 0:
            for group, credit in zip(groups, credits, strict=True):
                self.run.log_group(step, group, credit, token_ids=schedule.save_tokens, messages=False)
        row["seconds"] = _seconds(timing_raw, self._played)
        self.run.log_metrics(row)
        problems = [problem for one in self._played for problem in one.problems]
        count = sum(len(group.trajectories) for group in groups)
        alarm = alarm_of_rows(
            self.run_config.alarms, read_metrics(self.run.path), count, problems[-1] if problems else None
        )
        if alarm:
            self._save_checkpoint()
            raise TryAgainError(f"{self.run.path}: {alarm}; stopped with a checkpoint at step {step}")
        metrics.update({name: value for name, value in row.items() if isinstance(value, int | float)})

    def _save_checkpoint(self) -> None:
        self.run.sync()
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        self.run.truncate_to(self.global_steps if self.global_steps else -1)

    def finish(self) -> None:
        """Write the last dev answers and the summary of a run that came to its end."""
        self.run.write_dev([line_of(ResultRow.of("dev", result), result) for result in self._dev_results])
        self.run.write_summary(summarise_run(self.run, self._last_eval))


def _nothing_to_learn(step: int) -> KVBatchMeta:
    """The batch of a step in which no group is left: one row that is read by nobody.

    verl clears the rows of whatever batch comes back, and its queue refuses an empty list of keys.
    """
    key, tags = f"step{step}none_0_0", {"is_padding": True}
    fields = TensorDict({"nothing": torch.zeros(1, 1)}, batch_size=1)
    tq.kv_batch_put(keys=[key], fields=fields, tags=[tags], partition_id=PARTITION)
    return KVBatchMeta(partition_id=PARTITION, keys=[key], tags=[tags])


def _no_update() -> dict[str, float]:
    """The figures of a step without an update, as the local learner gives them for an empty batch."""
    return {**LossStats().means(), "grad_norm": 0.0, "updates_skipped": 0, "rows": 0, "rows_added": 0}


def _learner_metrics(output: dict[str, Any]) -> dict[str, float]:
    """The figures of `train.learner`, from those of verl's worker."""
    steps = stats_of(output)
    means = sum(steps, LossStats()).means()
    means |= {name: value / len(steps) for name, value in means.items() if name.startswith("loss")}
    norms = [float(norm) for norm in output["grad_norm"]]
    finite = [norm for norm in norms if norm < float("inf")]
    if all(stats.entropy == 0 for stats in steps):
        del means["entropy"]  # not asked for; the row keeps what the pass for old log-probabilities measured
    return {
        **means,
        "grad_norm": sum(finite) / max(1, len(finite)),
        "updates_skipped": len(norms) - len(finite),
    }


def _plain(metrics: dict[str, Any]) -> dict[str, float]:
    """Figures of verl under names without its folders, where they have a place in a row."""
    names = {"actor/entropy": "entropy", "training/rollout_probs_diff_mean": "sampler_probability_gap"}
    plain = {names.get(key, key): value for key, value in metrics.items()}
    return {key: float(value) for key, value in plain.items() if "/" not in key and _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or getattr(value, "ndim", None) == 0


def _seconds(timing: dict[str, float], played: Iterable[PlayedGroup]) -> dict[str, float]:
    """Seconds by phase. `credit` is the workers' time, which overlaps `rollout` and is no part of the total."""
    names = {"gen": "rollout", "update_actor": "learn", "save_checkpoint": "write", "testing": "eval"}
    seconds = {names.get(name, name): value for name, value in timing.items() if name != "step"}
    total = timing.get("step", 0.0) + timing.get("testing", 0.0)
    return {**seconds, "credit": sum(one.credit_s for one in played), "total": total}
