"""A training run as an evaluation: what `factagent eval --run` evaluates."""

from __future__ import annotations

from pathlib import Path

from factagent.configuration import load_config
from factagent.data.world.build import build_world
from factagent.errors import UsageError
from factagent.evaluation.config import (
    EpisodeConfig,
    EvalConfig,
    EvalModelConfig,
    EvalRolloutConfig,
    RetrieverConfig,
    SetConfig,
)
from factagent.runs import RunDirectory
from factagent.train.checkpoint import checkpoint_steps, load_checkpoint
from factagent.train.config import RunConfig
from factagent.train.setup import data_paths


def config_of_run(directory: Path, step: int | None = None) -> EvalConfig:
    """A checkpoint of a run, decoding greedily with the run's method over its corpus, on all of its dev questions.

    Args:
        directory: the run.
        step: of the checkpoint; the latest by default.

    Raises:
        UsageError: no such run or checkpoint.
        CorruptError: the checkpoint does not match its manifest.
    """
    run = RunDirectory.open(directory)
    config = load_config(RunConfig, run.config_path, ())
    if config.data.world is not None and config.data.directory is not None:
        build_world(config.data.world, config.data.directory)
    paths = data_paths(config.data)
    method = config.rollout.model_dump(include=set(EpisodeConfig.model_fields))
    return EvalConfig(
        method=config.method,
        mode=config.mode,
        seed=config.seed,
        threads=config.threads,
        model=EvalModelConfig(path=str(_checkpoint(run, step)), device=config.model.device),
        rollout=EvalRolloutConfig(**method, precision=config.rollout.precision),
        retriever=config.data.retriever or RetrieverConfig(corpus=paths.needed_corpus),
        sets=(SetConfig(name="dev", path=paths.dev, types=config.data.types, hops=config.data.hops),),
    )


def _checkpoint(run: RunDirectory, step: int | None) -> Path:
    steps = checkpoint_steps(run.checkpoints)
    wanted = max(steps, default=None) if step is None else step
    if wanted is None or wanted not in steps:
        known = ", ".join(map(str, steps)) or "none"
        raise UsageError(
            f"{run.checkpoints} has no checkpoint{'' if step is None else f' of step {step}'}; it has {known}"
        )
    return load_checkpoint(run.checkpoints / f"step-{wanted}").path
