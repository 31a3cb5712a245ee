"""What a report needs of each run, finished or not: dev scores along the way, answers at the end, costs, stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from factagent.analysis.run_view import RunView, number_at, read_run
from factagent.arena.jobs import Failure, read_failure
from factagent.arena.plan import Places, PlannedRun
from factagent.evaluation.results import read_results

Metric = Literal["em", "f1", "coverage"]
METRICS: tuple[Metric, ...] = ("em", "f1", "coverage")
State = Literal["waiting", "under way", "stopped", "finished"]

COSTS = (
    "prompt_tokens",
    "response_tokens",
    "measure_tokens",
    "seconds.rollout",
    "seconds.measure",
    "seconds.credit",
    "seconds.learn",
)
"""Keys of `metrics.jsonl` whose means a step are reported; one that a run lacks counts as 0."""


@dataclass(frozen=True)
class Point:
    """Dev scores at one moment of training."""

    step: int
    tokens: float
    """Generated in training so far, with those of measuring."""
    scores: Mapping[Metric, float | None]


@dataclass(frozen=True)
class RunRecord:
    """One run of an arena as far as it has come."""

    entry: str
    seed: int
    state: State
    steps: int
    planned_steps: int
    points: tuple[Point, ...] = ()
    answers: Mapping[tuple[str, str], Mapping[Metric, float]] | None = None
    """EM and F1 of each dev question at the end; None where the run did not keep them."""
    costs: Mapping[str, float] | None = None
    failure: Failure | None = None
    skipped: int = 0
    """Updates that were skipped as not finite."""
    parse_errors: float = 0.0
    """Share of invalid replies in the last step."""

    @property
    def name(self) -> str:
        """Entry and seed."""
        return f"{self.entry}.seed{self.seed}"

    @property
    def tokens(self) -> float:
        """Generated in training so far."""
        return self.points[-1].tokens if self.points else 0.0

    def at_end(self, metric: Metric) -> float | None:
        """The score after the last step; None before that, or where the method has no such score."""
        return self.points[-1].scores[metric] if self.state == "finished" and self.points else None

    def at_tokens(self, metric: Metric, tokens: float) -> float | None:
        """The score when so many tokens were generated, on the straight line between two evaluations.

        None beyond what the run generated, and where it has no such score.
        """
        known = [(point.tokens, score) for point in self.points if (score := point.scores[metric]) is not None]
        if not known or tokens > known[-1][0] or tokens < known[0][0]:
            return None
        places, values = zip(*known, strict=True)
        return float(np.interp(tokens, places, values))


def read_records(runs: Sequence[PlannedRun], places: Places) -> list[RunRecord]:
    """The records of planned runs, in their order.

    Raises:
        DataError: a file is malformed beyond a torn tail.
    """
    return [_read(run, places) for run in runs]


def steps_done(directory: Path) -> int:
    """Steps in the summary of a run; 0 where it has none."""
    if not (directory / "summary.json").exists():
        return 0
    return int(number_at(read_run(directory).summary, "steps") or 0)


def common_tokens(records: Sequence[RunRecord]) -> float | None:
    """The largest number of generated tokens that every finished run reached; None where none is finished."""
    return min((record.tokens for record in records if record.state == "finished"), default=None)


def _read(run: PlannedRun, places: Places) -> RunRecord:
    planned = run.config.schedule.steps
    failure = read_failure(places.failure(run.name), places.log(run.name))
    if failure is None and run.cold_start is not None:
        cold = f"cold-start.{run.cold_start}"
        failure = read_failure(places.failure(cold), places.log(cold))
    empty = RunRecord(run.entry, run.seed, "stopped" if failure else "waiting", 0, planned, failure=failure)
    if not (run.path / "config.toml").exists():
        return empty
    view = read_run(run.path)
    trained = [row for row in view.metrics if row["step"] > 0]
    done = trained[-1]["step"] if trained else 0
    finished = bool(view.summary) and done >= planned
    return replace(
        empty,
        state="finished" if finished else "stopped" if failure else "under way",
        steps=done,
        points=_points(view),
        answers=_answers(run.path) if finished else None,
        costs={key: float(np.mean([number_at(row, key) or 0.0 for row in trained])) for key in COSTS}
        if trained
        else None,
        failure=None if finished else failure,
        skipped=int(sum(number_at(row, "updates_skipped") or 0 for row in trained)),
        parse_errors=(number_at(trained[-1], "parse_error_rate") or 0.0) if trained else 0.0,
    )


def _points(view: RunView) -> tuple[Point, ...]:
    """Every evaluation with the tokens generated before it; the summary's comes last."""
    tokens, points = 0.0, dict[int, Point]()
    for row in view.metrics:
        tokens += sum(number_at(row, key) or 0.0 for key in ("response_tokens", "measure_tokens"))
        if isinstance(row.get("eval"), Mapping):
            points[row["step"]] = Point(row["step"], tokens, _scores(row["eval"]))
    after = view.summary.get("after")
    if isinstance(after, Mapping):
        last = int(number_at(view.summary, "steps") or 0)
        points[last] = Point(last, tokens, _scores(after))
    return tuple(points.values())


def _scores(row: Mapping[str, Any]) -> dict[Metric, float | None]:
    return {metric: number_at(row, metric) for metric in METRICS}


def _answers(run: Path) -> dict[tuple[str, str], dict[Metric, float]] | None:
    rows: dict[tuple[str, str], dict[Metric, float]] = {
        row.key: {"em": row.em, "f1": row.f1} for row in read_results(run / "dev") if not row.failed
    }
    return rows or None
