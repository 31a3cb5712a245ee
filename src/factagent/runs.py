"""The run directory: plain files that any tool may read while the run grows.

    config.toml                          the resolved configuration
    metrics.jsonl                        one line a step; wall-clock figures only under "seconds"
    trajectories/step-000012.jsonl.zst   one group a line, each line a zstd frame of its own
    skipped/step-000012.jsonl.zst        the batch of an update that was skipped as not finite, with its tokens
    checkpoints/step-12/                 see `factagent.train.checkpoint`
    dev/results.jsonl                    each dev question's answer at the end, as an evaluation writes it
    summary.json                         written at the end
    run.lock                             held by the one process that writes

Files only grow, a line at a time, each handed to the operating system before the call returns: a killed process loses
at most the line it was writing. Readers skip such a torn tail with one `TornTailWarning`; anything else malformed is a
`DataError`. Resuming from step k first cuts what came after it (`truncate_to`), so that the files end up as those of a
run that was never stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import zstandard

from factagent.errors import DataError, UsageError
from factagent.records import dumps, group_to_record, loads, record_to_group, to_plain
from factagent.run_files import TornTailWarning, append, json_lines, lock_directory, make_directory, replace, warn_torn
from factagent.types import Group

__all__ = ["RunDirectory", "TornTailWarning", "group_steps", "metrics_digest", "read_groups", "read_metrics"]

_STEP_FILE = re.compile(r"step-(\d{6,})\.jsonl\.zst")
_CHUNK = 1 << 20


class RunDirectory:
    """One run's directory: its paths, lock and writers. Reading needs none of it: `read_metrics`, `read_groups`."""

    def __init__(self, path: Path) -> None:
        """Name the paths; nothing is touched (see `create` and `open`)."""
        self.path = path
        self.config_path = path / "config.toml"
        self.metrics_path = path / "metrics.jsonl"
        self.trajectories = path / "trajectories"
        self.skipped = path / "skipped"
        self.checkpoints = path / "checkpoints"
        self.dev_path = path / "dev" / "results.jsonl"
        self.summary_path = path / "summary.json"
        self.lock_path = path / "run.lock"
        self._last_step: int | None = None
        self._repaired: Path | None = None

    @classmethod
    def create(cls, path: Path, config: str) -> RunDirectory:
        """Start a run: write `config` (TOML) into a new directory.

        Raises:
            UsageError: if the directory holds a run already, or cannot be made.
        """
        run = cls(path)
        if run.config_path.exists():
            raise UsageError(f"{path} holds a run already; resume it (--resume {path}) or choose another --out")
        make_directory(path)
        run.trajectories.mkdir(exist_ok=True)
        run.checkpoints.mkdir(exist_ok=True)
        replace(run.config_path, config.encode())
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Name an existing run.

        Raises:
            UsageError: if there is none at the path.
        """
        run = cls(path)
        if not run.config_path.is_file():
            raise UsageError(f"{path} is no run directory: it has no config.toml")
        return run

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for writing; see `run_files.lock_directory`."""
        with lock_directory(self.path, self.lock_path):
            yield

    def log_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of a step. Non-finite numbers become null.

        Args:
            metrics: must hold "step", larger than any logged before; figures that depend on the clock go under
                "seconds", so that the rest is bit for bit the same in a repeated run.

        Raises:
            UsageError: if the step is missing or not larger.
        """
        step = metrics.get("step")
        if not isinstance(step, int):
            raise UsageError(f"metrics need an integer 'step', not {step!r}")
        if self._last_step is None:
            self._last_step = self._cut_metrics(None)
        if step <= self._last_step:
            raise UsageError(
                f"{self.metrics_path} holds step {self._last_step}; truncate_to a step before {step} first"
            )
        append(self.metrics_path, dumps(to_plain(_null_non_finite(metrics))) + b"\n")
        self._last_step = step

    def log_group(self, step: int, group: Group, credit: object = None, **keep: bool) -> None:
        """Append a group with its credit to the step's trajectories; complete on the disk cache when this returns.

        Args:
            step: training step, >= 0.
            group: the trajectories of one question.
            credit: any dataclass or mapping, see `records.to_plain`.
            keep: `token_ids`, `passage_text`, `messages` of `records.group_to_record`.
        """
        path = _step_file(self.trajectories, step)
        if path != self._repaired:
            self.trajectories.mkdir(parents=True, exist_ok=True)
            _cut_frames(path)
            self._repaired = path
        append(path, _frame(group_to_record(group, credit, step=step, **keep)))

    def write_skipped(self, step: int, groups: Sequence[Group], credits: Sequence[object]) -> Path:
        """Keep the batch of a skipped update, tokens and prompts included, so that its cause can be looked for."""
        self.skipped.mkdir(exist_ok=True)
        path = _step_file(self.skipped, step)
        frames = (_frame(group_to_record(g, c, step=step)) for g, c in zip(groups, credits, strict=True))
        replace(path, b"".join(frames))
        return path

    def truncate_to(self, step: int) -> None:
        """Drop what was written after `step`: metrics, trajectories, answers and the summary. Call it when resuming."""
        self._last_step = self._cut_metrics(step)
        for later, path in (*_step_files(self.trajectories), *_step_files(self.skipped)):
            if later > step:
                path.unlink()
        self.dev_path.unlink(missing_ok=True)
        self.summary_path.unlink(missing_ok=True)
        self._repaired = None

    def sync(self) -> None:
        """Flush metrics and trajectories to the disk; call it before a checkpoint, which must not outlive them."""
        newest = [path for _, path in _step_files(self.trajectories)][-1:]
        for path in [self.metrics_path, *newest]:
            if path.exists():
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def write_dev(self, lines: Sequence[bytes]) -> None:
        """Write the answers to the dev questions (`evaluation.rows.line_of`), whole or not at all; none write none."""
        if lines:
            self.dev_path.parent.mkdir(exist_ok=True)
            replace(self.dev_path, b"".join(lines))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`, whole or not at all."""
        replace(self.summary_path, json.dumps(to_plain(_null_non_finite(summary)), indent=2).encode() + b"\n")

    def _cut_metrics(self, step: int | None) -> int:
        """Cut the metrics after `step` (or only a torn tail); the last step left, -1 for none."""
        end, last = 0, -1
        if not self.metrics_path.exists():
            return last
        for record, after in _metric_lines(self.metrics_path):
            if record is None or (step is not None and record["step"] > step):
                break
            end, last = after, record["step"]
        os.truncate(self.metrics_path, end)
        return last


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, one mapping a step; empty where the run has none yet.

    A torn tail is skipped with a warning.

    Raises:
        DataError: if a line is malformed; the message names file and line.
    """
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    records = [record for record, _ in _metric_lines(path)]
    if records and records[-1] is None:
        warn_torn(path)
    return [record for record in records if record is not None]


def metrics_digest(run: Path) -> str:
    """SHA-256 of the metrics without their "seconds": equal for runs that must be equal (reliability.md R1)."""
    lines = (dumps({key: value for key, value in record.items() if key != "seconds"}) for record in read_metrics(run))
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def read_groups(
    run: Path, step: int | None = None, *, folder: Literal["trajectories", "skipped"] = "trajectories"
) -> Iterator[tuple[int, Group, dict[str, Any] | None]]:
    """The groups of a run (or of one step) in the order written: step, group, credit as plain mappings (or None).

    One record is in memory at a time. A torn tail is skipped with one warning a file.

    Raises:
        DataError: if a frame is damaged or a record malformed; the message names file, line and field.
    """
    for number, path in _step_files(run / folder):
        if step is not None and number != step:
            continue
        for line, (frame, _) in enumerate(_frames(path), start=1):
            if frame is None:
                warn_torn(path)
                break
            try:
                record = loads(frame)
                yield number, record_to_group(record), record["credit"]
            except DataError as error:
                raise DataError.at(path, line, None, str(error)) from error
            except KeyError as error:
                raise DataError.at(path, line, "credit", "missing") from error


def group_steps(run: Path) -> list[int]:
    """The steps whose trajectories are stored, ascending."""
    return [step for step, _ in _step_files(run / "trajectories")]


def _step_file(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}.jsonl.zst"


def _frame(record: Mapping[str, Any]) -> bytes:
    """One record as a line in a zstd frame of its own."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(dumps(record) + b"\n")


