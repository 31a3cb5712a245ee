"""The question sets of an evaluation, read and checked."""

from __future__ import annotations

from collections.abc import Sequence

from factagent.data.sources import open_questions
from factagent.errors import ConfigError, DataError
from factagent.evaluation.config import SetConfig
from factagent.types import Question


def read_sets(sets: Sequence[SetConfig]) -> dict[str, list[Question]]:
    """The questions of each set, in the configured order.

    Raises:
        ConfigError: a file is not there.
        DataError: a file is malformed, holds another number of questions than `expected`, or none that is asked for.
    """
    return {each.name: _read_set(each) for each in sets}


def _read_set(config: SetConfig) -> list[Question]:
    if not config.path.exists():
        raise ConfigError(f"set '{config.name}': {config.path} does not exist; correct the path")
    questions = open_questions(config.path, config.format)
    if config.expected is not None and len(questions) != config.expected:
        raise DataError(f"{config.path}: holds {len(questions)} questions, not the {config.expected} of 'expected'")
    kept = [
        question
        for question in questions
        if (not config.types or question.type in config.types) and (not config.hops or question.hops in config.hops)
    ]
    if not kept:
        raise DataError(f"{config.path}: no question has a type in {config.types} and hops in {config.hops}")
    return kept[: config.limit]
