"""The configuration of an arena: entries, seeds and budgets over one base configuration.

An entry says only in what it differs from the base; everything else is the same for all of them, which is what makes
them comparable.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from factagent.configuration import load_config
from factagent.evaluation.config import Table

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

RUN_TABLES = ("model", "data", "rollout", "environment", "credit", "learner", "critic", "schedule", "alarms", "sft")
"""The tables of a run's configuration that an entry may change."""


class RunTables(Table):
    """Keys of a run's configuration (`train.config.RunConfig`), as far as they are set here."""

    method: str | None = None
    """A method, whose preset lies over the base configuration and below what is said here; see `factagent methods`."""
    mode: Literal["matched", "faithful"] | None = None
    model: dict[str, Any] = Field(default_factory=dict)
    data: dict[str, Any] = Field(default_factory=dict)
    rollout: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, Any] = Field(default_factory=dict)
    credit: dict[str, Any] = Field(default_factory=dict)
    learner: dict[str, Any] = Field(default_factory=dict)
    critic: dict[str, Any] = Field(default_factory=dict)
    schedule: dict[str, Any] = Field(default_factory=dict)
    alarms: dict[str, Any] = Field(default_factory=dict)
    sft: dict[str, Any] = Field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, Any]:
        """The keys that are set, as a file would hold them."""
        named = {key: value for key in ("method", "mode") if (value := getattr(self, key)) is not None}
        return named | {name: table for name in RUN_TABLES if (table := getattr(self, name))}


class EntryConfig(RunTables):
    """One competitor: a method or a variant of the base."""

    title: str | None = None
    """How tables name it; by default its key."""
    cold_start: bool = True
    """Start from the cold start of its protocol, where the arena has one."""


class ColdStartConfig(RunTables):
    """The cold start that all entries of one protocol share (`factagent sft`)."""

    config: Path | None = None
    """Its configuration, relative to the arena's file; by default the arena's base."""


class TestConfig(Table):
    """The questions on which chosen entries are confirmed, once."""

    __test__ = False  # not a test for pytest

    path: Path | None = None
    """By default `qa.test.jsonl` in the directory of the run's data; like that, as seen from the working directory."""
    questions: int | None = Field(default=None, ge=1)
    """Only the first so many."""


class ArenaConfig(Table):
    """Everything that decides an arena."""

    name: str = "arena"
    base: Path
    """Configuration that every entry builds on (`factagent train --config`), relative to the arena's file."""
    entries: dict[str, EntryConfig] = Field(min_length=1)
    baseline: str | None = None
    """The entry that others are held against; by default the first."""
    seeds: int | tuple[int, ...] = 3
    """A number of seeds (0, 1, ...) or the seeds themselves."""
    steps: int | None = Field(default=None, ge=1)
    """Training steps of every run; by default the base's."""
    questions: int | None = Field(default=None, ge=1)
    """Development questions of an evaluation; by default the base's."""
    eval_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations; by default the base's."""
    jobs: int = Field(default=2, ge=1)
    """Runs at a time."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of each run."""
    budget: Literal["steps", "tokens"] = "steps"
    """By which the report ranks: after equal steps, or after equally many generated tokens. It holds both."""
    shared: RunTables = RunTables()
    """Changes of the base that hold for every entry and cold start."""
    cold_start: dict[str, ColdStartConfig] = Field(default_factory=dict)
    """By protocol."""
    test: TestConfig = TestConfig()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for name in (*self.entries, *self.cold_start):
            if not _NAME.fullmatch(name):
                raise ValueError(f"'{name}' names a directory: use letters, digits, '-' and '_'")
        if self.baseline is not None and self.baseline not in self.entries:
            raise ValueError(f"baseline '{self.baseline}' is no entry; entries are {', '.join(self.entries)}")
        if not self.seed_list or len(set(self.seed_list)) < len(self.seed_list):
            raise ValueError(f"seeds = {self.seeds!r}: give a number of at least 1, or distinct seeds")
        return self

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds themselves."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def first(self) -> str:
        """The entry that others are held against."""
        return self.baseline or next(iter(self.entries))

    def title(self, entry: str) -> str:
        """How tables name an entry."""
        return self.entries[entry].title or entry


def load_arena(path: Path, overrides: tuple[str, ...] = ()) -> ArenaConfig:
    """Read an arena; its `base` and the files of its cold starts become paths as seen from here.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value is refused.
    """
    config = load_config(ArenaConfig, path, overrides)
    cold = {
        name: each if each.config is None else each.model_copy(update={"config": path.parent / each.config})
        for name, each in config.cold_start.items()
    }
    return config.model_copy(update={"base": path.parent / config.base, "cold_start": cold})
