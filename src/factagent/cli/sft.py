"""`factagent sft`: cold-start a policy on correct trajectories."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from factagent.configuration import dump_toml, load_config
from factagent.errors import UsageError
from factagent.rows import write_row


def sft(
    *,
    config: Path | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Cold-start a policy: collect trajectories, keep the correct ones, imitate them.

    Args:
        config: Configuration of a new run (TOML); its table `sft` says where trajectories come from.
        out: Directory of the new run.
        resume: Directory of an interrupted cold start to go on with.
        set_: Override a key of the configuration, as in --set sft.trajectories=1000. Repeatable.
        dry_run: Print the resolved configuration and stop.
    """
    if (resume is None) == (config is None):
        raise UsageError("give either --config FILE with --out DIR, or --resume DIR")
    if resume is not None:
        from factagent.train.run import resume_sft

        write_row({"checkpoint": str(resume_sft(resume))})
        return
    from factagent.train.config import RunConfig

    resolved = load_config(RunConfig, config, set_)
    if dry_run:
        sys.stdout.write(dump_toml(resolved))
        return
    if out is None:
        raise UsageError("--out DIR is missing: the directory for the new run")
    from factagent.train.run import start_sft

    write_row({"checkpoint": str(start_sft(resolved, out))})
