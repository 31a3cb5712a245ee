"""The directory of an evaluation: plain files that any tool may read while it grows.

    config.toml      the resolved configuration
    retriever.json   what was searched: kind, passages, hash of the corpus
    results.jsonl    one line a question, in the order in which they were done (see `rows`)
    summary.json     written at the end: scores, averages, counts
    tables.md        the same for readers, beside the paper's rows
    sessions.jsonl   one line a session: wall-clock seconds and questions done (nothing else depends on the clock)
    run.lock         held by the one process that writes

Results only grow, whole lines at a time. Resuming drops a torn tail and the rows of failures first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from factagent.errors import DataError, UsageError
from factagent.evaluation.rows import ResultRow
from factagent.records import dumps, loads, to_plain
from factagent.rows import Row
from factagent.run_files import append, json_lines, lock_directory, replace, warn_torn

RESULTS_NAME = "results.jsonl"
SUMMARY_NAME = "summary.json"


class EvalDirectory:
    """One evaluation's directory: its paths, lock and writers."""

    def __init__(self, path: Path) -> None:
        """Name the paths; nothing is touched (see `create` and `open`)."""
        self.path = path
        self.config_path = path / "config.toml"
        self.retriever_path = path / "retriever.json"
        self.results_path = path / RESULTS_NAME
        self.summary_path = path / SUMMARY_NAME
        self.tables_path = path / "tables.md"
        self.sessions_path = path / "sessions.jsonl"

    def create(self, config: str, retriever: Mapping[str, object]) -> None:
        """Start an evaluation: write `config` (TOML) and what is searched. One without answers is started anew.

        Raises:
            UsageError: the directory holds answers, or a run of another kind.
        """
        started = self.results_path.exists()
        if started and self.results_path.stat().st_size:
            raise UsageError(
                f"{self.path} holds an evaluation; resume it (--resume {self.path}) or choose another --out"
            )
        if self.config_path.exists() and not started:
            raise UsageError(f"{self.path} holds a run of another kind; choose another --out")
        append(self.results_path, b"")
        replace(self.retriever_path, dumps(to_plain(retriever)) + b"\n")
        replace(self.config_path, config.encode())

    @classmethod
    def open(cls, path: Path) -> EvalDirectory:
        """Name an existing evaluation.

        Raises:
            UsageError: there is none at the path.
        """
        directory = cls(path)
        for needed in (directory.config_path, directory.results_path):
            if not needed.is_file():
                raise UsageError(f"{path} is no evaluation: it has no {needed.name}")
        return directory

    def lock(self) -> AbstractContextManager[None]:
        """Hold the directory for writing; see `run_files.lock_directory`."""
        return lock_directory(self.path, self.path / "run.lock")

    def check_retriever(self, now: Mapping[str, object]) -> None:
        """Refuse to go on over another corpus or index than the one that the evaluation began with.

        Raises:
            DataError: it differs.
        """
        before = loads(self.retriever_path.read_bytes()) if self.retriever_path.exists() else None
        if before != to_plain(now):
            raise DataError(f"{self.retriever_path}: searched was {before}, now it is {now}; start another evaluation")

    def append(self, lines: Sequence[bytes]) -> None:
        """Append whole lines in one write."""
        append(self.results_path, b"".join(lines))

    def repair(self) -> list[ResultRow]:
        """Cut a torn tail (with a warning) and drop the rows of failures; returns what is left.

        Raises:
            DataError: a line is malformed, of another version, or its question is there twice.
        """
        kept: dict[tuple[str, str], ResultRow] = {}
        failed = False
        for row in read_results(self.path):
            if row.failed:
                failed = True
                continue
            if row.key in kept:
                raise DataError(f"{self.results_path}: question {row.id!r} of set '{row.set}' is there twice")
            kept[row.key] = row
        if failed:
            self._drop_failures()
        elif self.results_path.exists():
            ends = [0, *(end for record, end in json_lines(self.results_path) if record is not None)]
            os.truncate(self.results_path, ends[-1])
        return list(kept.values())

    def write_report(self, summary: Mapping[str, Any], tables: str) -> None:
        """Write `tables.md` and then `summary.json`, each whole or not at all."""
        replace(self.tables_path, tables.encode())
        replace(self.summary_path, json.dumps(to_plain(summary), indent=2, ensure_ascii=False).encode() + b"\n")

    def log_session(self, session: Mapping[str, Any]) -> None:
        """Append what a session took."""
        append(self.sessions_path, dumps(to_plain(session)) + b"\n")

    def _drop_failures(self) -> None:
        """Rewrite the results without failures and torn tail, line by line, and put them in place in one step."""
        temporary = self.results_path.with_name(f"{RESULTS_NAME}.tmp")
        with temporary.open("wb") as file:
            for record, _ in json_lines(self.results_path):
                if record is not None and not ResultRow.read(Row(RESULTS_NAME, 0, record)).failed:
                    file.write(dumps(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.results_path)


def read_results(run: Path) -> Iterator[ResultRow]:
    """The rows of an evaluation in the order written; a torn tail is skipped with one warning.

    Raises:
        DataError: a line is malformed or of another version; with file, line and field.
    """
    path = run / RESULTS_NAME
    if not path.exists():
        return
    for number, (record, _) in enumerate(json_lines(path), start=1):
        if record is None:
            warn_torn(path)
            return
        yield ResultRow.read(Row(str(path), number, record))


def read_summary(run: Path) -> dict[str, Any]:
    """The summary of a finished evaluation.

    Raises:
        UsageError: there is none.
        DataError: it is malformed.
    """
    path = run / SUMMARY_NAME
    if not path.is_file():
        raise UsageError(f"{run} has no {SUMMARY_NAME}; finish the evaluation with: factagent eval --resume {run}")
    try:
        summary = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise DataError.at(path, None, None, f"is not JSON: {error}") from error
    if not isinstance(summary, dict):
        raise DataError.at(path, None, None, "must be a JSON object")
    return summary
