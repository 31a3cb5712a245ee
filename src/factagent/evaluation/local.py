"""From a configuration to a policy that runs in this process: what evaluation and training both load."""

from __future__ import annotations

import ctypes
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from factagent.errors import ConfigError
from factagent.evaluation.config import TINY, EpisodeConfig, EvalConfig
from factagent.protocols import build_protocol
from factagent.protocols.base import AgentProtocol

if TYPE_CHECKING:
    import torch

    from factagent.policies.transformers import TransformersPolicy


def protocol_of(config: EpisodeConfig) -> AgentProtocol:
    """The protocol with its prompt.

    Raises:
        ConfigError: the prompt cannot be read or does not fit the protocol, or no round is left to answer in.
    """
    protocol = build_protocol(config.protocol, config.prompt)
    if protocol.opens_with_search and config.max_rounds < 2:
        raise ConfigError(f"protocol '{config.protocol}' searches first; set rollout.max_rounds to 2 or more")
    return protocol


def model_path(path: str) -> Path:
    """The directory of a model; "tiny" is the packaged policy."""
    return Path(str(resources.files("factagent") / "assets" / "tiny-policy")) if path == TINY else Path(path)


def load_model(
    path: str,
    device: str,
    rollout: EpisodeConfig,
    *,
    temperature: float,
    top_p: float = 1.0,
    dtype: torch.dtype | None = None,
    autocast: bool = False,
) -> TransformersPolicy:
    """Load a model directory, ready to sample; `dtype` and `autocast` as in `policies.transformers`."""
    from factagent.policies.transformers import SamplingSettings, TransformersPolicy

    settings = SamplingSettings(
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=rollout.max_new_tokens,
        max_prompt_tokens=rollout.max_prompt_tokens,
        batch_tokens=rollout.batch_tokens,
        autocast=autocast,
    )
    return TransformersPolicy.load(model_path(path), settings, device=device, dtype=dtype)


def load_evaluated(config: EvalConfig) -> TransformersPolicy:
    """The local model under test, in the arithmetic that `rollout.precision` names."""
    import torch

    prepare_process(config.threads, config.seed)
    rollout = config.rollout
    dtype = None if rollout.precision == "auto" else torch.float32
    return load_model(
        config.model.path,
        config.model.device,
        rollout,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        dtype=dtype,
        autocast=rollout.precision == "bf16",
    )


def prepare_process(threads: int, seed: int = 0) -> None:
    """Set thread counts, memory allocation and the global generators of this process.

    Every draw of ours comes from a generator named by its place; the global ones are seeded all the same, because
    checkpoints hold their states and must be the same bytes in a repeated run.

    glibc gives freed blocks above its mmap threshold back to the system; a tiny model's tensors lie just above it, and
    mapping them again and again costs about half of its time. Linux with glibc only; elsewhere nothing is set.
    """
    import random

    import numpy as np
    import torch
    from transformers.utils import logging

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(ctypes.c_int(-3), ctypes.c_int(1 << 30))  # M_MMAP_THRESHOLD
        libc.mallopt(ctypes.c_int(-1), ctypes.c_int(-1 & 0x7FFFFFFF))  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):
        return
