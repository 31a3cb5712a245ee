"""JSON lines in and out, for every command that reads somebody's file.

`read_rows` yields `Row` objects whose getters check types; what is missing or malformed becomes a `DataError` that
names the file, the line and the path of the field, such as `trajectories[1].steps[0].query`.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import orjson
import zstandard

from factagent.errors import DataError
from factagent.types import Triple

STDIN = ("-", "<stdin>")
"""The sources that mean standard input. The command line passes on the second: its parser takes `-` for an option."""

_REQUIRED = object()
_ZSTD_CHUNK = 1 << 14
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object of a file, or an object nested in it, with typed getters.

    Getters take a default; without one an absent field (or null) is an error. `at` is the path of this object within
    its line, empty for the line itself. `line` counts from 1; it is None where the file is one JSON array, and `at`
    then starts with the index.
    """

    source: str
    line: int | None
    fields: Mapping[str, object]
    at: str = ""

    def path(self, name: str) -> str:
        """The full path of a field of this object, as errors name it."""
        return f"{self.at}.{name}" if self.at else name

    def error(self, name: str, problem: str) -> DataError:
        """The error to raise for a field of this object."""
        return DataError.at(self.source, self.line, self.path(name), problem)

    def has(self, name: str) -> bool:
        """True where the field is there and not null."""
        return self.fields.get(name) is not None

    def text(self, name: str, default: object = _REQUIRED) -> str:
        """A string; it may be empty."""
        value = self._value(name, default)
        return value if isinstance(value, str) else self._refuse(name, "a string", value)

    def number(self, name: str, default: object = _REQUIRED) -> float:
        """A finite number, as a float."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, "a number", value)
        return float(value)

    def integer(self, name: str, default: object = _REQUIRED) -> int:
        """A whole number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, "a whole number", value)
        return value

    def flag(self, name: str, default: object = _REQUIRED) -> bool:
        """True or false."""
        value = self._value(name, default)
        return value if isinstance(value, bool) else self._refuse(name, "true or false", value)

    def choice(self, name: str, options: Sequence[str], default: object = _REQUIRED) -> str:
        """A string out of `options`."""
        value = self._value(name, default)
        known = isinstance(value, str) and value in options
        return str(value) if known else self._refuse(name, "one of " + ", ".join(options), value)

    def texts(self, name: str, default: object = _REQUIRED) -> tuple[str, ...]:
        """A list of strings; a bare string is a list of one (golds come both ways)."""
        value = self._value(name, default)
        if isinstance(value, str):
            return (value,)
        items = self._items(name, value, "a list of strings")
        return tuple(
            item if isinstance(item, str) else self._refuse(f"{name}[{i}]", "a string", item)
            for i, item in enumerate(items)
        )

    def triple(self, name: str) -> Triple:
        """A list of three strings: subject, relation, object."""
        return self._triple(name, self._value(name, _REQUIRED))

    def triples(self, name: str, default: object = _REQUIRED) -> tuple[Triple, ...]:
        """A list of triples."""
        items = self._items(name, self._value(name, default), "a list of triples")
        return tuple(self._triple(f"{name}[{i}]", item) for i, item in enumerate(items))

    def row(self, name: str) -> Row:
        """A nested object."""
        return self._row(name, self._value(name, _REQUIRED))

    def rows(self, name: str, default: object = _REQUIRED) -> tuple[Row, ...]:
        """A list of nested objects."""
        items = self._items(name, self._value(name, default), "a list of objects")
        return tuple(self._row(f"{name}[{i}]", item) for i, item in enumerate(items))

    def refuse_unknown(self, allowed: Sequence[str]) -> None:
        """Raise on the first field that is not among `allowed`."""
        for name in self.fields:
            if name not in allowed:
                raise self.error(name, f"unknown field; allowed are {', '.join(allowed)}")

    def _value(self, name: str, default: object) -> object:
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(name, "is missing" if name not in self.fields else "is null")
        return default

    def _items(self, name: str, value: object, wanted: str) -> Sequence[object]:
        return value if isinstance(value, list | tuple) else self._refuse(name, wanted, value)

    def _triple(self, name: str, value: object) -> Triple:
        items = self._items(name, value, "a list of three strings")
        if len(items) != 3:
            raise self.error(name, f"must be a list of three strings, found {len(items)} items")
        for i, item in enumerate(items):
            if not isinstance(item, str):
                self._refuse(f"{name}[{i}]", "a string", item)
        return Triple(*(str(item).strip() for item in items))

    def _row(self, name: str, value: object) -> Row:
        if not isinstance(value, dict):
            self._refuse(name, "an object", value)
        return Row(self.source, self.line, value, self.path(name))

    def _refuse(self, name: str, wanted: str, value: object) -> NoReturn:
        raise self.error(name, f"must be {wanted}, found {_shown(value)}")


