"""One training process over a run directory: interrupts and checkpoints, the same for SFT and GRPO."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from factagent.errors import DataError
from factagent.train.checkpoint import Checkpoint, save_checkpoint
from factagent.train.random_states import random_states, restore_random_states

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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


def save_training_state(
    checkpoints: Path,
    step: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    keep_last: int,
    protect: tuple[int, ...] = (),
) -> Path:
    """Write a checkpoint that is both a loadable model directory and everything that resuming needs."""

    def write_model(directory: Path) -> None:
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)

    return save_checkpoint(
        checkpoints,
        step,
        weights=write_model,
        optimizer=optimizer,
        state={**state, "random": random_states()},
        keep_last=keep_last,
        protect=protect,
    )


def restore_training_state(
    checkpoint: Checkpoint, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Put weights, optimizer and random states back, bit for bit; returns the rest of the saved state."""
    import torch

    weights = checkpoint.weights()
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in own.items():
            source = weights.get(name)
            if source is None and name == "lm_head.weight" and model.config.tie_word_embeddings:
                continue
            if source is None:
                raise DataError(f"{checkpoint.path}: no tensor '{name}'; the checkpoint belongs to another model")
            tensor.copy_(source)
    checkpoint.restore_optimizer(optimizer)
    restore_random_states(checkpoint.state["random"])
    return dict(checkpoint.state)
