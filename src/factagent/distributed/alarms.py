"""When a run on a cluster must stop by itself, read off its rows of metrics (reliability.md R5 and R7).

The rows are what a resumed run has anyway, so alarms need no state of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from factagent.train.config import AlarmConfig


def alarm_of(
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
    if config.ignore or not trained:
        return None
    last = trained[-config.non_finite_steps :]
    if len(last) == config.non_finite_steps and all(row["updates_skipped"] for row in last):
        return f"loss or gradients were not finite for {len(last)} steps in a row; lower the learning rate"
    failed = trained[-1]["failed_trajectories"] / trajectories
    if failed > config.failed_share:
        return f"{failed:.0%} of the trajectories failed: {problem}; resume when the servers answer"
    rates = [row["parse_error_rate"] for row in trained[-config.parse_error_steps :]]
    if len(rates) == config.parse_error_steps and min(rates) > config.parse_error_rate:
        return (
            f"more than {config.parse_error_rate:.0%} of the actions could not be parsed for {len(rates)} steps: "
            "the policy is collapsing; lower the learning rate, cold-start it, or set alarms.ignore"
        )
    return None
