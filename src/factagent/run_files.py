"""What the directories of training runs and of evaluations share: a lock, files that only grow, files replaced whole.

A line is handed to the operating system before the call returns: a killed process loses at most the line that it was
writing. Readers skip such a torn tail with one `TornTailWarning`; a writer cuts it before it goes on.
"""

from __future__ import annotations

import fcntl
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factagent.errors import DataError, UsageError
from factagent.records import loads


class TornTailWarning(UserWarning):
    """The last line of a growing file is incomplete (its writer was killed, or is at work) and was skipped."""


def make_directory(directory: Path) -> None:
    """Make a directory for output, with those above it, where it is not there yet.

    Raises:
        UsageError: a file is in the way, or it may not be written there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if directory.is_file() else error.strerror
        raise UsageError(f"{directory} cannot be a directory for output: {reason}; choose another one") from error


@contextmanager
def lock_directory(directory: Path, lock_path: Path) -> Iterator[None]:
    """Hold a directory for writing.

    The kernel frees the lock of a process that died, so a stale one on this host is taken over at once. The file
    names holder and host, since file locks may not reach across machines.

    Raises:
        UsageError: at once, if another process holds it, or a process on another host seems to, or it cannot be made.
    """
    make_directory(directory)
    handle = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        holder = _holder(handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{directory} is in use by {holder}; stop it or choose another directory") from error
        host = socket.gethostname()
        if holder and not holder.endswith(f" on {host}"):
            raise UsageError(f"{directory} was locked by {holder}; if it is dead, delete {lock_path}")
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {host}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def is_locked(lock_path: Path) -> bool:
    """Whether a process on this host holds the lock now; someone else may take it the moment after."""
    if not lock_path.exists():
        return False
    with lock_path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def append(path: Path, content: bytes) -> None:
    """Append with one open file, or leave the file as it was (a full disk must not leave half a line in the middle)."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        before, view = os.fstat(handle).st_size, memoryview(content)
        try:
            while view:
                view = view[os.write(handle, view) :]
        except OSError:
            os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)


def replace(path: Path, content: bytes) -> None:
    """Write a small file, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def json_lines(path: Path) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """The JSON object of each line with the offset after it; a torn tail comes as None, last.

    Raises:
        DataError: if a whole line is no JSON object; the message names file and line.
    """
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            offset += len(line)
            if not line.endswith(b"\n"):
                yield None, offset
                return
            try:
                record = loads(line)
            except DataError as error:
                raise DataError.at(path, number, None, str(error)) from error
            if not isinstance(record, dict):
                raise DataError.at(path, number, None, f"must be a JSON object, found {str(record)[:60]}")
            yield record, offset


def warn_torn(path: Path) -> None:
    """Say that the last line of a file was skipped."""
    warnings.warn(f"{path}: the last line is incomplete and was skipped", TornTailWarning, stacklevel=3)


def _holder(handle: int) -> str:
    """Who wrote the lock file, as it says."""
    return os.pread(handle, 300, 0).decode(errors="replace").strip()
