"""Ids must be unique, and a corpus may have 21 million of them.

Most corpora count their passages (`"0"`, `"1"`, ... or `"notes.md#1"`, `"notes.md#2"`, ...), so ids that count on are
kept as one run of numbers behind a prefix, and only the others one by one.
"""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,17})", re.DOTALL)
_SHORTEST_RUN = 64
"""Shorter runs are kept as single ids, so that no prefix gathers a long list of runs."""


class UniqueIds:
    """A set of ids that takes little memory where they count. Exact, whatever their order."""

    def __init__(self) -> None:
        self._prefix = ""
        self._run = range(0)
        self._runs: dict[str, list[range]] = {}
        self._single: set[str] = set()

    def add(self, identifier: str) -> bool:
        """Add an id; False where it was there already."""
        match = _NUMBERED.fullmatch(identifier)
        prefix, number = (match[1], int(match[2])) if match else (identifier, -1)
        if self._holds(identifier, prefix, number):
            return False
        if match is None:
            self._single.add(identifier)
        elif prefix == self._prefix and number == self._run.stop:
            self._run = range(self._run.start, number + 1)
        else:
            self._close_run()
            self._prefix, self._run = prefix, range(number, number + 1)
        return True

    def _holds(self, identifier: str, prefix: str, number: int) -> bool:
        if identifier in self._single or (prefix == self._prefix and number in self._run):
            return True
        return any(number in run for run in self._runs.get(prefix, ()))

    def _close_run(self) -> None:
        if len(self._run) < _SHORTEST_RUN:
            self._single.update(f"{self._prefix}{number}" for number in self._run)
        else:
            self._runs.setdefault(self._prefix, []).append(self._run)
