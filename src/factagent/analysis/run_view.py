"""What a report needs of a run directory, read tolerantly: a run may still be growing or have been cut short."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from factagent.errors import DataError, UsageError
from factagent.runs import TornTailWarning, group_steps, read_groups, read_metrics
from factagent.types import Group

Number = int | float


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StepLedger(_Row):
    """The credit of one step, as `credit.assign.StepCredit` writes it."""

    potential: float
    shaping: float
    process: float
    penalties: dict[str, float] = {}
    advantage: float


class TrajectoryLedger(_Row):
    """The credit of one trajectory."""

    outcome: float
    success: float
    outcome_advantage: float
    steps: tuple[StepLedger, ...]
    excluded: bool = False


class ClusterLedger(_Row):
    """One cluster of equivalent facts."""

    representative: tuple[str, str, str]
    members: tuple[tuple[str, str, str], ...]
    support: int
    successes: float
    posterior_mean: float
    utility: float
    interval: tuple[float, float]


class GroupLedger(_Row):
    """The credit of a group."""

    baseline: float
    clusters: tuple[ClusterLedger, ...]
    trajectories: tuple[TrajectoryLedger, ...]


@dataclass(frozen=True)
class GroupView:
    """A group with its ledger; trajectories and ledgers are aligned."""

    step: int
    group: Group
    ledger: GroupLedger


@dataclass
class RunView:
    """One run. `notes` say what was missing or incomplete."""

    path: Path
    name: str
    config: dict[str, Any]
    config_text: str
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric ("seconds.total" looks inside), where it is a finite number."""
        points = [(row["step"], value) for row in self.metrics if (value := number_at(row, key)) is not None]
        return [step for step, _ in points], [value for _, value in points]

    @property
    def evaluations(self) -> list[tuple[int, Mapping[str, Any]]]:
        """(step, scores) of every evaluation on the development questions."""
        return [(row["step"], row["eval"]) for row in self.metrics if isinstance(row.get("eval"), dict)]


def read_run(path: Path) -> RunView:
    """Read a run's configuration, metrics and summary (the latter only if there is one yet).

    Raises:
        UsageError: not a run directory.
        DataError: a file is malformed beyond a torn tail.
    """
    config_path = path / "config.toml"
    if not config_path.is_file():
        raise UsageError(f"{path} is no run directory: it has no config.toml")
    try:
        text = config_path.read_text("utf-8")
        config = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{config_path}: not valid TOML: {error}") from error
    notes: list[str] = []
    with _noting(notes):
        metrics = read_metrics(path)
    summary = _read_summary(path / "summary.json")
    if not summary:
        notes.append("the run has no summary.json: it is still running or was stopped; figures are those so far")
    name = config.get("name")
    return RunView(path, name if isinstance(name, str) and name else path.name, config, text, metrics, summary, notes)


def stored_groups(run: RunView, step: int) -> list[GroupView]:
    """The groups of a step that were written with their credit.

    Raises:
        DataError: a record is malformed, or its credit does not fit its trajectories.
    """
    with _noting(run.notes):
        rows = list(read_groups(run.path, step))
    return [_group_view(run, number, group, credit) for number, group, credit in rows if credit is not None]


def _group_view(run: RunView, step: int, group: Group, credit: dict[str, Any]) -> GroupView:
    where = f"{run.path}: step {step}: question {group.question.id!r}"
    try:
        ledger = GroupLedger.model_validate(credit)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(f"{where}: credit field '{key}': {first['msg']}") from error
    if [len(t.steps) for t in group.trajectories] != [len(t.steps) for t in ledger.trajectories]:
        raise DataError(f"{where}: the credit has another number of trajectories or steps than the group")
    return GroupView(step, group, ledger)


def instructive_group(run: RunView, look_back: int = 6) -> GroupView | None:
    """The group that shows most: mixed outcomes first, then facts of different utility, then many clusters.

    Looks at the last `look_back` stored steps; of equals the later step and the earlier group wins.
    """
    best: tuple[tuple[bool, float, int], GroupView] | None = None
    for step in reversed(group_steps(run.path)[-look_back:]):
        for view in stored_groups(run, step):
            counted = [t for t in view.ledger.trajectories if not t.excluded]
            values = [cluster.utility for cluster in view.ledger.clusters]
            mixed = len({t.success for t in counted}) > 1
            spread = round(max(values) - min(values), 6) if values else 0.0
            rank = (mixed and bool(values), min(spread, 0.5), len(values))
            if counted and (best is None or rank > best[0]):
                best = (rank, view)
    return best[1] if best else None


def number_at(row: Mapping[str, Any], key: str) -> float | None:
    """The number at a dotted key, or None where there is none (missing, null, not finite, not a number)."""
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, Number) or not isfinite(value):
        return None
    return float(value)


def _read_summary(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        summary = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(summary, dict):
        raise DataError(f"{path}: must hold a JSON object")
    return summary


@contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    """Turn torn-tail warnings into notes of the report; other warnings go on as they were. Not for generators."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TornTailWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, TornTailWarning):
            notes.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
