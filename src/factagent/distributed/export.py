"""Shards of verl -> one Hugging Face directory with safetensors, which everything else here loads.

The shards are pickles of torch, as verl writes them: export what your own runs wrote, and pass on the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from factagent.distributed.overrides import CHECKPOINTS, environment_of
from factagent.errors import DataError, MissingExtraError, ServiceError, UsageError
from factagent.runs import RunDirectory
from factagent.train.cluster import ClusterConfig

_STEP = "global_step_"


def exported_steps(run: Path) -> list[int]:
    """The steps whose shards the run holds, ascending."""
    folders = (run / CHECKPOINTS).glob(f"{_STEP}*")
    return sorted(
        int(path.name.removeprefix(_STEP)) for path in folders if (path / "actor" / "fsdp_config.json").exists()
    )


def export_checkpoint(run: Path, out: Path, step: int | None = None) -> int:
    """Merge the shards of a checkpoint into `out`; returns its step.

    Args:
        run: a run of the engine verl.
        out: a directory that does not exist yet.
        step: of the checkpoint; the latest by default.

    Raises:
        MissingExtraError: verl is not installed.
        UsageError: no such run or checkpoint, or `out` exists.
        ServiceError, DataError: see `merge_shards`.
    """
    if find_spec("verl") is None:
        raise MissingExtraError.of("verl", "verl")
    steps = exported_steps(RunDirectory.open(run).path)
    wanted = max(steps, default=None) if step is None else step
    if wanted is None or wanted not in steps:
        known = ", ".join(map(str, steps)) or "none"
        raise UsageError(f"{run} has no checkpoint{'' if step is None else f' of step {step}'}; it has {known}")
    if out.exists():
        raise UsageError(f"{out} exists already; name a new directory")
    merge_shards(run / CHECKPOINTS / f"{_STEP}{wanted}" / "actor", out)
    return wanted


def merge_shards(shards: Path, out: Path) -> None:
    """Merge one checkpoint of verl (FSDP) into a model directory.

    Raises:
        ServiceError: verl's merger failed.
        DataError: what it wrote is no model directory.
    """
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(shards), "--target_dir", str(out)]
    done = subprocess.run(command, env=os.environ | _environment(), capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ServiceError(f"verl could not merge the shards in {shards}: {last}")
    _check(out)


def _environment() -> dict[str, str]:
    """Merging needs no GPU, so verl is told not to look for one."""
    return environment_of(ClusterConfig(device="cpu"))


def _check(out: Path) -> None:
    """Refuse a directory that transformers could not load by weights that are no pickle."""
    if not any(out.glob("*.safetensors")):
        raise DataError(f"{out}: the merger wrote no safetensors")
    for name in ("config.json", "tokenizer_config.json"):
        path = out / name
        if not path.is_file():
            raise DataError(f"{path}: missing from the exported model")
        json.loads(path.read_text("utf-8"))