def _step_files(folder: Path) -> list[tuple[int, Path]]:
    """Trajectory files with their steps, ascending."""
    names = [entry for entry in folder.iterdir() if _STEP_FILE.fullmatch(entry.name)] if folder.is_dir() else []
    return sorted((int(path.name[5 : -len(".jsonl.zst")]), path) for path in names)


def _metric_lines(path: Path) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """Metric records with the offset after each; a torn tail comes as None, last."""
    for number, (record, after) in enumerate(json_lines(path), start=1):
        if record is not None and type(record.get("step")) is not int:
            raise DataError.at(path, number, "step", "must be an integer")
        yield record, after


def _frames(path: Path) -> Iterator[tuple[bytes | None, int]]:
    """Decompressed frames with the offset after each; None last for a torn tail (cut, or zeros after a power cut)."""
    offset, number = 0, 0
    with path.open("rb") as file:
        rest = file.read(_CHUNK)
        while rest:
            if not rest.strip(b"\0") and not _has_more(file):
                yield None, offset
                return
            number += 1
            frame, used, parts = zstandard.ZstdDecompressor().decompressobj(), 0, []
            while not frame.eof:
                try:
                    parts.append(frame.decompress(rest))
                except zstandard.ZstdError as error:
                    raise DataError.at(path, number, None, f"damaged zstd frame at byte {offset}: {error}") from error
                used += len(rest) - len(frame.unused_data)
                rest = frame.unused_data or file.read(_CHUNK)
                if not rest and not frame.eof:
                    yield None, offset
                    return
            offset += used
            yield b"".join(parts), offset


def _has_more(file: Any) -> bool:
    """Whether anything but zeros is left in the file."""
    return any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(_CHUNK), b""))


def _cut_frames(path: Path) -> None:
    """Cut a torn tail, so that what is appended next can be read."""
    if path.exists():
        ends = [0, *(after for frame, after in _frames(path) if frame is not None)]
        os.truncate(path, ends[-1])


def _null_non_finite(value: Any) -> Any:
    """Mappings and lists with None for every NaN and infinity."""
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _null_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_null_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
