"""Start, resume and finish runs: what `factagent train` and `factagent sft` call."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from factagent.configuration import dump_toml, load_config
from factagent.errors import DataError, UsageError
from factagent.evaluation.local import prepare_process, protocol_of
from factagent.evaluation.progress import make_progress
from factagent.evaluation.rows import ResultRow, line_of
from factagent.evaluation.runner import summarise
from factagent.policies.chat import ChatCodec
from factagent.policies.transformers import TransformersPolicy
from factagent.runs import RunDirectory, read_groups, read_metrics
from factagent.train.checkpoint import Checkpoint, discard_after, latest, load_checkpoint
from factagent.train.config import RunConfig
from factagent.train.interrupt import Interrupt
from factagent.train.loop import Trainer
from factagent.train.samples import Sample
from factagent.train.session import restore_training_state, save_training_state
from factagent.train.setup import Data, expert_of, load_data, load_policy
from factagent.train.sft import batches, collect, fit, sft_samples

SFT_CHECKPOINT_SECONDS = 120.0
"""SFT writes a checkpoint at least this often."""


def start_training(config: RunConfig, out: Path, steps: int | None = None) -> dict[str, Any]:
    """Start a run in a new directory and train it; returns the summary.

    Args:
        config: the run.
        out: its directory.
        steps: train until this many steps are done; by default `schedule.steps`.
    """
    run = RunDirectory.create(out, dump_toml(config))
    return _train(config, run, None, steps)


def resume_training(directory: Path, steps: int | None = None) -> dict[str, Any]:
    """Go on from the latest checkpoint of a run, bit for bit as if it had never stopped; returns the summary.

    A run that has no checkpoint yet starts over.

    Raises:
        UsageError: fewer steps were asked for than are done.
        CorruptError: the latest checkpoint is damaged.
    """
    run = RunDirectory.open(directory)
    config = load_config(RunConfig, run.config_path, ())
    path = latest(run.checkpoints)
    return _train(config, run, load_checkpoint(path) if path else None, steps)


def _train(config: RunConfig, run: RunDirectory, checkpoint: Checkpoint | None, steps: int | None) -> dict[str, Any]:
    target = config.schedule.steps if steps is None else steps
    if checkpoint is not None and checkpoint.step > target:
        raise UsageError(f"{run.path} has {checkpoint.step} steps already; ask for --steps {checkpoint.step} or more")
    prepare_process(config.threads, config.seed)
    with run.lock():
        if checkpoint is None:
            run.truncate_to(-1)
        data = load_data(config.data)
        trainer = Trainer(config, run, load_policy(config), data, checkpoint)
        trainer.train(target)
        results = trainer.play_dev() if config.schedule.eval_every else []
        run.write_dev([line_of(ResultRow.of("dev", result), result) for result in results])
        summary = summarise_run(run, summarise(results) if results else None)
        run.write_summary(summary)
    return summary


def summarise_run(run: RunDirectory, after: dict[str, Any] | None) -> dict[str, Any]:
    """The run in a page: dev scores before and after, overall, by hops and by type, and what it cost."""
    rows = read_metrics(run.path)
    before = next((row["eval"] for row in rows if "eval" in row), None)
    trained = [row for row in rows if row["step"] > 0]
    summary: dict[str, Any] = {
        "steps": len(trained),
        "seconds": sum(row["seconds"]["total"] for row in trained)
        + sum(sum(row["seconds"].values()) for row in rows if row["step"] == 0),
        "train_prompt_tokens": sum(row["prompt_tokens"] for row in trained),
        "train_response_tokens": sum(row["response_tokens"] for row in trained),
    }
    if not before or not after or not before["n"] or not after["n"]:
        return summary
    summary |= {
        "em_before": before["em"],
        "em_after": after["em"],
        "interval_before": [before["low"], before["high"]],
        "interval_after": [after["low"], after["high"]],
        "n": after["n"],
        "prompt_tokens_before": before["prompt_tokens"],
        "prompt_tokens_after": after["prompt_tokens"],
        "before": {key: value for key, value in before.items() if not key.startswith("by_")},
        "after": {key: value for key, value in after.items() if not key.startswith("by_")},
    }
    for key in ("by_hop", "by_type"):
        summary[key] = {
            label: {"n": row["n"], "before": _score(before[key][label]), "after": _score(row)}
            for label, row in after[key].items()
        }
    return summary


def _score(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("em", "low", "high", "f1", "coverage", "prompt_tokens")}


def start_sft(config: RunConfig, out: Path) -> Path:
    """Cold-start the configured model in a new run directory; returns the final checkpoint."""
    return _sft(config, RunDirectory.create(out, dump_toml(config)))


def resume_sft(directory: Path) -> Path:
    """Go on with an interrupted cold start, bit for bit; returns the final checkpoint."""
    run = RunDirectory.open(directory)
    return _sft(load_config(RunConfig, run.config_path, ()), run)


def _sft(config: RunConfig, run: RunDirectory) -> Path:
    prepare_process(config.threads, config.seed)
    with run.lock():
        policy = load_policy(config)
        return _fit(config, run, policy, collected_samples(config, run, policy))


def collected_samples(config: RunConfig, run: RunDirectory, policy: TransformersPolicy) -> list[Sample]:
    """The samples of a cold start, from trajectories that are collected first where the run does not hold them yet.

    Raises:
        DataError: no trajectory passed the filter.
    """
    _collect_once(config, run, policy)
    groups = [group for _, group, _ in read_groups(run.path, 0)]
    samples = sft_samples(groups, protocol_of(config.rollout), ChatCodec(policy.tokenizer), config.rollout.max_rounds)
    if not samples:
        raise DataError(f"{run.path}: no trajectory passed the filter; sample more, or cold-start from the expert")
    return samples


def _collect_once(config: RunConfig, run: RunDirectory, policy: TransformersPolicy) -> None:
    """Sample the trajectories to imitate and keep them in the run; a finished collection is not repeated."""
    done = run.path / "collected"
    if done.exists():
        return
    run.truncate_to(-1)
    data: Data = load_data(config.data)
    protocol = protocol_of(config.rollout)
    source = expert_of(config, protocol, data) if config.sft.source == "expert" else policy
    settings = config.rollout.settings(
        group_size=1 if config.sft.source == "expert" else config.sft.samples_per_question, record_messages=True
    )
    with make_progress() as progress:
        bar = progress.add_task("collect", total=config.sft.trajectories, figures="")

        def show(kept: int, tried: int) -> None:
            progress.update(bar, completed=kept, figures=f"kept {kept} of {tried} tried")

        for group in collect(data.train, protocol, source, data.retriever, settings, config.sft, config.seed, show):
            run.log_group(0, group)
    done.touch()


def _fit(config: RunConfig, run: RunDirectory, policy: TransformersPolicy, samples: list[Any]) -> Path:
    model = policy.model
    sft = config.sft
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=sft.learning_rate, betas=sft.betas, weight_decay=sft.weight_decay
    )
    path, start = latest(run.checkpoints), 0
    if path is not None:
        start = int(restore_training_state(load_checkpoint(path), model, optimizer)["step"])
        run.truncate_to(start)
        discard_after(run.checkpoints, start)
    total = len(batches([sample.length for sample in samples], config.sft, config.seed))
    saved_at, last = time.perf_counter(), start

    def save() -> None:
        run.sync()
        state = {"step": last}
        save_training_state(run.checkpoints, last, model, policy.tokenizer, optimizer, state, keep_last=1)

    with Interrupt().handled() as interrupt, make_progress() as progress:
        bar = progress.add_task("sft", total=total, completed=start, figures="")
        for batch in fit(model, optimizer, samples, config.sft, config.seed, start):
            last = batch.step
            run.log_metrics(
                {
                    "step": batch.step,
                    "loss": batch.loss,
                    "learning_rate": batch.learning_rate,
                    "response_tokens": batch.tokens,
                    "seconds": {"total": batch.seconds},
                }
            )
            progress.update(bar, completed=batch.step, figures=f"loss {batch.loss:.3f}")
            if batch.step == total or interrupt.requested or time.perf_counter() - saved_at > SFT_CHECKPOINT_SECONDS:
                save()
                saved_at = time.perf_counter()
            if interrupt.requested and batch.step < total:
                raise KeyboardInterrupt
    return run.checkpoints / f"step-{total}"
