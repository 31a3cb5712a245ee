"""`factagent eval`: play questions greedily and score the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from factagent.configuration import load_config
from factagent.errors import UsageError
from factagent.rows import write_row


def evaluate(
    *,
    config: Path,
    model: str | None = None,
    questions: Path | None = None,
    limit: int | None = None,
    out: Path | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
) -> None:
    """Evaluate a policy on questions, decoding greedily; prints the scores with 95 % intervals as one JSON object.

    Args:
        config: Configuration (TOML); its tables `model`, `data` and `rollout` apply.
        model: Model directory (such as RUN/checkpoints/step-N) instead of the configuration's.
        questions: Question file instead of the configuration's dev set.
        limit: Only the first so many questions.
        out: Also write one JSON object a question to this file.
        set_: Override a key of the configuration. Repeatable.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}; it must be at least 1")
    from factagent.train.config import RunConfig
    from factagent.train.evaluate import evaluate_model

    overrides = (*set_, *((f"data.dev={questions}",) if questions else ()))
    write_row(evaluate_model(load_config(RunConfig, config, overrides), model, limit, out))
