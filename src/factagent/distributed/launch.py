"""What `factagent train --engine verl` calls: from a configuration to a running verl, and back to a summary.

verl is imported when a run begins, after the environment that its processes need is set.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from factagent.configuration import dump_toml, load_config
from factagent.distributed.memory import plan_lines
from factagent.distributed.overrides import (
    CHECKPOINTS,
    Overrides,
    environment_of,
    lines_of,
    overrides_of,
    servers_of,
)
from factagent.distributed.servers import search_servers
from factagent.errors import ConfigError, MissingExtraError, UsageError
from factagent.runs import RunDirectory
from factagent.train.cluster import ClusterConfig
from factagent.train.config import RunConfig
from factagent.train.setup import data_paths, load_questions

LATEST = "latest_checkpointed_iteration.txt"
"""Where verl notes the step of its last whole checkpoint."""


def dry_run(config: RunConfig, out: Path, steps: int | None = None) -> tuple[list[str], list[str]]:
    """What a run would hand to verl, one override a line, and its memory plan.

    Where verl is installed, its own configuration is composed from the overrides too, so that a key that it does not
    know is found.

    Raises:
        ConfigError: verl cannot honour the configuration.
    """
    overrides = overrides_of(config, out, steps)
    if find_spec("verl") is not None:
        verl_config_of(overrides)
    return lines_of(overrides), plan_lines(config)


def start_cluster_training(config: RunConfig, out: Path, steps: int | None = None) -> dict[str, Any]:
    """Start a run in a new directory and train it with verl; returns the summary.

    Args:
        config: the run.
        out: its directory, which every node must see under this path.
        steps: train until this many steps are done; by default `schedule.steps`.

    Raises:
        MissingExtraError: verl is not installed.
        ConfigError: verl cannot honour the configuration.
        RetrievalError: a search server does not answer.
    """
    require_verl()
    overrides_of(config, out, steps)
    return _train(config, RunDirectory.create(out, dump_toml(config)), steps)


def resume_cluster_training(directory: Path, steps: int | None = None) -> dict[str, Any]:
    """Go on from verl's last whole checkpoint of a run; a run without one starts over. Returns the summary.

    Raises:
        UsageError: fewer steps were asked for than are done.
    """
    require_verl()
    run = RunDirectory.open(directory)
    config = load_config(RunConfig, run.config_path, ())
    return _train(config, run, steps)


def checkpointed_step(run: Path) -> int | None:
    """The step of the run's last whole checkpoint, None without one."""
    note = run / CHECKPOINTS / LATEST
    return int(note.read_text("utf-8")) if note.is_file() else None


def _train(config: RunConfig, run: RunDirectory, steps: int | None) -> dict[str, Any]:
    target = config.schedule.steps if steps is None else steps
    done = checkpointed_step(run.path)
    if done is not None and done > target:
        raise UsageError(f"{run.path} has {done} steps already; ask for --steps {done} or more")
    overrides = overrides_of(config, run.path, steps)
    if done is not None:
        overrides["trainer.val_before_train"] = False
    load_questions(config.data)
    with search_servers(servers_of(config), data_paths(config.data).needed_corpus, run.path) as urls:
        _run_verl(config, run, overrides, urls)
    summary: dict[str, Any] = json.loads(run.summary_path.read_bytes())
    return summary


def _run_verl(config: RunConfig, run: RunDirectory, overrides: Overrides, urls: tuple[str, ...]) -> None:
    os.environ.update(environment_of(config.cluster or ClusterConfig()))
    composed = verl_config_of(overrides)
    from omegaconf import open_dict

    with open_dict(composed):
        composed.factagent = {"config": config.model_dump_json(), "run": str(run.path.resolve()), "servers": list(urls)}
    import ray
    from verl.trainer.main_ppo import run_ppo

    from factagent.distributed.task import TrainingTask

    try:
        run_ppo(composed, task_runner_class=ray.remote(num_cpus=1)(TrainingTask))
    except ray.exceptions.RayTaskError as error:
        raise _own_error(error) from error
    finally:
        ray.shutdown()


def _own_error(error: Any) -> Exception:
    """The error that the remote process raised, where it is one of this project's; else the error as it is."""
    from factagent.errors import FactAgentError

    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, FactAgentError) else error


def verl_config_of(overrides: Overrides) -> Any:
    """The configuration of verl with the overrides.

    Raises:
        ConfigError: a key or value that verl refuses.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=lines_of(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        problem = str(error).strip().splitlines()[0]
        raise ConfigError(f"verl refuses the configuration: {problem}; correct the table cluster.verl") from error


def require_verl() -> None:
    """Say what to install where verl is not.

    Raises:
        MissingExtraError: verl is not installed.
    """
    if find_spec("verl") is None:
        raise MissingExtraError.of("verl", "verl")
