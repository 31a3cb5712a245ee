"""Rows of any container: JSON lines, one JSON array, or Parquet.

Which one it is follows from the name (`.parquet`) or from the first character (`[` opens an array). Errors name the
line, the index in the array (`[12].answer`), or for Parquet the number of the row, from 1, in the line's place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NoReturn

from factagent.errors import DataError
from factagent.rows import Row, iter_lines, row_of_line

_BATCH_ROWS = 1024


def read_any_rows(path: str | Path) -> Iterator[Row]:
    """Stream the rows of a file (`.gz` and `.zst` are unpacked); `-` is standard input.

    An array's text is held in memory, its rows are decoded one after the other.

    Raises:
        DataError: the file cannot be read, holds no row, or a row is not an object.
    """
    empty = True
    for row in _parquet_rows(Path(path)) if Path(path).suffix == ".parquet" else _json_rows(path):
        empty = False
        yield row
    if empty:
        raise DataError(f"{path}: holds no row")


def _json_rows(path: str | Path) -> Iterator[Row]:
    lines = iter_lines(path)
    first = next(lines, None)
    if first is None:
        return
    if first[1].lstrip().startswith(b"["):
        yield from _array_rows(path, first[1] + b"".join(line for _, line in lines))
        return
    for number, line in chain([first], lines):
        yield row_of_line(path, number, line)


def _array_rows(path: str | Path, content: bytes) -> Iterator[Row]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 (byte {error.start})") from error
    for index, value in enumerate(_array_items(str(path), text)):
        if not isinstance(value, dict):
            raise DataError(f"{path}: field '[{index}]': must be an object, found {type(value).__name__}")
        yield Row(str(path), None, value, f"[{index}]")


def _array_items(path: str, text: str) -> Iterator[object]:
    """The items of a JSON array, each decoded when it is asked for."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    position = _skip_blanks(text, text.index("[") + 1)
    index = 0
    while text[position : position + 1] != "]" or index:
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: field '[{index}]': is not JSON: {error}") from error
        yield value
        index += 1
        position = _skip_blanks(text, position)
        mark = text[position : position + 1]
        if mark == "]":
            break
        if mark != ",":
            raise DataError(
                f"{path}: after item [{index - 1}]: ',' or ']' expected, found {mark!r}; is the file whole?"
            )
        position = _skip_blanks(text, position + 1)
    if rest := text[position + 1 :].strip():
        raise DataError(f"{path}: text after the end of the array: {rest[:40]!r}")


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _parquet_rows(path: Path) -> Iterator[Row]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=_BATCH_ROWS):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(str(path), number, fields)
    except (OSError, ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError.at(path, number + 1 if number else None, None, f"cannot be read: {reason}") from error
