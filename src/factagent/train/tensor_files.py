"""Tensors and optimizers as files: safetensors for tensors, JSON for everything else. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from factagent.errors import DataError


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Safetensors bytes. Of tensors that are one and the same (tied weights) the first is written, the others named."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            kept[name] = tensor.cpu().contiguous()
    metadata = {"format": "pt"} | ({"tied": json.dumps(aliases, sort_keys=True)} if aliases else {})
    return safetensors.torch.save(kept, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, tied ones under each name."""
    tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    return tensors | {name: tensors[first] for name, first in json.loads(metadata.get("tied", "{}")).items()}


def optimizer_parts(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors named `index.key`, and the rest (scalars, groups) as JSON."""
    state_dict = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for index, values in state_dict["state"].items():
        scalars[str(index)] = {key: value for key, value in values.items() if not isinstance(value, Tensor)}
        # A clone, since two state tensors may share memory with nothing else in common.
        tensors |= {f"{index}.{key}": value.clone() for key, value in values.items() if isinstance(value, Tensor)}
    return tensors, {"state": scalars, "param_groups": state_dict["param_groups"]}


def load_optimizer(
    path: Path, described: Mapping[str, Any], tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Give an optimizer the state that `optimizer_parts` took apart, bit for bit.

    Args:
        path: where the state comes from, for messages.
        described: its JSON.
        tensors: its tensors.
        optimizer: built over the same parameters in the same order.

    Raises:
        DataError: parameters or groups differ in number or shape.
    """
    _check_optimizer(path, described["param_groups"], optimizer)
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in described["state"].items()}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    _check_shapes(path, state, optimizer)
    groups = [
        _as_before(group, now) for group, now in zip(described["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _as_before(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A saved group with its lists as the tuples they were (JSON knows only lists)."""
    return {key: tuple(value) if isinstance(now.get(key), tuple) else value for key, value in saved.items()}


def _check_optimizer(path: Path, groups: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer over another number of groups or parameters."""
    there, here = ([len(group["params"]) for group in side] for side in (groups, optimizer.param_groups))
    if there != here:
        raise DataError(
            f"{path}: its optimizer has parameters {there} a group, yours {here}; resume with the same model"
        )


def _check_shapes(path: Path, state: Mapping[int, Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments whose shape is not their parameter's."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state.items():
        for key, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[index].shape:
                raise DataError(
                    f"{path}: optimizer tensor {index}.{key} has shape {tuple(value.shape)}, its parameter "
                    f"{tuple(parameters[index].shape)}; resume with the same model"
                )
