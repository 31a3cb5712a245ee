"""Writing JSON-lines files, plain, gzipped or zstd-compressed, and the checks that corpora and question sets share.

Reading goes through `factagent.rows`, so a malformed row always names its file, line and field. Gzip files carry a zero
time stamp and files appear in one step: the same rows give the same bytes, and no reader sees half a file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Protocol

import zstandard

from factagent.rows import Row


class _Writer(Protocol):
    def write(self, content: bytes, /) -> int: ...


def filled_text(row: Row, name: str) -> str:
    """A required string that is not blank.

    Raises:
        DataError: the field is absent, no string, or blank.
    """
    text = row.text(name)
    if not text.strip():
        raise row.error(name, "must not be blank")
    return text


def identifier(row: Row, name: str) -> str:
    """An id as other people's files have it: a string that is not blank, or a whole number.

    Raises:
        DataError: the field is absent, blank, or neither.
    """
    return str(row.integer(name)) if isinstance(row.fields.get(name), int) else filled_text(row, name)


def gold_answers(row: Row, name: str) -> tuple[str, ...]:
    """A list of at least one string; a bare string is a list of one.

    Raises:
        DataError: the field is absent, empty, or holds something else.
    """
    answers = row.texts(name)
    if not answers:
        raise row.error(name, "must hold at least one string")
    return answers


def write_rows(path: Path | str, rows: Iterable[Mapping[str, object]]) -> int:
    """Stream rows into a file of JSON lines, compressed by its suffix, atomically; returns the number of rows."""
    path = Path(path)
    temporary = _temporary(path)
    count = 0
    try:
        with temporary.open("wb") as stream:
            with _packer(path, stream) as packed:
                for row in rows:
                    packed.write(_encode(row))
                    count += 1
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content in one step: a reader sees the old bytes or the new ones."""
    temporary = _temporary(path)
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def sha256_of(path: Path | str) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _packer(path: Path, stream: IO[bytes]) -> AbstractContextManager[_Writer]:
    if path.suffix == ".gz":
        return gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)
    if path.suffix == ".zst":
        return zstandard.ZstdCompressor().stream_writer(stream, closefd=False)
    return nullcontext(stream)


def _encode(row: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate, which JSON can hold only as an escape.
        return json.dumps(row).encode() + b"\n"
