"""One session over an evaluation's directory: ask what is owed, keep every answer, write the report.

The directory decides what is owed, so a session that is killed at any point is resumed by another one, and the report
ends with the same bytes. No question is asked twice unless a server failed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from factagent.configuration import dump_toml, load_config
from factagent.errors import ConfigError, DataError, TryAgainError
from factagent.evaluation.config import EvalConfig, changed_key
from factagent.evaluation.players import Played, Player, open_player
from factagent.evaluation.progress import SetBars, set_bars
from factagent.evaluation.questions import read_sets
from factagent.evaluation.results import EvalDirectory
from factagent.evaluation.retrievers import identify
from factagent.evaluation.rows import ResultRow, line_of
from factagent.evaluation.runner import score
from factagent.evaluation.summary import summarise_sets
from factagent.evaluation.tables import markdown
from factagent.evaluation.watch import FailureWatch
from factagent.types import Question

Sets = Mapping[str, Sequence[Question]]


class Batch(NamedTuple):
    """Questions of one set that are played together."""

    name: str
    questions: tuple[Question, ...]


def start_evaluation(config: EvalConfig, out: Path) -> dict[str, Any]:
    """Evaluate into a new directory; returns the summary.

    Raises:
        UsageError: the directory holds a run already.
        TryAgainError: servers failed for too long, or too many questions failed; everything answered is kept.
    """
    sets, searched, run = read_sets(config.sets), identify(config.retriever), EvalDirectory(out)
    with run.lock():
        run.create(dump_toml(config), searched)
        return _evaluate(config, sets, run)


def resume_evaluation(directory: Path, config: EvalConfig | None = None) -> dict[str, Any]:
    """Go on with an evaluation: ask what was not answered, and what a server failed at. Returns the summary.

    Args:
        directory: the evaluation.
        config: what it shall be now; it may differ only in keys that say how it runs (`config.MAY_CHANGE`).

    Raises:
        ConfigError: a key that decides the results differs.
        DataError: a question file has changed since.
    """
    run = EvalDirectory.open(directory)
    before = load_config(EvalConfig, run.config_path, ())
    if config is not None and (changed := changed_key(before, config)) is not None:
        key, old, new = changed
        raise ConfigError(
            f"key '{key}' is {new!r}, but {run.config_path} has {old!r}: the answers would not be comparable; "
            "start another evaluation with --out"
        )
    config = config or before
    sets = read_sets(config.sets)
    with run.lock():
        run.check_retriever(identify(config.retriever))
        return _evaluate(config, sets, run)


def _evaluate(config: EvalConfig, sets: Sets, run: EvalDirectory) -> dict[str, Any]:
    session = Session(config, sets, run)
    if session.owed:
        asyncio.run(session.ask())
    return session.report()


class Session:
    """What one process does with an evaluation that it has locked.

    Args:
        config: the evaluation.
        sets: the questions of each set, in order.
        run: its directory; torn tails and failures are dropped from it here.

    Raises:
        DataError: the rows belong to other questions than the sets hold.
    """

    def __init__(self, config: EvalConfig, sets: Sets, run: EvalDirectory) -> None:
        self.config = config
        self.sets = sets
        self.run = run
        self.rows = {row.key: row for row in run.repair()}
        _check_questions(self.rows, sets, run)
        self.watch = FailureWatch(config.failures)

    @property
    def owed(self) -> bool:
        """Whether a question is without a row."""
        return len(self.rows) < sum(map(len, self.sets.values()))

    async def ask(self) -> None:
        """Ask every question that has no row yet.

        Raises:
            TryAgainError: servers failed for longer than the configured patience.
        """
        began, before = time.perf_counter(), len(self.rows)
        try:
            async with open_player(self.config) as player:
                with self._bars() as bars:
                    await self._ask(player, bars)
        finally:
            seconds = time.perf_counter() - began
            self.run.log_session({"seconds": seconds, "questions": len(self.rows) - before})

    def report(self) -> dict[str, Any]:
        """Write the summary and the tables; returns the summary.

        Raises:
            TryAgainError: more questions failed than `failures.share` allows; the report is written all the same.
        """
        rows = {name: [self.rows[name, each.id] for each in questions] for name, questions in self.sets.items()}
        asked = {name: len(questions) for name, questions in self.sets.items()}
        summary = summarise_sets(rows, asked, self.config.seed)
        self.run.write_report(summary, markdown(self.config, summary))
        failed, total = summary["failed"], summary["questions"]
        resume = f"ask them again with: factagent eval --resume {self.run.path}"
        if failed > self.config.failures.share * total:
            raise TryAgainError(
                f"{self.run.path}: {failed} of {total} questions failed ({self._last_error()}); {resume}"
            )
        if failed:
            Console(stderr=True).print(
                f"{failed} of {total} questions failed and are in no mean; {resume}", markup=False
            )
        return summary

    async def _ask(self, player: Player, bars: SetBars) -> None:
        pending, running = deque(self._batches(player.batch)), set[asyncio.Task[None]]()
        try:
            while pending or running:
                while pending and len(running) < player.concurrency and not self.watch.tripped:
                    running.add(asyncio.create_task(self._play(player, pending.popleft(), bars)))
                if running:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                elif pending:
                    await self._pause(player, pending, bars)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _play(self, player: Player, batch: Batch, bars: SetBars) -> None:
        self._keep(batch, await player.play(batch.name, batch.questions), bars)

    async def _pause(self, player: Player, pending: deque[Batch], bars: SetBars) -> None:
        """Too much fails: ask one question now and then until it succeeds. Its failures are not kept; it is owed."""
        bars.say(f"too many questions fail ({self.watch.last_error}); waiting for the servers")
        batch = pending.popleft()
        probe, rest = Batch(batch.name, batch.questions[:1]), Batch(batch.name, batch.questions[1:])
        while True:
            await self.watch.wait()
            played = await player.play(probe.name, probe.questions)
            ((trajectory, error),) = played
            if not trajectory.stop_reason.is_failure:
                break
            self.watch.last_error = error or self.watch.last_error
        self.watch.recovered()
        self._keep(probe, played, bars)
        if rest.questions:
            pending.appendleft(rest)

    def _keep(self, batch: Batch, played: Sequence[Played], bars: SetBars) -> None:
        """Write the rows of a batch in one piece, then count them."""
        lines, rows = [], []
        for question, (trajectory, error) in zip(batch.questions, played, strict=True):
            result = score(question, trajectory)
            rows.append(ResultRow.of(batch.name, result, error))
            lines.append(line_of(rows[-1], result))
        self.run.append(lines)
        for row in rows:
            self.rows[row.key] = row
            self.watch.note(row.failed, row.error)
            bars.note(row.set, row.em, row.failed)

    def _batches(self, size: int) -> Iterator[Batch]:
        for name, questions in self.sets.items():
            owed = [each for each in questions if (name, each.id) not in self.rows]
            for start in range(0, len(owed), size):
                yield Batch(name, tuple(owed[start : start + size]))

    def _bars(self) -> AbstractContextManager[SetBars]:
        return set_bars({name: len(questions) for name, questions in self.sets.items()}, self.rows.values())

    def _last_error(self) -> str:
        errors = [row.error for row in self.rows.values() if row.error]
        return errors[-1] if errors else "no message"


def _check_questions(rows: Mapping[tuple[str, str], ResultRow], sets: Sets, run: EvalDirectory) -> None:
    """Refuse rows of other questions: a file that changed between two sessions."""
    known = {(name, each.id): each for name, questions in sets.items() for each in questions}
    for key, row in rows.items():
        question = known.get(key)
        if question is None or (question.text, question.answers) != (row.question, row.golds):
            raise DataError(
                f"{run.results_path}: question {row.id!r} of set '{row.set}' was answered before, and its file has "
                "changed since; put the old file back or start another evaluation with --out"
            )
