"""The relation lexicon of `lexicon.toml`: wordings of common relations, with their direction."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple


class Predicate(NamedTuple):
    """One relation: wordings in both directions. `symmetric` means that they are the same direction."""

    name: str
    forward: tuple[str, ...]
    inverse: tuple[str, ...]
    symmetric: bool


@lru_cache(maxsize=1)
def _tables() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads((resources.files("factagent.credit") / "lexicon.toml").read_text(encoding="utf-8"))


def predicates() -> tuple[Predicate, ...]:
    """All predicates, in the order of the file (the first predicate that lists a wording owns it)."""
    return tuple(
        Predicate(row["name"], tuple(row["forward"]), tuple(row.get("inverse", ())), row.get("symmetric", False))
        for row in _tables()["predicate"]
    )


def compatible_predicates() -> tuple[tuple[str, str, int], ...]:
    """Pairs of predicates that may state one fact: 1 in the same direction, -1 in opposite ones, 0 in both."""
    return tuple((*row["predicates"], row["direction"]) for row in _tables()["compatible"])
