"""Question sets (`qa.jsonl`): rows to `Question` and back.

A row is `{"id", "question", "answers"}`, plus, where the data set has them, `type`, `hops`, `supporting_titles`,
`evidences` ([[subject, relation, object], ...]) and `evidence_variants` (for each evidence the list of its wordings).
Fields that are not named here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from factagent.data.formats import filled_text, gold_answers, write_rows
from factagent.rows import Row, read_rows
from factagent.types import Question, Triple


def read_questions(path: Path | str) -> list[Question]:
    """Read a question file (plain, .gz or .zst).

    Raises:
        DataError: a row is malformed, or an id occurs twice; with file, line and field.
    """
    questions: list[Question] = []
    seen: set[str] = set()
    for row in read_rows(path):
        question = question_of(row)
        if question.id in seen:
            raise row.error("id", f"{question.id!r} occurs twice; ids must be unique in a file")
        seen.add(question.id)
        questions.append(question)
    return questions


def question_of(row: Row) -> Question:
    """The question that one row holds; raises DataError as `read_questions`."""
    return Question(
        id=filled_text(row, "id"),
        text=filled_text(row, "question"),
        answers=gold_answers(row, "answers"),
        type=filled_text(row, "type") if row.has("type") else None,
        hops=_hops(row),
        supporting_titles=row.texts("supporting_titles", ()),
        evidences=row.triples("evidences", ()),
        evidence_variants=_variants(row),
    )


def _hops(row: Row) -> int | None:
    if not row.has("hops"):
        return None
    hops = row.integer("hops")
    if hops < 0:
        raise row.error("hops", f"must not be negative, found {hops}")
    return hops


def _variants(row: Row) -> tuple[tuple[Triple, ...], ...]:
    value = row.fields.get("evidence_variants")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise row.error("evidence_variants", f"must be a list of lists of triples, found {type(value).__name__}")
    wanted = len(row.triples("evidences", ()))
    if len(value) != wanted:
        raise row.error("evidence_variants", f"has {len(value)} lists for {wanted} evidences")
    # A row of its own, so that a fault is named with the index of its list.
    lists = Row(row.source, row.line, {str(i): item for i, item in enumerate(value)}, row.path("evidence_variants"))
    return tuple(lists.triples(str(i)) for i in range(wanted))


def row_of(question: Question) -> dict[str, Any]:
    """The row that stands for a question; optional fields are left out where they are empty."""
    row: dict[str, Any] = {"id": question.id, "question": question.text, "answers": list(question.answers)}
    optional = {
        "type": question.type,
        "hops": question.hops,
        "supporting_titles": list(question.supporting_titles),
        "evidences": [list(triple) for triple in question.evidences],
        "evidence_variants": [[list(triple) for triple in variants] for variants in question.evidence_variants],
    }
    return row | {name: value for name, value in optional.items() if value is not None and value != []}


def write_questions(path: Path | str, questions: Iterable[Question]) -> int:
    """Write a question file; returns the number of rows."""
    return write_rows(path, map(row_of, questions))
