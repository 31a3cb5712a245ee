"""The alarms of a run on a cluster, read off its rows of metrics.

The rows are what a resumed run has anyway, so alarms need no state of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from factagent.train.alarms import alarm_of
from factagent.train.config import AlarmConfig


def alarm_of_rows(
    config: AlarmConfig, rows: Sequence[Mapping[str, Any]], trajectories: int, problem: str | None = None
) -> str | None:
    """Why the run must stop after the last of its rows, or None.

    Args:
        config: the thresholds.
        rows: of `metrics.jsonl`, oldest first; rows of step 0 do not count.
        trajectories: sampled in a step.
        problem: what the last failed server said.
    """
    trained = [row for row in rows if row["step"] > 0]
    if not trained:
        return None
    non_finite = sum(1 for _ in takewhile(lambda row: row["updates_skipped"], reversed(trained)))
    parse_errors = [row["parse_error_rate"] for row in trained[-config.parse_error_steps :]]
    return alarm_of(config, non_finite, trained[-1]["failed_trajectories"] / trajectories, parse_errors, problem)
