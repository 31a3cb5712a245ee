"""Random states as JSON, so that a resumed run goes on bit for bit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factagent.errors import DataError

Generator = np.random.Generator | torch.Generator


def random_states(generators: Mapping[str, Generator] | None = None) -> dict[str, Any]:
    """The states of python's, numpy's and torch's global generators (CUDA's too) and of named ones, as JSON."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": _hex(torch.get_rng_state()),
        "cuda": [_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "named": {},
    }
    for name, generator in (generators or {}).items():
        if isinstance(generator, torch.Generator):
            states["named"][name] = _hex(generator.get_state())
        else:
            states["named"][name] = _plain(generator.bit_generator.state)
    return states


def restore_random_states(states: Mapping[str, Any], generators: Mapping[str, Generator] | None = None) -> None:
    """Set the generators as `random_states` found them.

    Raises:
        DataError: if a named generator has no saved state, or the number of CUDA devices differs.
    """
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_unhex(states["torch"]))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if states["cuda"] and devices != len(states["cuda"]):
        raise DataError(f"the checkpoint holds random states of {len(states['cuda'])} CUDA devices, here are {devices}")
    if states["cuda"]:
        torch.cuda.set_rng_state_all([_unhex(state) for state in states["cuda"]])
    for name, generator in (generators or {}).items():
        if name not in states["named"]:
            raise DataError(f"the checkpoint holds no random state named '{name}'")
        if isinstance(generator, torch.Generator):
            generator.set_state(_unhex(states["named"][name]))
        else:
            generator.bit_generator.state = _unplain(states["named"][name])


def _hex(state: Tensor) -> str:
    """A byte tensor as hexadecimal text."""
    return bytes(state.cpu().numpy()).hex()


def _unhex(text: str) -> Tensor:
    """The byte tensor of `_hex`."""
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _plain(value: Any) -> Any:
    """A numpy bit generator's state as JSON values; arrays keep their type."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"__array__": [str(value.dtype), value.tolist()]}
    return int(value) if isinstance(value, np.integer) else value


def _unplain(value: Any) -> Any:
    """The inverse of `_plain`."""
    if not isinstance(value, dict):
        return value
    if "__array__" in value:
        dtype, items = value["__array__"]
        return np.array(items, dtype)
    return {key: _unplain(item) for key, item in value.items()}
