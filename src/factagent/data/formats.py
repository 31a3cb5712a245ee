"""JSON-lines files, plain, gzipped or zstd-compressed: read with the place of every fault, written atomically.

Every reader of this package goes through `read_rows` and the field checks here, so a malformed row always names its
file, line and field. Gzip files are written with a zero time stamp: the same rows give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from factagent.errors import DataError
from factagent.types import Triple


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object of a file, with its place (`line` counts from 1)."""

    path: Path
    line: int
    data: dict[str, Any]

    def fault(self, field: str | None, problem: str) -> DataError:
        """The error for a fault of this row."""
        return DataError.at(self.path, self.line, field, problem)

    def text(self, field: str, *, empty: bool = False) -> str:
        """A required string. Raises DataError where it is absent, no string, or (unless `empty`) blank."""
        if field not in self.data:
            raise self.fault(field, "missing; add it as a string")
        value = self.data[field]
        if not isinstance(value, str):
            raise self.fault(field, f"expected a string, got {type(value).__name__}")
        if not empty and not value.strip():
            raise self.fault(field, "must not be empty")
        return value

    def optional_text(self, field: str) -> str | None:
        """A string, or None where the field is absent or null."""
        return None if self.data.get(field) is None else self.text(field)

    def optional_count(self, field: str) -> int | None:
        """A non-negative integer, or None where the field is absent or null."""
        value = self.data.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.fault(field, f"expected a non-negative integer, got {value!r}")
        return value

    def texts(self, field: str, *, required: bool = False) -> tuple[str, ...]:
        """A list of strings; absent or null is the empty tuple unless `required` (which also refuses an empty list)."""
        value = self.data.get(field)
        if value is None and not required:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fault(field, "expected a list of strings")
        if required and not value:
            raise self.fault(field, "must hold at least one string")
        return tuple(value)

    def triples(self, field: str, *, required: bool = False) -> tuple[Triple, ...]:
        """A list of [subject, relation, object]; absent or null is the empty tuple unless `required`."""
        value = self.data.get(field)
        if value is None and not required:
            return ()
        return self._triples(field, value)

    def triple_lists(self, field: str) -> tuple[tuple[Triple, ...], ...]:
        """A list of lists of triples; absent or null is the empty tuple."""
        value = self.data.get(field)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.fault(field, f"expected a list, got {type(value).__name__}")
        return tuple(self._triples(f"{field}[{index}]", item) for index, item in enumerate(value))

    def _triples(self, field: str, value: object) -> tuple[Triple, ...]:
        if not isinstance(value, list):
            raise self.fault(field, f"expected a list of triples, got {type(value).__name__}")
        for index, item in enumerate(value):
            if not isinstance(item, list) or len(item) != 3 or not all(isinstance(part, str) for part in item):
                raise self.fault(f"{field}[{index}]", "expected [subject, relation, object] as three strings")
        return tuple(Triple(*(part.strip() for part in item)) for item in value)


def read_rows(path: Path | str) -> Iterator[Row]:
    """Yield the JSON objects of a `.jsonl`, `.jsonl.gz` or `.jsonl.zst` file; blank lines are skipped.

    Raises:
        DataError: the file cannot be read, a line is no JSON object, or the compressed stream is damaged.
    """
    path = Path(path)
    try:
        with _open_binary(path) as stream:
            for number, raw in enumerate(stream, start=1):
                if raw.strip():
                    yield Row(path, number, _parse(path, number, raw))
    except (OSError, EOFError, _zstd_error()) as error:
        raise DataError.at(path, None, None, f"cannot be read ({error}); check the path and the file") from error


def write_rows(path: Path | str, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON lines, compressed by the file's suffix, atomically; returns the number of rows."""
    path = Path(path)
    buffer = io.BytesIO()
    count = 0
    for row in rows:
        buffer.write(json.dumps(row, ensure_ascii=False, separators=(", ", ": ")).encode() + b"\n")
        count += 1
    write_bytes(path, _compress(path, buffer.getvalue()))
    return count


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file's content in one step: a reader sees the old bytes or the new ones."""
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


def _parse(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError.at(path, number, None, f"is no JSON ({error})") from error
    if not isinstance(data, dict):
        raise DataError.at(path, number, None, f"expected a JSON object, got {type(data).__name__}")
    return data


def _open_binary(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".zst":
        import zstandard

        # The wrapper in between because zstandard's own reader does not iterate over lines.
        return io.BufferedReader(cast(io.RawIOBase, zstandard.open(path, "rb")))
    return path.open("rb")


def _compress(path: Path, content: bytes) -> bytes:
    if path.suffix == ".gz":
        return gzip.compress(content, mtime=0)
    if path.suffix == ".zst":
        import zstandard

        return zstandard.compress(content)
    return content


def _zstd_error() -> type[Exception]:
    import zstandard

    return zstandard.ZstdError
