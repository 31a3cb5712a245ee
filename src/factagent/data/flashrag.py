"""Questions of FlashRAG, `{"id", "question", "golden_answers", "metadata"}`, and of the verl rows made from such files.

Search-R1, ReSearch/ReCall and Agentic-RAG train from Parquet files whose golds stand under
`reward_model.ground_truth`: an object with `target`, a plain list, or a string. Their questions keep what was done to
them upstream (Search-R1 appended question marks).
"""

from __future__ import annotations

from collections.abc import Iterator

from factagent.data.annotations import Annotations, annotations_of, context_passages
from factagent.data.formats import filled_text, gold_answers, identifier
from factagent.rows import Row
from factagent.types import Passage, Question


def flashrag_question(row: Row) -> Question:
    """The question of a FlashRAG row; raises DataError where a field is missing or malformed."""
    return _question(row, identifier(row, "id"), gold_answers(row, "golden_answers"))


def flashrag_passages(row: Row) -> Iterator[Passage]:
    """The paragraphs in the metadata of a FlashRAG row, as `annotations.context_passages`."""
    if row.has("metadata"):
        yield from context_passages(row.row("metadata"))


def search_r1_question(row: Row) -> Question:
    """The question of a row of Search-R1; golds are `reward_model.ground_truth.target`."""
    return _question(row, _qualified_id(row), gold_answers(row.row("reward_model").row("ground_truth"), "target"))


def research_question(row: Row) -> Question:
    """The question of a row of ReSearch or ReCall; golds are the list `reward_model.ground_truth`."""
    return _question(row, _qualified_id(row), gold_answers(row.row("reward_model"), "ground_truth"))


def verl_qa_question(row: Row) -> Question:
    """The question of a row of Agentic-RAG; question and golds are in `extra_info`, one gold in `ground_truth`."""
    extra = row.row("extra_info")
    holder, name = (extra, "answer") if extra.has("answer") else (row.row("reward_model"), "ground_truth")
    answers = gold_answers(holder, name)
    return Question(_qualified_id(row), filled_text(extra, "question").strip(), answers)


def _question(row: Row, identity: str, answers: tuple[str, ...]) -> Question:
    known = annotations_of(row.row("metadata")) if row.has("metadata") else Annotations()
    return Question(identity, filled_text(row, "question").strip(), answers, *known)


def _qualified_id(row: Row) -> str:
    """`source:id`: files that merge several sets number each from 0, so the bare ids repeat."""
    source = filled_text(row, "data_source")
    if row.has("id"):
        return f"{source}:{identifier(row, 'id')}"
    extra = row.row("extra_info")
    if extra.has("id"):
        return f"{source}:{identifier(extra, 'id')}"
    return f"{source}:{filled_text(extra, 'split')}_{extra.integer('index')}"
