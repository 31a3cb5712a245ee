"""`factagent train`: reinforcement learning from a configuration, or on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from factagent.cli.source import check_source, new_run
from factagent.errors import UsageError
from factagent.rows import write_row


def train(
    *,
    config: Path | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    steps: int | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train a policy with reinforcement learning, or resume a run.

    Args:
        config: Configuration of a new run (TOML).
        out: Directory of the new run; it must not hold one already.
        resume: Directory of a run to go on with, bit for bit as if it had not stopped.
        steps: Train until this many steps are done, counted from the start of the run.
        set_: Override a key of the configuration, as in --set learner.learning_rate=1e-6. Repeatable.
        dry_run: Print the resolved configuration and stop.
    """
    check_source(config, resume, out, set_, dry_run)
    if steps is not None and steps < 0:
        raise UsageError(f"--steps is {steps}; it must be 0 or more")
    if resume is not None:
        from factagent.train.run import resume_training

        write_row(resume_training(resume, steps))
        return
    new = new_run(config, out, set_, dry_run)
    if new is not None:
        from factagent.train.run import start_training

        write_row(start_training(*new, steps))
