"""Checkpoints that are whole or absent: written aside, hashed, renamed.

A checkpoint is `checkpoints/step-N/`: the weights (a directory that Hugging Face loads, where the caller gives its
files), `optimizer.safetensors` with `optimizer.json`, a folder with the same files for each further model in training
(`critic/`), `state.json` (cursor, alarms, random states) and, written last, `manifest.json` with size and SHA-256 of
each file. It is prepared as `step-N.tmp/`; every file is synced, the directory
renamed, the parent synced (reliability.md R3). So a process killed at any instant leaves the last checkpoint as it was
and at most one `.tmp`, which the next save removes. A checkpoint that does not match its manifest is refused, never
skipped in favour of an older one. Nothing here is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from factagent.errors import CorruptError, DataError, UsageError
from factagent.train.tensor_files import load_optimizer, optimizer_parts, read_tensors, tensor_bytes

FORMAT = 1
MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d+)")
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; tensors are read when asked for."""

    path: Path
    step: int
    state: dict[str, Any]
    files: tuple[str, ...]

    def weights(self, part: str = "") -> dict[str, Tensor]:
        """Tensors by name, on the CPU; tied tensors come back under each of their names.

        Args:
            part: of the policy, or of the further model of this name (see `save_checkpoint`).

        Raises:
            DataError: the checkpoint holds no such model.
        """
        tensors: dict[str, Tensor] = {}
        for name in self._files_of(part):
            if name.endswith(".safetensors") and name != "optimizer.safetensors":
                tensors |= read_tensors(self.path / part / name)
        return tensors

    def restore_optimizer(self, optimizer: torch.optim.Optimizer, part: str = "") -> None:
        """Load the optimizer's state, bit for bit, into one built over the same parameters in the same order.

        Args:
            part: whose optimizer, as for `weights`.

        Raises:
            DataError: if the checkpoint holds no optimizer, or parameters or groups differ in number or shape.
        """
        folder = self.path / part
        if "optimizer.json" not in self._files_of(part):
            raise DataError(f"{folder}: holds no optimizer; it can be loaded as a policy but not resumed")
        described = json.loads((folder / "optimizer.json").read_bytes())
        load_optimizer(folder, described, read_tensors(folder / "optimizer.safetensors"), optimizer)

    def _files_of(self, part: str) -> list[str]:
        """Names of the files that stand in the folder of a part (the policy's: in the checkpoint itself)."""
        start = f"{part}/" if part else ""
        rest = [name.removeprefix(start) for name in self.files if name.startswith(start)]
        names = [name for name in rest if "/" not in name]
        if not names:
            raise DataError(f"{self.path}: holds no '{part}'; it was written under another configuration")
        return names


@dataclass(frozen=True)
class Part:
    """A further model in training, such as a critic: its tensors and its optimizer."""

    weights: Mapping[str, Tensor]
    optimizer: torch.optim.Optimizer


def save_checkpoint(
    directory: Path,
    step: int,
    *,
    weights: Mapping[str, Tensor] | Callable[[Path], object],
    optimizer: torch.optim.Optimizer | None = None,
    state: Mapping[str, Any] | None = None,
    extra_files: Mapping[str, bytes] | None = None,
    parts: Mapping[str, Part] | None = None,
    keep_last: int = 2,
    protect: Collection[int] = (),
) -> Path:
    """Write `directory/step-N`, whole or not at all, then delete old checkpoints.

    Args:
        directory: the run's `checkpoints/`; created if absent.
        step: optimiser steps done, >= 0.
        weights: tensors by name, written as `model.safetensors` (tied tensors once), or a callable that writes its
            files into the directory it gets, such as a bound `save_pretrained`.
        optimizer: written so that `Checkpoint.restore_optimizer` gives the same bits.
        state: anything JSON can hold without loss; finite numbers only.
        extra_files: further files, such as `config.json` and those of the tokenizer, by name.
        parts: further models in training, each written to a folder of its name, as `Checkpoint.weights` and
            `Checkpoint.restore_optimizer` read it.
        keep_last: how many of the newest checkpoints to keep; 0 keeps all.
        protect: steps never to delete: the best one, the one being resumed.

    Returns:
        The path of the checkpoint.

    Raises:
        UsageError: if the checkpoint exists already (see `discard_after`), or a file name is not a plain one.
        OSError: if the disk fails or is full; earlier checkpoints are untouched, and so is `latest`.
    """
    final, temporary = directory / f"step-{step}", directory / f"step-{step}.tmp"
    if step < 0:
        raise UsageError(f"checkpoint of step {step}: steps count from 0")
    if final.exists():
        raise UsageError(f"{final} exists already; to train again from an earlier step, call discard_after first")
    directory.mkdir(parents=True, exist_ok=True)
    remove_stale(directory)
    temporary.mkdir()
    if callable(weights):
        weights(temporary)
    else:
        _write(temporary / "model.safetensors", tensor_bytes(weights))
    if optimizer is not None:
        _write_optimizer(temporary, optimizer)
    for name, part in (parts or {}).items():
        folder = _plain(temporary, name, "part")
        folder.mkdir()
        _write(folder / "model.safetensors", tensor_bytes(part.weights))
        _write_optimizer(folder, part.optimizer)
    _write(temporary / "state.json", _json_bytes(dict(state or {})))
    for name, content in (extra_files or {}).items():
        _write(_plain(temporary, name, "extra file"), content)
    _write_manifest(temporary, step)
    temporary.rename(final)
    _sync(directory)
    _retain(directory, keep_last, {step, *protect})
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify a checkpoint against its manifest, every byte, and open it.

    Raises:
        CorruptError: if a file is missing or differs in size or hash; the message names the file.
        DataError: if there is no checkpoint at the path or its format is newer than this version reads.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such checkpoint directory")
    manifest = _read_manifest(path / MANIFEST)
    for name, entry in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CorruptError(f"{file}: listed in the manifest but missing; {_ADVICE}")
        size, digest = file.stat().st_size, _hash(file)
        if size != entry["bytes"]:
            raise CorruptError(f"{file}: has {size} bytes, its manifest says {entry['bytes']}; {_ADVICE}")
        if digest != entry["sha256"]:
            raise CorruptError(f"{file}: SHA-256 {digest[:12]}... differs from its manifest's; {_ADVICE}")
    state = json.loads((path / "state.json").read_bytes())
    return Checkpoint(path, manifest["step"], state, tuple(manifest["files"]))


