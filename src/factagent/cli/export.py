"""`factagent export`: a checkpoint of the engine verl as a model directory."""

from __future__ import annotations

from pathlib import Path

from factagent.rows import write_row


def export(run: Path, *, out: Path, step: int | None = None) -> None:
    """Merge the shards of a cluster run's checkpoint into a Hugging Face directory with safetensors.

    Args:
        run: Directory of a run of the engine verl. (Checkpoints of the local engine are such directories already.)
        out: Directory to write; it must not exist.
        step: Of the checkpoint; the latest by default.
    """
    from factagent.distributed.export import export_checkpoint

    write_row({"model": str(out), "step": export_checkpoint(run, out, step)})
