"""How far an embedding build is: texts a second and the time left, on standard error."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)

_LOG_EVERY = 60.0
"""Seconds between the lines that a log gets where no terminal shows a bar."""


class EmbeddingProgress:
    """Counts texts; a bar on a terminal, else a line a minute in the log."""

    def __init__(self, total: int | None) -> None:
        columns = (
            TextColumn("embedding passages"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty())
        self._task = self._bar.add_task("", total=total, speed="")
        self._total = total
        self._seen = self._embedded = 0
        self._began = self._logged = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def passed_over(self, count: int) -> None:
        """Passages that an earlier run has embedded."""
        self._seen += count
        self._bar.update(self._task, completed=self._seen)
        self._began = time.monotonic()

    def embedded(self, count: int) -> None:
        """Passages embedded by this run."""
        self._seen += count
        self._embedded += count
        now = time.monotonic()
        speed = self._embedded / max(now - self._began, 1e-9)
        self._bar.update(self._task, completed=self._seen, speed=f"{speed:.0f} texts/s")
        if self._bar.disable and now - self._logged >= _LOG_EVERY:
            self._logged = now
            left = "" if self._total is None else f", {(self._total - self._seen) / speed / 60:.0f} minutes left"
            logger.info("embedded %d of %s passages, %.0f a second%s", self._seen, self._total or "?", speed, left)
