"""Open any question file or corpus that we know, whatever its format; the format is recognised from the first row.

The container (JSON lines, a JSON array, Parquet, tab-separated, a folder of documents) follows from the path, the
format from the fields. `FORMATS` lists the formats; a file may hold questions, passages, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from factagent.data.annotations import context_passages
from factagent.data.containers import read_any_rows
from factagent.data.contents import contents_passage
from factagent.data.corpus import passage_of, row_of_passage
from factagent.data.dataset import question_of
from factagent.data.documents import PASSAGE_WORDS, DocumentFolder
from factagent.data.dpr import read_tsv_rows
from factagent.data.flashrag import (
    flashrag_passages,
    flashrag_question,
    research_question,
    search_r1_question,
    verl_qa_question,
)
from factagent.data.identity import UniqueIds
from factagent.data.originals import hotpotqa_question, musique_question, popqa_question
from factagent.errors import DataError, UsageError
from factagent.rows import STDIN, Row
from factagent.types import Passage, Question

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Format:
    """What a row looks like and how it is read.

    A row is of this format where it has all `fields`, and, if `ground_truth` is given, holds that type under
    `reward_model.ground_truth`.
    """

    name: str
    fields: tuple[str, ...]
    question: Callable[[Row], Question] | None = None
    passages: Callable[[Row], Iterable[Passage]] | None = None
    ground_truth: type | None = None
    merged: bool = False
    """True where the same passage may come with several rows; it is then given once."""

    def matches(self, row: Row) -> bool:
        """Whether a row looks like this format; its values are not checked."""
        if any(name not in row.fields for name in self.fields):
            return False
        if self.ground_truth is None:
            return True
        model = row.fields["reward_model"]
        return isinstance(model, dict) and isinstance(model.get("ground_truth"), self.ground_truth)


FORMATS = (
    Format("questions", ("id", "question", "answers"), question_of),
    Format("search-r1", ("data_source", "reward_model"), search_r1_question, ground_truth=dict),
    Format("research", ("data_source", "reward_model", "question"), research_question, ground_truth=list),
    Format("verl-qa", ("data_source", "reward_model", "extra_info"), verl_qa_question, ground_truth=str),
    Format("flashrag", ("id", "question", "golden_answers"), flashrag_question, flashrag_passages, merged=True),
    Format("2wikimultihopqa", ("_id", "question", "evidences"), hotpotqa_question, context_passages, merged=True),
    Format("hotpotqa", ("_id", "question"), hotpotqa_question, context_passages, merged=True),
    Format("musique", ("id", "question", "question_decomposition"), musique_question, context_passages, merged=True),
    Format("popqa", ("id", "question", "possible_answers"), popqa_question, context_passages, merged=True),
    Format("passages", ("id", "title", "text"), passages=lambda row: (passage_of(row),)),
    Format("contents", ("id", "contents"), passages=lambda row: (contents_passage(row),)),
)
"""The formats, those with more telling fields first: a row is of the first that it matches."""


@dataclass(frozen=True, slots=True)
class Source:
    """An opened file: its format, and its rows, which can be read once."""

    path: str
    format: Format
    rows: Iterator[Row]

    def questions(self) -> Iterator[Question]:
        """Stream the questions.

        Raises:
            DataError: a row is malformed, an id occurs twice, or the format has no questions.
        """
        read = self.format.question
        if read is None:
            raise DataError(f"{self.path}: holds passages (format '{self.format.name}'), not questions")
        return self._questions(read)

    def passages(self) -> Iterator[Passage]:
        """Stream the passages; of questions that come with paragraphs, each distinct paragraph once.

        Raises:
            DataError: a row is malformed, an id occurs twice, or the file has no passages.
        """
        read = self.format.passages
        if read is None:
            raise DataError(f"{self.path}: holds questions (format '{self.format.name}') without passages")
        return self._passages(read)

    def _questions(self, read: Callable[[Row], Question]) -> Iterator[Question]:
        seen = UniqueIds()
        for row in self.rows:
            question = read(row)
            if not seen.add(question.id):
                raise _repeated(row, question.id)
            yield question

    def _passages(self, read: Callable[[Row], Iterable[Passage]]) -> Iterator[Passage]:
        seen = UniqueIds()
        empty = True
        for row in self.rows:
            for passage in read(row):
                empty = False
                if seen.add(passage.id):
                    yield passage
                elif not self.format.merged:
                    raise _repeated(row, passage.id)
        if empty:
            raise DataError(f"{self.path}: holds questions (format '{self.format.name}') without passages")


def open_source(
    path: str | Path, format: str = AUTO, *, words: int = PASSAGE_WORDS, skip_unreadable: bool = False
) -> Source:
    """Recognise a file by its first row.

    Args:
        path: a file (`.gz` and `.zst` are unpacked), a folder of documents, or `-` for standard input.
        format: the name of one of `FORMATS`, where the first row does not tell.
        words: size of the passages that documents are split into.
        skip_unreadable: leave out, with a warning, documents that cannot be read.

    Raises:
        DataError: the path does not exist, the first row cannot be read, or it is of no known format.
        UsageError: `format` is unknown.
    """
    documents = DocumentFolder(Path(path), words, skip_unreadable)
    rows = _document_rows(documents) if documents.exists() else _rows_of(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: holds no row")
    return Source(str(path), _recognise(first, format), chain([first], rows))


def open_questions(path: str | Path, format: str = AUTO, limit: int | None = None) -> list[Question]:
    """Read the questions of a file, the first `limit` of them if it is given; see `open_source`.

    The text of a question stays as the file has it, but for outer blanks (in our own format these stay too).

    Raises:
        DataError: a row is malformed (with file, line and field), an id occurs twice, or there are no questions.
    """
    return list(islice(open_source(path, format).questions(), limit))


def open_corpus(path: str | Path, format: str = AUTO) -> Iterator[Passage]:
    """Stream the passages of a corpus, of a folder of documents, or those that come with questions; see `open_source`.

    Raises:
        DataError: as `open_questions`; what is wrong with a later row is raised when it is reached.
    """
    return open_source(path, format).passages()


def _rows_of(path: str | Path) -> Iterator[Row]:
    if str(path) in STDIN:
        return read_any_rows(path)
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: does not exist")
    packed = path.suffix in (".gz", ".zst")
    return read_tsv_rows(path) if (path.with_suffix("") if packed else path).suffix == ".tsv" else read_any_rows(path)


def _document_rows(documents: DocumentFolder) -> Iterator[Row]:
    for number, passage in enumerate(documents.passages(), start=1):
        yield Row(str(documents.path), number, row_of_passage(passage))


def _recognise(row: Row, format: str) -> Format:
    names = [known.name for known in FORMATS]
    if format != AUTO:
        if format not in names:
            raise UsageError(f"unknown format '{format}'; choose one of {AUTO}, {', '.join(names)}")
        return FORMATS[names.index(format)]
    for known in FORMATS:
        if known.matches(row):
            return known
    wanted = "; ".join(f"{known.name} ({', '.join(known.fields)})" for known in FORMATS)
    problem = f"the fields {', '.join(row.fields) or '(none)'} are those of no known format: {wanted}"
    raise DataError.at(row.source, row.line, row.at or None, problem)


def _repeated(row: Row, identity: str) -> DataError:
    return row.error("id", f"{identity!r} occurs twice; ids must be unique in a file")
