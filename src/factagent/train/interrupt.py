"""Ctrl-C in the middle of work that must end at a safe point."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console


class Interrupt:
    """Turns the first Ctrl-C (or SIGTERM) into a flag that loops look at between steps; the second one raises."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def handled(self) -> Iterator[Interrupt]:
        """Install the handlers for the duration (main thread only; elsewhere signals keep their meaning)."""
        try:
            old = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            yield self
            return
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        Console(stderr=True).print("stopping after this step; a checkpoint will be written (again to stop at once)")
