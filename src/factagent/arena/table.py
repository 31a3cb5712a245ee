"""Everything that an arena's report says, as plain numbers (`table.json`); pages are made from it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from factagent.arena.config import ArenaConfig
from factagent.arena.reading import COSTS, METRICS, Metric, RunRecord, common_tokens
from factagent.arena.statistics import Estimate, Score, over_seeds, paired_by_seed, pooled_by_question
from factagent.evaluation.compare import holm

SCHEMA = 1

Records = Mapping[str, Sequence[RunRecord]]
"""Runs by entry."""


def arena_table(
    arena: ArenaConfig, records: Sequence[RunRecord], confirmed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Scores, differences, costs and the state of every run.

    Args:
        arena: its configuration.
        records: every planned run.
        confirmed: what `confirm` kept of the test questions.

    Returns:
        `entries` by name: `start`, `steps` and `tokens` (scores over seeds at both budgets), `difference` (to the
        baseline: `seed_steps`, `seed_tokens`, `question`), `cost` (means a step), `seeds` finished; `pairs`: every two
        entries at equal steps; `ranking` by EM at the arena's budget; `runs`.
    """
    entries = _by_entry(arena, records)
    tokens = common_tokens(records)
    table: dict[str, Any] = {
        "schema": SCHEMA,
        "name": arena.name,
        "budget": arena.budget,
        "baseline": arena.first,
        "seeds": list(arena.seed_list),
        "steps": max((record.planned_steps for record in records), default=0),
        "tokens": tokens,
        "states": dict(Counter(record.state for record in records)),
        "entries": {name: _entry(arena, name, entries, tokens) for name in entries},
        "pairs": _pairs(entries),
        "runs": [_run(record) for record in records],
        "confirmed": confirmed,
    }
    _correct(table["entries"])
    table["ranking"] = _ranking(table)
    return table


def at_end(metric: Metric) -> Score:
    """The score after the last step."""
    return lambda record: record.at_end(metric)


def at_tokens(metric: Metric, tokens: float | None) -> Score:
    """The score of a finished run when it had generated so many tokens."""
    return lambda r: None if tokens is None or r.state != "finished" else r.at_tokens(metric, tokens)


def at_start(metric: Metric) -> Score:
    """The score before the first step."""
    return lambda r: r.points[0].scores[metric] if r.points and r.points[0].step == 0 else None


def _by_entry(arena: ArenaConfig, records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    return {name: [record for record in records if record.entry == name] for name in arena.entries}


def _entry(arena: ArenaConfig, name: str, entries: Records, tokens: float | None) -> dict[str, Any]:
    own, first = entries[name], entries[arena.first]
    differences: dict[str, Any] = {}
    if name != arena.first:
        differences = {
            "seed_steps": {m: _plain(paired_by_seed(first, own, at_end(m))) for m in METRICS},
            "seed_tokens": {m: _plain(paired_by_seed(first, own, at_tokens(m, tokens))) for m in METRICS},
            "question": {m: _plain(pooled_by_question(first, own, m)) for m in ("em", "f1")},
        }
    return {
        "title": arena.title(name),
        "seeds": sum(record.state == "finished" for record in own),
        "start": {m: _plain(over_seeds(own, at_start(m))) for m in METRICS},
        "steps": {m: _plain(over_seeds(own, at_end(m))) for m in METRICS},
        "tokens": {m: _plain(over_seeds(own, at_tokens(m, tokens))) for m in METRICS},
        "difference": differences,
        "cost": _cost(own),
    }


def _cost(records: Sequence[RunRecord]) -> dict[str, float] | None:
    """Means a step over the runs that have taken one, and the tokens that a finished run generated in all."""
    costs = [record.costs for record in records if record.costs is not None]
    if not costs:
        return None
    means = {key: float(np.mean([cost[key] for cost in costs])) for key in COSTS}
    ends = [record.tokens for record in records if record.state == "finished"]
    return means | ({"tokens_in_all": float(np.mean(ends))} if ends else {})


def _pairs(entries: Records) -> list[dict[str, Any]]:
    """EM of each entry minus that of each entry before it, paired by seed and pooled over questions."""
    names = list(entries)
    return [
        {
            "first": one,
            "other": two,
            "seed": _plain(paired_by_seed(entries[one], entries[two], at_end("em"))),
            "question": _plain(pooled_by_question(entries[one], entries[two], "em")),
        }
        for index, one in enumerate(names)
        for two in names[index + 1 :]
    ]


def _correct(entries: Mapping[str, dict[str, Any]]) -> None:
    """Add `p_holm` to the differences to the baseline, over the entries, within each kind and metric."""
    places = {(kind, metric) for row in entries.values() for kind, by in row["difference"].items() for metric in by}
    for kind, metric in places:
        found = [row["difference"][kind][metric] for row in entries.values() if row["difference"]]
        tested = [difference for difference in found if difference is not None and difference["p"] is not None]
        for difference, p in zip(tested, holm([each["p"] for each in tested]), strict=True):
            difference["p_holm"] = p


def _ranking(table: Mapping[str, Any]) -> list[str]:
    """Entries by EM at the arena's budget, best first; those without a finished run come last."""
    scores = {name: row[table["budget"]]["em"] for name, row in table["entries"].items()}
    return sorted(scores, key=lambda name: -scores[name]["mean"] if scores[name] else 1.0)


def _run(record: RunRecord) -> dict[str, Any]:
    failure = record.failure
    return {
        "entry": record.entry,
        "seed": record.seed,
        "state": record.state,
        "steps": record.steps,
        "planned_steps": record.planned_steps,
        "tokens": record.tokens,
        "em": record.at_end("em"),
        "f1": record.at_end("f1"),
        "coverage": record.at_end("coverage"),
        "answers_kept": record.answers is not None,
        "skipped_updates": record.skipped,
        "parse_error_rate": record.parse_errors,
        "exit_code": failure.exit_code if failure else None,
        "message": failure.message if failure else None,
        "log": str(failure.log) if failure else None,
    }


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)
