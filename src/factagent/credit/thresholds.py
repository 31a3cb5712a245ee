"""Thresholds that `factagent calibrate` measured, stored per encoder in `encoder_thresholds.json`."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from factagent.errors import DataError


class Thresholds(NamedTuple):
    """Cosines from which a pair passes (inclusive). `entity` is None where names are not compared."""

    similarity: float
    relation: float
    entity: float | None = None


def stored_thresholds(name: str, path: Path | None = None) -> Thresholds | None:
    """The calibrated thresholds of an encoder, or None where it was never calibrated.

    Raises:
        DataError: the file is malformed.
    """
    text = path.read_text() if path else (resources.files("factagent.credit") / "encoder_thresholds.json").read_text()
    try:
        entry = json.loads(text)["encoders"].get(name.removeprefix("intfloat/"))
        if entry is None:
            return None
        entity = entry.get("entity_threshold")
        return Thresholds(
            float(entry["similarity_threshold"]),
            float(entry["relation_threshold"]),
            None if entity is None else float(entity),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError.at(path or "encoder_thresholds.json", None, name, f"malformed thresholds: {error!r}") from error
