"""The checkpoints of a training process, the same for SFT and GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factagent.errors import DataError
from factagent.train.checkpoint import Checkpoint, Part, save_checkpoint
from factagent.train.random_states import random_states, restore_random_states

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
    parts: Mapping[str, Part] | None = None,
) -> Path:
    """Write a checkpoint that is both a loadable model directory and everything that resuming needs.

    `parts` are further models in training, as `save_checkpoint` takes them.
    """

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
        parts=parts,
    )


def restore_part(checkpoint: Checkpoint, name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a further model and its optimizer back, bit for bit.

    Raises:
        DataError: the checkpoint holds no such model, or one of another shape.
    """
    import torch

    weights, own = checkpoint.weights(name), model.state_dict()
    if {key: tensor.shape for key, tensor in weights.items()} != {key: tensor.shape for key, tensor in own.items()}:
        raise DataError(f"{checkpoint.path}/{name}: belongs to another model; resume with the same configuration")
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(weights[key])
    checkpoint.restore_optimizer(optimizer, name)


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
