"""Questions of the original files: HotpotQA, 2WikiMultiHopQA, MuSiQue and PopQA, as their authors publish them."""

from __future__ import annotations

import re

import orjson

from factagent.data.annotations import annotations_of
from factagent.data.formats import filled_text, gold_answers, identifier
from factagent.rows import Row
from factagent.types import Question

_MUSIQUE_TYPE = re.compile(r"\d+hop\d*(?=__)")


def hotpotqa_question(row: Row) -> Question:
    """The question of a HotpotQA or 2WikiMultiHopQA row.

    Raises:
        DataError: a field is missing or malformed; the published test sets have no `answer`.
    """
    return Question(identifier(row, "_id"), filled_text(row, "question").strip(), _answers(row), *annotations_of(row))


def musique_question(row: Row) -> Question:
    """The question of a MuSiQue-Ans row; its type (`2hop`, `3hop1`, ...) is the beginning of the id.

    Raises:
        DataError: as `hotpotqa_question`, and for a question marked unanswerable (MuSiQue-Full).
    """
    identity = identifier(row, "id")
    kind = _MUSIQUE_TYPE.match(identity)
    known = annotations_of(row)._replace(type=kind[0] if kind else None)
    return Question(identity, filled_text(row, "question").strip(), _answers(row), *known)


def popqa_question(row: Row) -> Question:
    """The question of a PopQA row; `possible_answers` is a list, or the text of one in JSON as its authors have it."""
    return Question(
        identifier(row, "id"), filled_text(row, "question").strip(), _possible_answers(row), *annotations_of(row)
    )


def _answers(row: Row) -> tuple[str, ...]:
    """The answer, then its aliases, without repeats."""
    return tuple(dict.fromkeys((filled_text(row, "answer"), *row.texts("answer_aliases", ()))))


def _possible_answers(row: Row) -> tuple[str, ...]:
    name = "possible_answers"
    value = row.fields.get(name)
    if not isinstance(value, str):
        return gold_answers(row, name)
    try:
        return gold_answers(Row(row.source, row.line, {name: orjson.loads(value)}, row.at), name)
    except orjson.JSONDecodeError as error:
        raise row.error(name, f"must be a list of strings in JSON: {error}") from error
