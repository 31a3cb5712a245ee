"""One evaluated question as a line of `results.jsonl`, and what of it is kept in memory.

The line holds the whole trajectory; a `ResultRow` holds the scores and costs only, so that 50,000 questions fit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from factagent.evaluation.runner import QuestionResult
from factagent.records import dumps, group_to_record
from factagent.rewards import NORMALISATION
from factagent.rows import Row
from factagent.types import Group, StopReason

SCHEMA = 1
"""Version of the fields on every line."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Scores and costs of one question. `None`: the data set has no such annotation, or there was no answer."""

    set: str
    id: str
    question: str
    golds: tuple[str, ...]
    type: str | None
    hops: int | None
    answer: str | None
    em: float
    f1: float
    cover_em: float
    coverage: float | None
    gold_passage_recall: float | None
    first_search_recall: float | None
    steps: int
    searches: int
    invalid: int
    prompt_tokens: int
    response_tokens: int
    stop_reason: StopReason
    error: str | None = None
    """What the server said, where the stop reason is a failure."""

    @property
    def key(self) -> tuple[str, str]:
        """Set and id: what names a question in an evaluation."""
        return self.set, self.id

    @property
    def failed(self) -> bool:
        """Whether infrastructure failed: such a row is in no mean, and is asked again on resume."""
        return self.stop_reason.is_failure

    @classmethod
    def of(cls, name: str, result: QuestionResult, error: str | None = None) -> Self:
        """The row of a result in the set `name`."""
        question = result.question
        return cls(
            set=name,
            id=question.id,
            question=question.text,
            golds=question.answers,
            answer=result.trajectory.answer,
            type=question.type,
            hops=question.hops,
            em=result.em,
            f1=result.f1,
            cover_em=result.cover_em,
            coverage=result.coverage,
            gold_passage_recall=result.gold_passage_recall,
            first_search_recall=result.first_search_recall,
            steps=result.steps,
            searches=result.searches,
            invalid=result.invalid,
            prompt_tokens=result.prompt_tokens,
            response_tokens=result.response_tokens,
            stop_reason=result.trajectory.stop_reason,
            error=error if result.failed else None,
        )

    @classmethod
    def read(cls, row: Row) -> Self:
        """The row that a line holds.

        Raises:
            DataError: another schema, or a field that is missing or of a wrong type; with file, line and field.
        """
        check_version(row)
        return cls(
            set=row.text("set"),
            id=row.text("id"),
            question=row.text("question"),
            golds=row.texts("golds"),
            type=row.text("type") if row.has("type") else None,
            hops=row.integer("hops") if row.has("hops") else None,
            answer=row.text("answer") if row.has("answer") else None,
            stop_reason=StopReason(row.choice("stop_reason", [reason.value for reason in StopReason])),
            error=row.text("error") if row.has("error") else None,
            em=row.number("em"),
            f1=row.number("f1"),
            cover_em=row.number("cover_em"),
            coverage=_optional(row, "coverage"),
            gold_passage_recall=_optional(row, "gold_passage_recall"),
            first_search_recall=_optional(row, "first_search_recall"),
            steps=row.integer("steps"),
            searches=row.integer("searches"),
            invalid=row.integer("invalid"),
            prompt_tokens=row.integer("prompt_tokens"),
            response_tokens=row.integer("response_tokens"),
        )


def _optional(row: Row, name: str) -> float | None:
    return row.number(name) if row.has(name) else None


def check_version(row: Row) -> None:
    """Refuse lines that another version wrote: their fields or their scores may mean something else.

    Raises:
        DataError: `schema` or `normalisation` is not this version's.
    """
    for name, known in (("schema", SCHEMA), ("normalisation", NORMALISATION)):
        if (found := row.integer(name)) != known:
            raise row.error(name, f"is {found}, and this version of factagent reads {known}; evaluate again")


def line_of(row: ResultRow, result: QuestionResult) -> bytes:
    """The line of `results.jsonl`, its end included: the row, then the trajectory without token ids and prompts."""
    plain: dict[str, Any] = {"schema": SCHEMA, "normalisation": NORMALISATION}
    plain |= {field.name: getattr(row, field.name) for field in fields(row)}
    plain |= {"golds": list(row.golds), "stop_reason": row.stop_reason.value}
    group = Group(result.question, (result.trajectory,))
    (trajectory,) = group_to_record(group, token_ids=False, messages=False)["trajectories"]
    return dumps(plain | {"trajectory": trajectory}) + b"\n"
