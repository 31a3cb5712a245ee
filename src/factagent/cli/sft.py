"""`factagent sft`: cold-start a policy on correct trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from factagent.cli.source import check_source, new_run
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
    check_source(config, resume, out, set_, dry_run)
    if resume is not None:
        from factagent.train.run import resume_sft

        write_row({"checkpoint": str(resume_sft(resume))})
        return
    new = new_run(config, out, set_, dry_run)
    if new is not None:
        from factagent.train.run import start_sft

        write_row({"checkpoint": str(start_sft(*new))})
