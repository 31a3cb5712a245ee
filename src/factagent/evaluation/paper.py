"""The paper's rows, as data (`paper.toml`), and its two averages.

The Bamboogle cells of GiGPO are corrected (methods.md, section 11.1); `printed_as` keeps what was printed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PaperSet:
    """One of the seven benchmarks."""

    title: str
    split: str
    questions: int


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One row: EM in per cent by set, and where it comes from."""

    size: str
    method: str
    em: Mapping[str, float]
    printed: float
    """The weighted average as printed."""
    printed_as: Mapping[str, float]
    """Cells as printed, where `em` corrects them."""
    note: str


@dataclass(frozen=True, slots=True)
class Paper:
    """The seven sets in the paper's order, and the rows."""

    sets: Mapping[str, PaperSet]
    rows: tuple[PaperRow, ...]


@cache
def load_paper() -> Paper:
    """Read the packaged rows."""
    text = resources.files("factagent.evaluation").joinpath("paper.toml").read_text("utf-8")
    data = tomllib.loads(text)
    rows = tuple(
        PaperRow(
            row["size"],
            row["method"],
            dict(zip(data["columns"], row["em"], strict=True)),
            row["printed"],
            row.get("printed_as", {}),
            data["notes"][row["note"]],
        )
        for row in data["rows"]
    )
    return Paper({name: PaperSet(**data["sets"][name]) for name in data["columns"]}, rows)


def weighted_mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The mean over questions: each set counts by its weight, the number of its questions."""
    return sum(values[name] * weights[name] for name in values) / sum(weights[name] for name in values)


def macro_mean(values: Mapping[str, float]) -> float:
    """The mean over sets: each counts the same."""
    return sum(values.values()) / len(values)


def paper_sizes() -> dict[str, int]:
    """Questions of each of the seven sets."""
    return {name: each.questions for name, each in load_paper().sets.items()}


def set_name(path: Path) -> str:
    """What a question file is called: the paper's name for its split of a set (nq.test.jsonl.gz is "nq"), else its own.

    Other splits keep their name (nq.train is "nq.train"), so they never stand beside the paper's rows.
    """
    stem = path.name
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".parquet"):
        stem = stem.removesuffix(suffix)
    return next((name for name, each in load_paper().sets.items() if stem == f"{name}.{each.split}"), stem)
