"""`factagent train`: reinforcement learning from a configuration, or on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from factagent.cli.engine import Engine, engine_of_run, engine_overrides, print_cluster_plan
from factagent.cli.source import check_source, new_run, resolve
from factagent.errors import UsageError
from factagent.rows import write_row

if TYPE_CHECKING:
    from factagent.train.config import RunConfig


def train(
    *,
    config: Path | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    steps: int | None = None,
    engine: Engine | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train a policy with reinforcement learning, or resume a run.

    Args:
        config: Configuration of a new run (TOML).
        out: Directory of the new run; it must not hold one already.
        resume: Directory of a run to go on with, bit for bit as if it had not stopped.
        steps: Train until this many steps are done, counted from the start of the run.
        engine: What trains: this process (local), or verl on a cluster; the configuration's key of that name otherwise.
        set_: Override a key of the configuration, as in --set learner.learning_rate=1e-6. Repeatable.
        dry_run: Print the resolved configuration and stop; with the engine verl, what verl would be given.
    """
    check_source(config, resume, out, set_, dry_run)
    if steps is not None and steps < 0:
        raise UsageError(f"--steps is {steps}; it must be 0 or more")
    if resume is not None:
        _resume(resume, steps, engine_of_run(resume, engine))
        return
    overrides = engine_overrides(engine, set_)
    resolved = resolve(config, overrides)
    if resolved.engine == "verl" and dry_run:
        print_cluster_plan(resolved, out, steps)
        return
    new = new_run(config, out, overrides, dry_run)
    if new is not None:
        _start(*new, steps)


def _start(config: RunConfig, out: Path, steps: int | None) -> None:
    if config.engine == "verl":
        from factagent.distributed.launch import start_cluster_training

        write_row(start_cluster_training(config, out, steps))
        return
    from factagent.train.run import start_training

    write_row(start_training(config, out, steps))


def _resume(run: Path, steps: int | None, engine: Engine) -> None:
    if engine == "verl":
        from factagent.distributed.launch import resume_cluster_training

        write_row(resume_cluster_training(run, steps))
        return
    from factagent.train.run import resume_training

    write_row(resume_training(run, steps))
