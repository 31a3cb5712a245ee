"""Gold facts beside a question: supporting titles, evidence triples, hops, and the paragraphs that came with it.

The original files of HotpotQA, 2WikiMultiHopQA, MuSiQue and PopQA hold these fields in the row, FlashRAG and Search-R1
in its `metadata`; the same functions read both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from factagent.data.formats import filled_text
from factagent.rows import Row
from factagent.types import Passage, Triple


class Annotations(NamedTuple):
    """What is known about a question's evidence; empty where the file says nothing."""

    type: str | None = None
    hops: int | None = None
    supporting_titles: tuple[str, ...] = ()
    evidences: tuple[Triple, ...] = ()


def annotations_of(row: Row) -> Annotations:
    """Read the annotations that a row (or its metadata) holds.

    `hops` is the number of sub-questions, else of evidence triples, else of supporting titles, whichever is there.

    Raises:
        DataError: a field is malformed, or the question is marked unanswerable.
    """
    if not row.flag("answerable", True):
        raise row.error("answerable", "is false: such questions have no right answer; use MuSiQue-Ans, not -Full")
    parts = row.rows("question_decomposition", ())
    evidences = row.triples("evidences", ()) or _popqa_triple(row)
    titles = tuple(dict.fromkeys(_titles_of_facts(row) or _titles_of_parts(row, parts) or _popqa_title(row)))
    hops = len(parts) or len(evidences) or len(titles) or None
    return Annotations(row.text("type", "").strip() or None, hops, titles, evidences)


def context_passages(row: Row) -> Iterator[Passage]:
    """The paragraphs of a question (`context` or `paragraphs`), golds and distractors, white space collapsed.

    A passage's id is a hash of its title and text, so one that comes with several questions has the same id each time.
    Paragraphs without text, which the originals hold here and there, are no passages.

    Raises:
        DataError: a paragraph is malformed.
    """
    for title, text in _context(row) if row.has("context") else _paragraphs(row):
        title, text = " ".join(title.split()), " ".join(text.split())
        if text:
            digest = hashlib.sha256(f"{title}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
            yield Passage(digest[:20], title, text)


def _titles_of_facts(row: Row) -> tuple[str, ...]:
    """`[[title, sentence index], ...]`, or FlashRAG's `{"title": [...], "sent_id": [...]}`."""
    facts = row.fields.get("supporting_facts")
    if isinstance(facts, dict):
        return row.row("supporting_facts").texts("title")
    return tuple(title for title, _ in _pairs(row, "supporting_facts"))


def _titles_of_parts(row: Row, parts: tuple[Row, ...]) -> tuple[str, ...]:
    """The title of each sub-question's paragraph, which stands in it or is an index into `paragraphs`."""
    paragraphs = row.rows("paragraphs", ())
    titles = []
    for part in parts:
        if part.has("support_paragraph"):
            titles.append(part.row("support_paragraph").text("title"))
        elif part.has("paragraph_support_idx") and paragraphs:
            index = part.integer("paragraph_support_idx")
            if not 0 <= index < len(paragraphs):
                raise part.error("paragraph_support_idx", f"is {index}, but there are {len(paragraphs)} paragraphs")
            titles.append(paragraphs[index].text("title"))
    return tuple(titles)


def _popqa_triple(row: Row) -> tuple[Triple, ...]:
    if not all(row.has(name) for name in ("subj", "prop", "obj")):
        return ()
    return (Triple(*(filled_text(row, name).strip() for name in ("subj", "prop", "obj"))),)


def _popqa_title(row: Row) -> tuple[str, ...]:
    return (filled_text(row, "s_wiki_title"),) if row.has("s_wiki_title") else ()


def _context(row: Row) -> Iterator[tuple[str, str]]:
    """`[[title, [sentence, ...]], ...]`, or FlashRAG's `{"title": [...], "sentences" or "content": [[...], ...]}`."""
    if not isinstance(row.fields["context"], dict):
        for i, (title, sentences) in enumerate(_pairs(row, "context")):
            yield title, _joined(row, f"context[{i}][1]", sentences)
        return
    context = row.row("context")
    name = "sentences" if context.has("sentences") else "content"
    titles, texts = context.texts("title"), context.fields.get(name)
    if not isinstance(texts, list) or len(texts) != len(titles):
        raise context.error(name, f"must be a list as long as 'title', which has {len(titles)} items")
    for i, (title, sentences) in enumerate(zip(titles, texts, strict=True)):
        yield title, _joined(context, f"{name}[{i}]", sentences)


def _paragraphs(row: Row) -> Iterator[tuple[str, str]]:
    for paragraph in row.rows("paragraphs", ()):
        yield paragraph.text("title"), paragraph.text("paragraph_text" if paragraph.has("paragraph_text") else "text")


def _pairs(row: Row, name: str) -> Iterator[tuple[str, object]]:
    items = row.fields.get(name)
    if items is None:
        return
    if not isinstance(items, list):
        raise row.error(name, f"must be a list of pairs, found {type(items).__name__}")
    for i, item in enumerate(items):
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
            raise row.error(f"{name}[{i}]", "must be a list of a title and something else")
        yield item[0], item[1]


def _joined(row: Row, name: str, sentences: object) -> str:
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise row.error(name, "must be a list of sentences")
    return " ".join(sentences)
