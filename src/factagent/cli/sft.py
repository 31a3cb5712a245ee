"""`factagent sft`: cold-start a policy on correct trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from factagent.cli.engine import Engine, engine_of_run, engine_overrides
from factagent.cli.source import check_source, new_run
from factagent.rows import write_row

if TYPE_CHECKING:
    from factagent.train.config import RunConfig


def sft(
    *,
    config: Path | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    engine: Engine | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Cold-start a policy: collect trajectories, keep the correct ones, imitate them.

    Args:
        config: Configuration of a new run (TOML); its table `sft` says where trajectories come from.
        out: Directory of the new run.
        resume: Directory of an interrupted cold start to go on with.
        engine: What trains: this process (local), or verl's SFT trainer on one node; the configuration's key otherwise.
        set_: Override a key of the configuration, as in --set sft.trajectories=1000. Repeatable.
        dry_run: Print the resolved configuration and stop.
    """
    check_source(config, resume, out, set_, dry_run)
    if resume is not None:
        write_row(_resume(resume, engine_of_run(resume, engine)))
        return
    new = new_run(config, out, engine_overrides(engine, set_), dry_run)
    if new is not None:
        write_row(_start(*new))


def _start(config: RunConfig, out: Path) -> dict[str, str]:
    if config.engine == "verl":
        from factagent.distributed.sft import start_cluster_sft

        return {"model": str(start_cluster_sft(config, out))}
    from factagent.train.run import start_sft

    return {"checkpoint": str(start_sft(config, out))}


def _resume(run: Path, engine: Engine) -> dict[str, str]:
    if engine == "verl":
        from factagent.distributed.sft import resume_cluster_sft

        return {"model": str(resume_cluster_sft(run))}
    from factagent.train.run import resume_sft

    return {"checkpoint": str(resume_sft(run))}
