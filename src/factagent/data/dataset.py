"""Question sets (`qa.jsonl`): rows to `Question` and back.

A row is `{"id", "question", "answers"}`, plus, where the data set has them, `type`, `hops`, `supporting_titles`,
`evidences` ([[subject, relation, object], ...]) and `evidence_variants` (for each evidence the list of its wordings).
Fields that are not named here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from factagent.data.formats import Row, read_rows, write_rows
from factagent.types import Question


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
            raise row.fault("id", f"{question.id!r} occurs twice; ids must be unique in a file")
        seen.add(question.id)
        questions.append(question)
    return questions


def question_of(row: Row) -> Question:
    """The question that one row holds."""
    evidences = row.triples("evidences")
    variants = row.triple_lists("evidence_variants")
    if variants and len(variants) != len(evidences):
        raise row.fault("evidence_variants", f"has {len(variants)} lists for {len(evidences)} evidences")
    return Question(
        id=row.text("id"),
        text=row.text("question"),
        answers=row.texts("answers", required=True),
        type=row.optional_text("type"),
        hops=row.optional_count("hops"),
        supporting_titles=row.texts("supporting_titles"),
        evidences=evidences,
        evidence_variants=variants,
    )


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
