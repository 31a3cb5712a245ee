"""`factagent train`: reinforcement learning from a configuration, or on from a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from factagent.configuration import dump_toml, load_config
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
    if (resume is None) == (config is None):
        raise UsageError("give either --config FILE with --out DIR, or --resume DIR")
    if steps is not None and steps < 0:
        raise UsageError(f"--steps is {steps}; it must be 0 or more")
    if resume is not None:
        if out is not None or set_ or dry_run:
            raise UsageError("--resume goes on with the run's own configuration; leave out --out, --set and --dry-run")
        from factagent.train.run import resume_training

        write_row(resume_training(resume, steps))
        return
    from factagent.train.config import RunConfig

    resolved = load_config(RunConfig, config, set_)
    if dry_run:
        sys.stdout.write(dump_toml(resolved))
        return
    if out is None:
        raise UsageError("--out DIR is missing: the directory for the new run")
    from factagent.train.run import start_training

    write_row(start_training(resolved, out, steps))
