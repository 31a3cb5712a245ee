"""Several processes at a time, each with a log of its own, stopped together and never lost.

A job is a command that goes on where it stopped when it is called again, so whatever kills it, or us, costs at most
what came after its last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from factagent.evaluation.progress import make_progress
from factagent.run_files import is_locked, replace
from factagent.train.interrupt import Interrupt

POLL_S = 0.2
LOOK_S = 2.0
"""Seconds between two looks at how far the running jobs are."""

ALARM = 75
"""Exit code of a run that an alarm stopped."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One command to be run to its end.

    Attributes:
        name: how bars and messages name it.
        command: makes the command when the job starts; what it depends on may exist only then.
        directory: a run directory; the job waits while another process holds it.
        log: file that takes its output.
        failure: file that says how it failed; removed when it starts.
        total: of its bar.
        done: called after a success.
    """

    name: str
    command: Callable[[], Sequence[str]]
    directory: Path
    log: Path
    failure: Path
    total: int | None
    done: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Failure:
    """How a job ended that did not succeed."""

    exit_code: int
    """Negative: the signal that killed it."""
    message: str
    log: Path

    @property
    def by_alarm(self) -> bool:
        """Whether the run stopped itself, with a checkpoint."""
        return self.exit_code == ALARM


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    bar: TaskID
    began: float


def run_jobs(jobs: Sequence[Job], at_once: int, threads: int, title: str) -> dict[str, Failure]:
    """Run all jobs, `at_once` at a time in their order; returns the failures by name.

    The first Ctrl-C (or SIGTERM) passes on to the running jobs, which end at a safe point; the second one kills them.

    Raises:
        KeyboardInterrupt: after an interrupt, when no job runs any more.
    """
    if not jobs:
        return {}
    pending, running, failures = list(jobs), list[_Running](), dict[str, Failure]()
    told, looked = False, 0.0
    with Interrupt().handled() as interrupt, make_progress() as progress, _killed_at_the_end(running):
        bar = progress.add_task(title, total=len(jobs), figures="")
        while running or (pending and not interrupt.requested):
            while len(running) < at_once and not interrupt.requested and (job := _next_free(pending)):
                running.append(_start(job, threads, progress))
            if interrupt.requested and not told:
                told = True
                for each in running:
                    each.process.send_signal(signal.SIGINT)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                _finish(each, failures, progress, interrupted=interrupt.requested)
                progress.update(bar, advance=1, figures=f"{len(failures)} failed" if failures else "")
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                for each in running:
                    _show(each, progress)
            time.sleep(POLL_S)
        if interrupt.requested:
            raise KeyboardInterrupt
    return failures


def read_failure(path: Path, log: Path) -> Failure | None:
    """How the job failed whose `failure` is at the path; None where it did not."""
    if not path.exists():
        return None
    record = json.loads(path.read_text("utf-8"))
    return Failure(record["exit_code"], record["message"], log)


def _next_free(pending: list[Job]) -> Job | None:
    """Take the first job whose directory no other process holds (one that outlived a killed arena may)."""
    for index, job in enumerate(pending):
        if not is_locked(job.directory / "run.lock"):
            return pending.pop(index)
    return None


def _start(job: Job, threads: int, progress: Progress) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.failure.unlink(missing_ok=True)
    environment = os.environ | dict.fromkeys(_THREAD_VARIABLES, str(threads))
    with job.log.open("ab") as log:
        # A session of its own: Ctrl-C in the terminal must reach it through us, once.
        process = subprocess.Popen(  # noqa: S603 - our own command
            job.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    return _Running(job, process, progress.add_task(job.name, total=job.total, figures=""), time.monotonic())


def _finish(each: _Running, failures: dict[str, Failure], progress: Progress, *, interrupted: bool) -> None:
    code, job = each.process.returncode, each.job
    progress.remove_task(each.bar)
    seconds = time.monotonic() - each.began
    if code == 0:
        job.done()
        _say(progress, f"{job.name}: finished after {seconds:.0f} s")
    elif interrupted:
        _say(progress, f"{job.name}: stopped; it goes on at the next call")
    else:
        failure = Failure(code, _last_words(job.log, code), job.log)
        replace(job.failure, json.dumps({"exit_code": code, "message": failure.message}).encode() + b"\n")
        failures[job.name] = failure
        _say(progress, f"{job.name}: failed after {seconds:.0f} s: {failure.message} (log: {job.log})")


def _last_words(log: Path, code: int) -> str:
    """The error that the process printed, else its last line."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()][-50:]
    errors = [line.partition("error: ")[2] for line in lines if line.startswith("factagent: error: ")]
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return errors[-1] if errors else lines[-1].strip() if lines else f"exit code {code} without a word"


def _show(each: _Running, progress: Progress) -> None:
    """Move the job's bar to the last step of its metrics."""
    metrics = each.job.directory / "metrics.jsonl"
    if metrics.exists():
        whole = [line for line in metrics.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        if whole:
            progress.update(each.bar, completed=json.loads(whole[-1])["step"])


def _say(progress: Progress, text: str) -> None:
    console: Console = progress.console
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _killed_at_the_end(running: list[_Running]) -> Iterator[None]:
    """Leave no process behind, whatever ends the block."""
    try:
        yield
    finally:
        for each in running:
            each.process.kill()
            each.process.wait()