def latest(directory: Path) -> Path | None:
    """The checkpoint of the highest step (not verified: `load_checkpoint` does that), or None where there is none."""
    steps = checkpoint_steps(directory)
    return directory / f"step-{steps[-1]}" if steps else None


def checkpoint_steps(directory: Path) -> list[int]:
    """The steps that have a checkpoint, ascending."""
    if not directory.is_dir():
        return []
    matches = (_STEP.fullmatch(entry.name) for entry in directory.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def discard_after(directory: Path, step: int) -> None:
    """Delete checkpoints of later steps, newest first: training starts again from `step` and will write them anew."""
    remove_stale(directory)
    for later in reversed([other for other in checkpoint_steps(directory) if other > step]):
        _delete(directory / f"step-{later}")


def remove_stale(directory: Path) -> None:
    """Delete what a killed save or deletion left behind (`*.tmp` directories)."""
    if directory.is_dir():
        for entry in sorted(directory.iterdir()):
            if entry.is_dir() and entry.suffix == ".tmp":
                shutil.rmtree(entry)


_ADVICE = "the checkpoint is damaged: restore it from a copy, or resume from an earlier step by naming it"


def _write(path: Path, content: bytes) -> None:
    """Write and sync one new file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view[:_CHUNK]) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(directory: Path, name: str, what: str) -> Path:
    """The path of a new entry of a checkpoint.

    Raises:
        UsageError: the name is taken, or leads elsewhere.
    """
    if not name or Path(name).name != name or (directory / name).exists():
        raise UsageError(f"{what} {name!r} of a checkpoint: give a plain name that is not taken")
    return directory / name


def _write_optimizer(directory: Path, optimizer: torch.optim.Optimizer) -> None:
    """An optimizer's tensors and the rest of its state."""
    tensors, described = optimizer_parts(optimizer)
    _write(directory / "optimizer.safetensors", tensor_bytes(tensors))
    _write(directory / "optimizer.json", _json_bytes(described))


def _sync(path: Path) -> None:
    """Flush a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hash(path: Path) -> str:
    """SHA-256 of a file, read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json_bytes(value: object) -> bytes:
    """Canonical JSON: sorted keys, no blanks, no NaN. Integers of any size (random states) survive."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _write_manifest(temporary: Path, step: int) -> None:
    """Hash what the directory holds and write the list, itself sealed by a digest."""
    files: dict[str, dict[str, int | str]] = {}
    for path in sorted(temporary.rglob("*")):
        if path.is_symlink():
            raise UsageError(f"{path}: a checkpoint holds plain files, not links")
        _sync(path)
        if path.is_file():
            name = path.relative_to(temporary).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": _hash(path)}
    body = {"format": FORMAT, "step": step, "files": files}
    sealed = body | {"digest": hashlib.sha256(_json_bytes(body)).hexdigest()}
    _write(temporary / MANIFEST, _json_bytes(sealed))
    _sync(temporary)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Parse a manifest and check it against its own digest, so that no byte of it can change unnoticed."""
    if not path.is_file():
        raise CorruptError(f"{path}: missing; {_ADVICE}")
    content = path.read_bytes()
    try:
        manifest = json.loads(content)
        digest = manifest.pop("digest")
        whole = hashlib.sha256(_json_bytes(manifest)).hexdigest() == digest
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptError(f"{path}: not a manifest ({error}); {_ADVICE}") from error
    if not whole or content != _json_bytes(manifest | {"digest": digest}):
        raise CorruptError(f"{path}: differs from its own digest; {_ADVICE}")
    if manifest["format"] != FORMAT:
        raise DataError(f"{path}: format {manifest['format']}, this version reads {FORMAT}; update factagent")
    return dict(manifest)


def _retain(directory: Path, keep_last: int, protect: set[int]) -> None:
    """Delete all but the newest `keep_last` checkpoints and the protected ones."""
    old = checkpoint_steps(directory)[:-keep_last] if keep_last > 0 else []
    for step in old:
        if step not in protect:
            _delete(directory / f"step-{step}")


def _delete(path: Path) -> None:
    """Delete a checkpoint; renamed first, so that a half-deleted one never passes for whole."""
    doomed = path.with_name(path.name + ".tmp")
    path.rename(doomed)
    shutil.rmtree(doomed)
