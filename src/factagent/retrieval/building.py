"""A build in progress: a hidden neighbour of the directory to be, which outlives a kill and belongs to one process."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from factagent.errors import TryAgainError, UsageError


class ChangedBuildError(UsageError):
    """An unfinished build cannot go on: the corpus or the settings are not those that it began with."""


def building_path(directory: Path) -> Path:
    """Where a build of `directory` keeps what it has so far."""
    return directory.parent / f".{directory.name}.building"


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Make a directory, and keep other processes out of it. The kernel frees the lock of a process that died.

    Raises:
        TryAgainError: another process holds it.
    """
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TryAgainError(f"{path}: another process is building here; wait for it, or stop it") from error
        yield
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all, even after a power cut."""
    partial = path.with_name(path.name + ".new")
    partial.write_text(text, "utf-8")
    sync([partial])
    partial.replace(path)
    sync([path.parent])


def sync(paths: Iterable[Path]) -> None:
    """Wait until files and directories are on the disk."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def refuse_target(directory: Path, marker: str, overwrite: bool) -> None:
    """Raise UsageError where `directory` exists, unless it may be overwritten and holds the file `marker`."""
    if directory.exists() and not (overwrite and (directory / marker).is_file()):
        problem = (
            "exists and is not an index" if overwrite else "exists; choose another, or allow overwriting (--force)"
        )
        raise UsageError(f"index directory {directory}: {problem}")


def place(new: Path, directory: Path) -> None:
    """Give the finished `new` the name `directory`; what had that name before goes where `new` was."""
    old = new.with_name("old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    new.rename(directory)
    sync([directory.parent])
    shutil.rmtree(old, ignore_errors=True)


def restore(new: Path, directory: Path) -> None:
    """Undo a `place` that was killed between its two steps, when nothing had the name."""
    old = new.with_name("old")
    if old.exists() and not directory.exists():
        old.rename(directory)
