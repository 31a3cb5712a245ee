"""Test questions, asked once: entries that were chosen on development questions are confirmed on others.

    DIR/confirm/ENTRY.seedK/   an evaluation of the run's last checkpoint (`factagent eval`)
    DIR/confirm.json           which entries were confirmed, their scores, how often test questions were looked at

A second look would make the test questions a part of the choice, so it is refused, whatever entries it asks for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from factagent.arena.config import ArenaConfig
from factagent.arena.jobs import Failure, Job, run_jobs
from factagent.arena.plan import Places, PlannedRun, planned_runs
from factagent.arena.reading import read_records
from factagent.arena.statistics import estimate
from factagent.errors import UsageError
from factagent.evaluation.results import read_summary
from factagent.run_files import lock_directory, replace

RECORD_NAME = "confirm.json"


def confirm(
    arena: ArenaConfig, root: Path, entries: Sequence[str], *, force: bool = False, jobs: int | None = None
) -> dict[str, Failure]:
    """Evaluate the final checkpoints of some entries on the test questions; returns the failures.

    An interrupted confirmation of the same entries goes on.

    Raises:
        UsageError: it was done before (without `force`), an entry is unknown or not finished, there are no test
            questions.
    """
    places = Places(root)
    with lock_directory(root, root / "arena.lock"):
        begun = _begin(arena, places, list(entries), force=force)
        runs = planned_runs(arena, places, tuple(entries))
        todo = [_evaluation(arena, run, places, begun["looks"]) for run in runs]
        failures = run_jobs(todo, jobs or arena.jobs, arena.threads, "test questions")
        if not failures:
            _keep(places, begun, runs)
    return failures


def read_confirmed(root: Path) -> dict[str, Any] | None:
    """What was confirmed; None where nothing was yet, or it is under way."""
    record = _record(root)
    return record if record is not None and record["done"] else None


def _begin(arena: ArenaConfig, places: Places, entries: list[str], *, force: bool) -> dict[str, Any]:
    """Write down that the test questions are looked at before they are."""
    runs = planned_runs(arena, places, tuple(entries))
    unfinished = [record.name for record in read_records(runs, places) if record.state != "finished"]
    if unfinished:
        raise UsageError(f"{', '.join(unfinished)} not finished; run the arena to its end first")
    for run in runs:
        _questions(arena, run)
    before = _record(places.root)
    looks = 0 if before is None else before["looks"]
    if before is not None and not (not before["done"] and before["chosen"] == entries):
        if not force:
            raise UsageError(
                f"{places.root / RECORD_NAME}: {', '.join(before['chosen'])} was confirmed on the test questions; a "
                "second look would no longer confirm anything (--force looks again, and the report will say so)"
            )
        before = None
    begun = before or {"chosen": entries, "looks": looks + 1, "done": False}
    replace(places.root / RECORD_NAME, json.dumps(begun, indent=2).encode() + b"\n")
    return begun


def _evaluation(arena: ArenaConfig, run: PlannedRun, places: Places, look: int) -> Job:
    directory = _directory(run, places, look)
    data, path = run.config.data, _questions(arena, run)
    limit = f", limit={arena.test.questions}" if arena.test.questions else ""
    kept = f"types={json.dumps(list(data.types))}, hops={json.dumps(list(data.hops))}"
    sets = f'sets=[{{name="test", path={json.dumps(str(path))}, {kept}{limit}}}]'

    def command() -> list[str]:
        base = [sys.executable, "-m", "factagent.cli", "eval", "--json"]
        if (directory / "results.jsonl").exists():
            return [*base, "--resume", str(directory)]
        return [*base, "--run", str(run.path), "--set", sets, "--out", str(directory)]

    name = f"test.{run.name}"
    return Job(name, command, directory, places.log(name), places.failure(name), None)


def _questions(arena: ArenaConfig, run: PlannedRun) -> Path:
    directory = run.config.data.directory
    path = arena.test.path or (directory / "qa.test.jsonl" if directory else None)
    if path is None:
        raise UsageError("test.path is missing: name the file of test questions in the arena's table 'test'")
    if not path.is_file():
        raise UsageError(f"test.path: no test questions at {path}; name the file in the arena's table 'test'")
    return path


def _keep(places: Places, begun: dict[str, Any], runs: Sequence[PlannedRun]) -> None:
    entries: dict[str, Any] = {}
    questions = 0
    for name in begun["chosen"]:
        own = [read_summary(_directory(run, places, begun["looks"])) for run in runs if run.entry == name]
        questions = own[0]["scored"]
        entries[name] = {
            metric: asdict(estimate([summary["sets"]["test"][metric] for summary in own])) for metric in ("em", "f1")
        }
    record = begun | {"done": True, "questions": questions, "entries": entries}
    replace(places.root / RECORD_NAME, json.dumps(record, indent=2).encode() + b"\n")


def _directory(run: PlannedRun, places: Places, look: int) -> Path:
    return places.root / "confirm" / (run.name if look == 1 else f"{run.name}.look{look}")


def _record(root: Path) -> dict[str, Any] | None:
    path = root / RECORD_NAME
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return record
