"""Progress bars on standard error: the one of training, and one a question set with its running EM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from factagent.evaluation.rows import ResultRow


def make_progress() -> Progress:
    """A progress bar on standard error with a free text field for the latest figures."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=Console(stderr=True),
    )


@dataclass
class _Tally:
    task: TaskID
    asked: int = 0
    scored: int = 0
    em: float = 0.0


class SetBars:
    """One bar a question set: questions asked, EM of those scored so far, failures."""

    def __init__(self, progress: Progress, totals: Mapping[str, int]) -> None:
        self._progress = progress
        self._tallies = {
            name: _Tally(progress.add_task(name, total=total, figures="")) for name, total in totals.items()
        }

    def note(self, name: str, em: float, failed: bool) -> None:
        """Count one question of a set."""
        tally = self._tallies[name]
        tally.asked += 1
        if not failed:
            tally.scored += 1
            tally.em += em
        failures = tally.asked - tally.scored
        figures = f"EM {tally.em / tally.scored:.3f}" if tally.scored else ""
        figures += f"  {failures} failed" if failures else ""
        self._progress.update(tally.task, completed=tally.asked, figures=figures)

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(text, markup=False, highlight=False)


@contextmanager
def set_bars(totals: Mapping[str, int], done: Iterable[ResultRow] = ()) -> Iterator[SetBars]:
    """Show the bars for the duration, from the questions that are done already."""
    with make_progress() as progress:
        bars = SetBars(progress, totals)
        for row in done:
            bars.note(row.set, row.em, row.failed)
        yield bars