def read_rows(source: str | Path) -> Iterator[Row]:
    """The rows of a JSONL file (`.gz` and `.zst` are unpacked) or of standard input (`-`). Blank lines are skipped.

    Raises:
        DataError: the file cannot be read, or a line is not a JSON object.
    """
    for line, fields in iter_rows(source):
        yield Row(_name(source), line, fields)


def iter_rows(source: str | Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Line number (from 1) and object of each row; see `read_rows`."""
    for number, line in iter_lines(source):
        yield number, _decode(_name(source), number, line)


def row_of_line(source: str | Path, number: int, line: bytes) -> Row:
    """The row that a line of `iter_lines` holds; raises DataError as `read_rows`."""
    return Row(_name(source), number, _decode(_name(source), number, line))


def iter_lines(source: str | Path) -> Iterator[tuple[int, bytes]]:
    """Line number (from 1) and bytes of each line that is not blank.

    Raises:
        DataError: the file cannot be read or unpacked.
    """
    try:
        if str(source) in STDIN:
            yield from _number(sys.stdin.buffer)
            return
        with closing(_open(Path(source))) as stream:
            yield from _number(stream)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError.at(_name(source), None, None, f"cannot be read: {reason}") from error


def write_row(row: Mapping[str, object], stream: IO[str] | None = None) -> None:
    """Print one JSON line, to standard output by default. Arrays of numpy are written as lists."""
    (stream or sys.stdout).write(_encode(row) + "\n")


def _encode(row: Mapping[str, object]) -> str:
    try:
        return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:
        # orjson refuses lone surrogates and integers beyond 64 bits, which JSON can hold as escapes and digits.
        return json.dumps(row, allow_nan=False, separators=(",", ":"))


def _decode(name: str, number: int, line: bytes) -> dict[str, object]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        value = _decode_surrogates(name, number, line, error)
    if not isinstance(value, dict):
        raise DataError.at(name, number, None, f"must be a JSON object, found {_shown(value)}")
    return value


def _decode_surrogates(name: str, number: int, line: bytes, error: orjson.JSONDecodeError) -> object:
    """Read a line that orjson refuses only for a lone surrogate: text that a model wrote may hold one."""
    problem = f"is not JSON: {error.msg} (column {error.colno})"
    if "surrogate" not in error.msg:
        raise DataError.at(name, number, None, problem) from error
    try:
        return json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise DataError.at(name, number, None, problem) from error


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _number(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(stream, start=1):
        content = line.removeprefix(_BOM) if number == 1 else line
        if content.strip():
            yield number, content


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path))
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdReader(path.open("rb")))
    return path.open("rb")


class _ZstdReader(io.RawIOBase):
    """Unpacks a sequence of zstd frames. Unlike `stream_reader`, it raises EOFError where the last one is cut off."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._packed = b""
        self._unpacked = b""
        self._inside = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        while not self._unpacked:
            self._packed = self._packed or self._stream.read(_ZSTD_CHUNK)
            if not self._packed:
                if self._inside:
                    raise EOFError("the last zstd frame is cut off")
                return 0
            self._unpack()
        count = min(len(view), len(self._unpacked))
        view[:count], self._unpacked = self._unpacked[:count], self._unpacked[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _unpack(self) -> None:
        self._unpacked, self._packed, self._inside = self._frame.decompress(self._packed), b"", True
        if self._frame.eof:
            self._packed, self._inside = self._frame.unused_data, False
            self._frame = zstandard.ZstdDecompressor().decompressobj()


def _name(source: str | Path) -> str:
    return STDIN[1] if str(source) in STDIN else str(source)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
