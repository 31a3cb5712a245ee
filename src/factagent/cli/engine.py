"""Which engine runs a command: the one that the configuration names, or `--engine`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from factagent.configuration import load_config
from factagent.errors import UsageError
from factagent.runs import RunDirectory

if TYPE_CHECKING:
    from factagent.train.config import RunConfig

Engine = Literal["local", "verl"]


def engine_overrides(engine: Engine | None, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """`--engine` as the override that it is; it goes over the file and may not contradict `--set engine=...`."""
    if engine is None:
        return overrides
    if other := [one for one in overrides if one.partition("=")[0].strip() == "engine"]:
        raise UsageError(f"--engine {engine} and --set {other[0]} both name the engine; leave one out")
    return (*overrides, f"engine={engine}")


def engine_of_run(directory: Path, engine: Engine | None) -> Engine:
    """The engine of a run that goes on; its checkpoints are of that engine, so `--engine` must not differ.

    Raises:
        UsageError: no run there, or another engine is asked for.
    """
    from factagent.train.config import RunConfig

    config = load_config(RunConfig, RunDirectory.open(directory).config_path, ())
    if engine is not None and engine != config.engine:
        raise UsageError(f"{directory} is a run of the engine {config.engine}; leave out --engine {engine}")
    return config.engine


def print_cluster_plan(config: RunConfig, out: Path | None, steps: int | None) -> None:
    """The overrides that verl would get on standard output, the memory plan on standard error."""
    from factagent.distributed.launch import dry_run

    overrides, plan = dry_run(config, out or Path("runs") / config.name, steps)
    print("\n".join(overrides))
    print("\n".join(plan), file=sys.stderr)
