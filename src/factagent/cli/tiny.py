"""`factagent tiny build`: make the tiny policy again, or one for your own corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from factagent.configuration import load_config
from factagent.errors import UsageError
from factagent.rows import write_row


def build(
    *,
    config: Path,
    out: Path,
    hidden_size: int = 128,
    layers: int = 4,
    heads: int = 4,
    intermediate_size: int = 384,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
) -> None:
    """Make the tiny policy: a tokenizer with the words of a corpus, and a small Qwen2 cold-started from the expert.

    Args:
        config: Configuration (TOML) whose tables `data`, `rollout` and `sft` say on what and how.
        out: Directory; the policy ends up in OUT/policy. An interrupted build goes on when called again.
        hidden_size: Width of the model.
        layers: Number of its layers.
        heads: Number of attention heads.
        intermediate_size: Width of its feed-forward part.
        set_: Override a key of the configuration. Repeatable.
    """
    from pydantic import ValidationError

    from factagent.train.config import RunConfig
    from factagent.train.tiny import TinyConfig
    from factagent.train.tiny_build import build_tiny

    try:
        size = TinyConfig(hidden_size=hidden_size, layers=layers, heads=heads, intermediate_size=intermediate_size)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UsageError(f"--{option} {problem['input']} is refused: {problem['msg'].lower()}") from error
    command = f"factagent tiny build --config {config} --out {out} --hidden-size {hidden_size} --layers {layers}"
    command += f" --heads {heads} --intermediate-size {intermediate_size}"
    policy = build_tiny(load_config(RunConfig, config, set_), size, out, command + "".join(f" --set {s}" for s in set_))
    write_row({"policy": str(policy)})
