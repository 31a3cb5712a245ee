"""Running an arena: cold starts first, then every run that is not finished, each a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from factagent.arena.config import ArenaConfig
from factagent.arena.jobs import Failure, Job, read_failure, run_jobs
from factagent.arena.plan import Places, PlannedRun, check_unchanged, cold_start_config, planned_runs
from factagent.arena.reading import steps_done
from factagent.configuration import dump_toml
from factagent.data.world.build import build_world
from factagent.errors import ConfigError
from factagent.evaluation.local import protocol_of
from factagent.run_files import lock_directory, replace
from factagent.train.config import RunConfig


def run_arena(arena: ArenaConfig, root: Path, only: Sequence[str] = (), jobs: int | None = None) -> dict[str, Failure]:
    """Train what is missing; returns the failures of this call, by run.

    A run that an alarm stopped is not tried again unless its entry is named in `only`.

    Raises:
        ConfigError: a configuration is refused, or differs from what a run was started with.
        UsageError: another arena works in the directory, or `only` names no entry.
        KeyboardInterrupt: Ctrl-C; every run has stopped at a checkpoint.
    """
    places = Places(root)
    check_arena(arena, places)
    at_once = jobs or arena.jobs
    with lock_directory(root, root / "arena.lock"):
        runs = [run for run in planned_runs(arena, places, tuple(only)) if _owed(run, places, named=bool(only))]
        _build_worlds([run.config for run in runs])
        needed = dict.fromkeys(run.cold_start for run in runs if run.cold_start is not None)
        cold = [protocol for protocol in needed if places.policy(protocol) is None]
        failures = run_jobs([_cold_start(arena, places, each) for each in cold], at_once, arena.threads, "cold starts")
        names = {run.name for run in runs}
        ready = [
            run
            for run in planned_runs(arena, places, tuple(only))
            if run.name in names and (run.cold_start is None or places.policy(run.cold_start) is not None)
        ]
        return failures | run_jobs([_training(run, places) for run in ready], at_once, arena.threads, arena.name)


def check_arena(arena: ArenaConfig, places: Places) -> None:
    """Resolve every configuration, and refuse what does not fit the runs that are there.

    Raises:
        ConfigError: a configuration or its prompt is refused, a run was started with another one, or has more steps
            than asked for.
    """
    for protocol in arena.cold_start:
        config, directory = cold_start_config(arena, protocol), places.cold_start(protocol)
        protocol_of(config.rollout)
        if (directory / "config.toml").exists():
            check_unchanged(directory, config)
    for run in planned_runs(arena, places):
        protocol_of(run.config.rollout)
        if (run.path / "config.toml").exists():
            check_unchanged(run.path, run.config, run.cold_start)
        if (done := steps_done(run.path)) > run.config.schedule.steps:
            raise ConfigError(
                f"{run.path} has {done} steps and the arena asks for {run.config.schedule.steps}; "
                f"raise 'steps' or choose another --out"
            )


def _owed(run: PlannedRun, places: Places, *, named: bool) -> bool:
    finished = (run.path / "summary.json").exists() and steps_done(run.path) == run.config.schedule.steps
    failure = read_failure(places.failure(run.name), places.log(run.name))
    return not finished and (named or failure is None or not failure.by_alarm)


def _build_worlds(configs: Sequence[RunConfig]) -> None:
    """Build what runs that start together would each build."""
    built: list[object] = []
    for data in (config.data for config in configs):
        if data.world is not None and data.directory is not None and (data.world, data.directory) not in built:
            build_world(data.world, data.directory)
            built.append((data.world, data.directory))


def _cold_start(arena: ArenaConfig, places: Places, protocol: str) -> Job:
    directory, name = places.cold_start(protocol), f"cold-start.{protocol}"
    config = cold_start_config(arena, protocol)

    def done() -> None:
        (last,) = sorted((directory / "checkpoints").glob("step-*"), key=_step)[-1:]
        replace(directory.with_suffix(".json"), json.dumps({"checkpoint": last.name}).encode() + b"\n")

    return Job(
        name,
        lambda: _command("sft", directory, config, places.config(name)),
        directory,
        places.log(name),
        places.failure(name),
        None,
        done,
    )


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _training(run: PlannedRun, places: Places) -> Job:
    steps = run.config.schedule.steps

    def command() -> list[str]:
        return [*_command("train", run.path, run.config, places.config(run.name)), "--steps", str(steps)]

    return Job(run.name, command, run.path, places.log(run.name), places.failure(run.name), steps)


def _command(name: str, directory: Path, config: RunConfig, config_path: Path) -> list[str]:
    """Start the run, or go on with it where it was started before."""
    command = [sys.executable, "-m", "factagent.cli", name]
    if (directory / "config.toml").exists():
        return [*command, "--resume", str(directory)]
    config_path.parent.mkdir(parents=True, exist_ok=True)
    replace(config_path, dump_toml(config).encode())
    return [*command, "--config", str(config_path), "--out", str(directory)]
