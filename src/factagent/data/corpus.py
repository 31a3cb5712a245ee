"""Corpora (`corpus.jsonl`) and the statements that their passages make (`facts.jsonl`).

A passage row is `{"id", "title", "text"}`; a facts row is `{"passage_id", "triples": [[subject, relation, object],
...]}`, as an open-information-extraction file has them. Other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from factagent.data.formats import filled_text, write_rows
from factagent.rows import Row, read_rows
from factagent.types import Passage, Triple


def iter_passages(path: Path | str) -> Iterator[Passage]:
    """Stream the passages of a file (plain, .gz or .zst), for corpora that do not fit in memory.

    Raises:
        DataError: a row is malformed, with file, line and field. Repeated ids are found by `read_passages` only.
    """
    for row in read_rows(path):
        yield passage_of(row)


def read_passages(path: Path | str) -> list[Passage]:
    """Read a whole corpus.

    Raises:
        DataError: a row is malformed, or an id occurs twice.
    """
    passages: dict[str, Passage] = {}
    for row in read_rows(path):
        passage = passage_of(row)
        if passage.id in passages:
            raise row.error("id", f"{passage.id!r} occurs twice; ids must be unique in a corpus")
        passages[passage.id] = passage
    return list(passages.values())


def write_passages(path: Path | str, passages: Iterable[Passage]) -> int:
    """Write a corpus file; returns the number of passages."""
    return write_rows(path, map(row_of_passage, passages))


def row_of_passage(passage: Passage) -> dict[str, object]:
    """The row that stands for a passage; scores belong to searches and are left out."""
    return {"id": passage.id, "title": passage.title, "text": passage.text}


def read_facts(path: Path | str) -> dict[str, tuple[Triple, ...]]:
    """Read the statements of each passage, by passage id.

    Raises:
        DataError: a row is malformed, or a passage occurs twice.
    """
    facts: dict[str, tuple[Triple, ...]] = {}
    for row in read_rows(path):
        passage_id = filled_text(row, "passage_id")
        if passage_id in facts:
            raise row.error("passage_id", f"{passage_id!r} occurs twice; put its triples in one row")
        facts[passage_id] = row.triples("triples")
    return facts


def write_facts(path: Path | str, facts: Mapping[str, Iterable[Triple]]) -> int:
    """Write the statements of each passage; returns the number of rows."""
    return write_rows(
        path, ({"passage_id": key, "triples": [list(triple) for triple in triples]} for key, triples in facts.items())
    )


def passage_of(row: Row) -> Passage:
    """The passage that one row holds; raises DataError as `iter_passages`."""
    return Passage(filled_text(row, "id"), row.text("title"), filled_text(row, "text"))
