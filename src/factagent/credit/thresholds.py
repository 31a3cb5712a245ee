"""Thresholds that `factagent calibrate` measured, stored per encoder in `encoder_thresholds.json`.

The environment variable FACTAGENT_THRESHOLDS names a file of the same form that comes first.
"""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from factagent.errors import DataError


class Thresholds(NamedTuple):
    """Cosines from which a pair passes (inclusive). `entity` is None where names are not compared."""

    similarity: float
    relation: float
    entity: float | None = None


THRESHOLDS_VARIABLE = "FACTAGENT_THRESHOLDS"


def stored_thresholds(name: str) -> Thresholds | None:
    """The calibrated thresholds of an encoder, or None where it was never calibrated.

    Raises:
        DataError: a thresholds file cannot be read or is malformed.
    """
    built_in = (resources.files("factagent.credit") / "encoder_thresholds.json").read_text()
    own = os.environ.get(THRESHOLDS_VARIABLE)
    sources = [(own, _read(own))] if own else []
    for source, text in [*sources, ("encoder_thresholds.json", built_in)]:
        found = _parse(source, text, name.removeprefix("intfloat/"))
        if found is not None:
            return found
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise DataError.at(path, None, None, f"cannot be read ({THRESHOLDS_VARIABLE}): {error.strerror}") from error


def _parse(source: str, text: str, name: str) -> Thresholds | None:
    try:
        entry = json.loads(text)["encoders"].get(name)
        if entry is None:
            return None
        entity = entry.get("entity_threshold")
        return Thresholds(
            float(entry["similarity_threshold"]),
            float(entry["relation_threshold"]),
            None if entity is None else float(entity),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError.at(source, None, name, f"malformed thresholds: {error!r}") from error
