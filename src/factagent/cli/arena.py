"""`factagent arena`: several methods over several seeds, and the report that holds them against each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from factagent.cli.markdown import print_markdown
from factagent.errors import TryAgainError, UsageError

if TYPE_CHECKING:
    from factagent.arena.config import ArenaConfig
    from factagent.arena.jobs import Failure


def arena(
    config: Path,
    *,
    out: Path | None = None,
    jobs: int | None = None,
    only: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    report: Annotated[bool, Parameter(negative=())] = False,
    confirm: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    force: Annotated[bool, Parameter(negative=())] = False,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train every entry of an arena under every seed, or go on with it, and write the report.

    Args:
        config: The arena (TOML): a base configuration, entries that differ from it, seeds.
        out: Its directory (default: runs/ and the arena's name).
        jobs: Runs at a time (default: the arena's).
        only: Train only this entry; also one that an alarm stopped. Repeatable.
        report: Write the report of what is there and train nothing.
        confirm: Evaluate this entry's final checkpoints on the test questions, once. Repeatable.
        force: Look at the test questions again.
        set_: Override a key of the arena, as in --set seeds=5. Repeatable.
        dry_run: Check every configuration, list the runs and how far they are, and stop.
    """
    from factagent.arena.config import load_arena

    _check_flags(jobs, only, report, confirm, force, dry_run)
    settings = load_arena(config, set_)
    root = out or Path("runs") / settings.name
    if dry_run:
        _list_runs(settings, root)
        return
    from factagent.arena.report import write_arena_report

    try:
        failures = {} if report else _work(settings, root, only, confirm, force, jobs)
    except KeyboardInterrupt:
        write_arena_report(settings, root)
        raise
    write_arena_report(settings, root)
    print_markdown((root / "report.md").read_text("utf-8"))
    if failures:
        raise TryAgainError(
            f"{len(failures)} of the arena's runs failed ({', '.join(failures)}); see {root / 'report.md'} for their "
            "logs, and call again to go on"
        )


def _work(
    settings: ArenaConfig, root: Path, only: tuple[str, ...], chosen: tuple[str, ...], force: bool, jobs: int | None
) -> dict[str, Failure]:
    from factagent.arena.confirm import confirm
    from factagent.arena.running import run_arena

    if chosen:
        return confirm(settings, root, chosen, force=force, jobs=jobs)
    return run_arena(settings, root, only, jobs)


def _list_runs(settings: ArenaConfig, root: Path) -> None:
    from factagent.arena.plan import Places, planned_runs
    from factagent.arena.reading import read_records
    from factagent.arena.running import check_arena

    places = Places(root)
    check_arena(settings, places)
    for protocol in settings.cold_start:
        state = "waiting" if places.policy(protocol) is None else "finished"
        sys.stdout.write(f"{state:<10} cold start of {protocol}\n")
    for record in read_records(planned_runs(settings, places), places):
        sys.stdout.write(f"{record.state:<10} step {record.steps} of {record.planned_steps}  {record.name}\n")


def _check_flags(
    jobs: int | None, only: tuple[str, ...], report: bool, confirm: tuple[str, ...], force: bool, dry_run: bool
) -> None:
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs is {jobs}; it must be at least 1")
    if sum(map(bool, (only, report, confirm, dry_run))) > 1:
        raise UsageError("--only, --report, --confirm and --dry-run exclude each other; give one")
    if force and not confirm:
        raise UsageError("--force is for --confirm, which is missing")
