"""Rows of a tab-separated corpus, as DPR publishes Wikipedia: `id`, `text`, `title`, one passage a line.

Fields may be quoted as in CSV (`""` is a quote). A header gives the order of the columns; without one it is DPR's.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from factagent.errors import DataError
from factagent.rows import Row, iter_lines

COLUMNS = ("id", "text", "title")


def read_tsv_rows(path: str | Path) -> Iterator[Row]:
    """Stream the rows of a `.tsv` file (`.gz` and `.zst` are unpacked).

    A line is read by itself: a quote that nobody closes spoils that line only, and the error names it.

    Raises:
        DataError: a line is not UTF-8, wrongly quoted, or has not as many fields as there are columns.
    """
    columns: tuple[str, ...] | None = None
    for number, line in iter_lines(path):
        values = _split(path, number, line)
        if columns is None:
            is_header = {name.strip().lower() for name in values} >= set(COLUMNS)
            columns = tuple(name.strip().lower() for name in values) if is_header else COLUMNS
            if is_header:
                continue
        if len(values) != len(columns):
            problem = f"has {len(values)} fields; {len(columns)} are needed: {', '.join(columns)}, separated by tabs"
            raise DataError.at(path, number, None, problem)
        yield Row(str(path), number, dict(zip(columns, values, strict=True)))


def _split(path: str | Path, number: int, line: bytes) -> list[str]:
    try:
        # The line break stays off: within a quoted field it would be read as text.
        text = line.decode().rstrip("\r\n")
        return next(csv.reader([text], delimiter="\t", strict=True), [])
    except UnicodeDecodeError as error:
        raise DataError.at(path, number, None, f"is not UTF-8 (byte {error.start} of the line)") from error
    except csv.Error as error:
        raise DataError.at(path, number, None, f"is not well quoted: {error}") from error
