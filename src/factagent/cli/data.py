"""`factagent data`: look into question files and corpora of any format, and convert them to ours."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Parameter

if TYPE_CHECKING:
    from factagent.data.sources import Source
    from factagent.rows import Row

Kind = Literal["questions", "passages"]
Item = TypeVar("Item")


def show(
    path: str,
    /,
    *,
    limit: Annotated[int, Parameter(alias="-n")] = 3,
    format: str = "auto",
    kind: Annotated[Kind | None, Parameter(name="--as")] = None,
) -> None:
    """Read a whole file, say what it is, and print its first rows as we understand them.

    Prints {"path", "format", "holds", "rows", "fields"}: `rows` counts questions or passages, `fields` how many rows of
    the file have each field.

    Args:
        path: Question file, corpus, folder of documents, or - for standard input.
        limit: How many rows to print.
        format: Format of the file, where its first row does not tell; see docs/reference/data.md.
        kind: What to read from a file that holds both questions and their passages (default: questions).
    """
    from dataclasses import replace

    from factagent.data.sources import open_source
    from factagent.errors import UsageError
    from factagent.rows import write_row

    if limit < 0:
        raise UsageError(f"--limit must not be negative, found {limit}")
    fields: Counter[str] = Counter()
    source = open_source(path, format)
    kind = kind or _kind_of(source)
    first: list[dict[str, object]] = []
    count = 0
    for count, row in enumerate(_rows(replace(source, rows=_counted(source.rows, fields)), kind), start=1):
        if count <= limit:
            first.append(row)
    write_row({"path": path, "format": source.format.name, "holds": kind, "rows": count, "fields": dict(fields)})
    for row in first:
        write_row(row)


def convert(
    path: str,
    /,
    *,
    out: Path,
    format: str = "auto",
    kind: Annotated[Kind | None, Parameter(name="--as")] = None,
    words: int = 100,
    skip_unreadable: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Write our own rows, {"id", "question", "answers", ...} or {"id", "title", "text"}, from a file of any format.

    Args:
        path: Question file, corpus, folder of documents, or - for standard input.
        out: File to write: .jsonl, .jsonl.gz or .jsonl.zst.
        format: Format of the file, where its first row does not tell; see docs/reference/data.md.
        kind: What to take from a file that holds both questions and their passages (default: questions).
        words: Size of the passages that documents are split into.
        skip_unreadable: Leave out documents that cannot be read, and name them, instead of stopping.
        force: Replace the output where it exists.
    """
    from factagent.data.formats import write_rows
    from factagent.data.sources import open_source
    from factagent.errors import UsageError

    if words < 1:
        raise UsageError(f"--words must be at least 1, found {words}")
    if not out.name.removesuffix(".gz").removesuffix(".zst").endswith(".jsonl"):
        raise UsageError(f"--out {out}: the output is JSON lines; name it .jsonl, .jsonl.gz or .jsonl.zst")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: the directory {out.parent} does not exist; make it first")
    if out.exists() and not force:
        raise UsageError(f"--out {out} exists; give --force to replace it")
    source = open_source(path, format, words=words, skip_unreadable=skip_unreadable)
    kind = kind or _kind_of(source)
    count = write_rows(out, _rows(source, kind))
    print(f"{out}: {count} {kind} (from format {source.format.name})")


def _kind_of(source: Source) -> Kind:
    return "questions" if source.format.question else "passages"


def _rows(source: Source, kind: Kind) -> Iterator[dict[str, object]]:
    from factagent.data.corpus import row_of_passage
    from factagent.data.dataset import row_of

    if kind == "questions":
        return (row_of(question) for question in _tracked(source.questions(), kind))
    return (row_of_passage(passage) for passage in _tracked(source.passages(), kind))


def _counted(rows: Iterable[Row], fields: Counter[str]) -> Iterator[Row]:
    for row in rows:
        fields.update(row.fields.keys())
        yield row


def _tracked(items: Iterator[Item], kind: Kind) -> Iterable[Item]:
    from rich.console import Console
    from rich.progress import track

    console = Console(file=sys.stderr)
    return track(items, f"reading {kind}", console=console, transient=True, disable=not console.is_terminal)
