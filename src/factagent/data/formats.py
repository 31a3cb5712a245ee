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
from pathlib import Path

from factagent.rows import Row


def filled_text(row: Row, name: str) -> str:
    """A required string that is not blank.

    Raises:
        DataError: the field is absent, no string, or blank.
    """
    text = row.text(name)
    if not text.strip():
        raise row.error(name, "must not be blank")
    return text


def write_rows(path: Path | str, rows: Iterable[Mapping[str, object]]) -> int:
    """Write rows as JSON lines, compressed by the file's suffix, atomically; returns the number of rows."""
    path = Path(path)
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    write_bytes(path, _compress(path, b"".join(lines)))
    return len(lines)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content in one step: a reader sees the old bytes or the new ones."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def sha256_of(path: Path | str) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _compress(path: Path, content: bytes) -> bytes:
    if path.suffix == ".gz":
        return gzip.compress(content, mtime=0)
    if path.suffix == ".zst":
        import zstandard

        return zstandard.compress(content)
    return content
