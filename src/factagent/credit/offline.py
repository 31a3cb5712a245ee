"""Groups that somebody sampled elsewhere: JSON rows in, credit as plain JSON out (`factagent credit`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from factagent.credit.assign import ClusterCredit, GroupCredit, TrajectoryCredit, assign_credit
from factagent.credit.config import CreditConfig
from factagent.rows import Row
from factagent.types import Action, Answer, Assert, Group, Invalid, Question, Search, Step, StopReason, Trajectory

if TYPE_CHECKING:
    from factagent.credit.encoders import Encoder

ACTIONS = ("search", "assert", "answer", "invalid")


def group_from_row(row: Row) -> Group:
    """A group from `{"question", "golds": [str], "trajectories": [{"steps": [...], "stop_reason"?}]}`.

    Steps are `{"action": "search", "query"}`, `{"action": "assert", "triples": [[s, r, o], ...], "summary"?}`,
    `{"action": "answer", "response"}` or `{"action": "invalid"}`. Other fields are ignored. Without `stop_reason` a
    trajectory was answered or ran out of rounds.

    Raises:
        DataError: a field is missing or malformed, steps follow an answer, or the group is empty.
    """
    golds, trajectories = row.texts("golds"), row.rows("trajectories")
    if not golds:
        raise row.error("golds", "must hold at least one gold answer")
    if not trajectories:
        raise row.error("trajectories", "must hold at least one trajectory")
    question = Question(id=str(row.line), text=row.text("question"), answers=golds)
    return Group(question, tuple(_trajectory(item, member) for member, item in enumerate(trajectories)))


def credit_rows(rows: Iterable[Row], config: CreditConfig, encoder: Encoder) -> Iterator[dict[str, object]]:
    """The credit of each row's group, in order, as plain JSON (see `record`).

    A row is done before the next is read, except under `process_scale = "batch-std"`, where all rows are one batch.
    """
    groups = (group_from_row(row) for row in rows)
    batches = [list(groups)] if config.process_scale == "batch-std" else ([group] for group in groups)
    for batch in batches:
        for credit in assign_credit(batch, config, encoder):
            yield record(credit)


def record(credit: GroupCredit) -> dict[str, object]:
    """The credit of a group as plain JSON values; a trajectory that was left out also has `"excluded": true`."""
    return {
        "baseline": credit.baseline,
        "clusters": [_cluster(cluster) for cluster in credit.clusters],
        "trajectories": [_ledger(trajectory) for trajectory in credit.trajectories],
    }


def _trajectory(row: Row, member: int) -> Trajectory:
    rows = row.rows("steps")
    actions = [_action(item) for item in rows]
    for after, action in zip(rows[1:], actions, strict=False):
        if isinstance(action, Answer):
            raise after.error("action", "follows an answer, which ends a trajectory")
    answered = bool(actions) and isinstance(actions[-1], Answer)
    ending = StopReason.ANSWERED if answered else StopReason.OUT_OF_ROUNDS
    stop = row.choice("stop_reason", [str(reason) for reason in StopReason], default=str(ending))
    return Trajectory(tuple(Step(action) for action in actions), StopReason(stop), member)


def _action(row: Row) -> Action:
    kind = row.choice("action", ACTIONS)
    if kind == "search":
        return Search(row.text("query"))
    if kind == "assert":
        return Assert(row.triples("triples"), row.text("summary", default=""))
    if kind == "answer":
        return Answer(row.text("response"))
    return Invalid(row.text("reason", default="invalid"), row.text("detail", default=""))


def _cluster(cluster: ClusterCredit) -> dict[str, object]:
    return {
        "representative": list(cluster.representative),
        "members": [list(triple) for triple in cluster.members],
        "support": cluster.support,
        "successes": cluster.successes,
        "posterior_mean": cluster.posterior_mean,
        "utility": cluster.utility,
        "interval": list(cluster.interval),
    }


def _ledger(trajectory: TrajectoryCredit) -> dict[str, object]:
    steps = [
        {
            "potential": step.potential,
            "shaping": step.shaping,
            "process": step.process,
            "penalties": step.penalties,
            "advantage": step.advantage,
        }
        for step in trajectory.steps
    ]
    ledger: dict[str, object] = {
        "outcome": trajectory.outcome,
        "success": trajectory.success,
        "outcome_advantage": trajectory.outcome_advantage,
        "steps": steps,
    }
    return ledger | {"excluded": True} if trajectory.excluded else ledger
