"""When a run must stop by itself, with a checkpoint (reliability.md R5 and R7); the same for both engines."""

from __future__ import annotations

from collections.abc import Sequence

from factagent.train.config import AlarmConfig


def alarm_of(
    config: AlarmConfig, non_finite: int, failed_share: float, parse_errors: Sequence[float], problem: str | None
) -> str | None:
    """Why the run must stop after its last step, or None.

    Args:
        config: the thresholds.
        non_finite: steps in a row, the last among them, with an update that was skipped as not finite.
        failed_share: share of the last step's trajectories that a failing server ended.
        parse_errors: share of invalid actions in each of the last `parse_error_steps` steps (fewer at the start).
        problem: what the last failed server said.
    """
    if config.ignore:
        return None
    if non_finite >= config.non_finite_steps:
        return f"loss or gradients were not finite for {non_finite} steps in a row; lower the learning rate"
    if failed_share > config.failed_share:
        return f"{failed_share:.0%} of the trajectories failed: {problem}; resume when the servers answer"
    if len(parse_errors) == config.parse_error_steps and min(parse_errors) > config.parse_error_rate:
        return (
            f"more than {config.parse_error_rate:.0%} of the actions could not be parsed for {len(parse_errors)} "
            "steps: the policy is collapsing; lower the learning rate, cold-start it, or set alarms.ignore"
        )
    return None
