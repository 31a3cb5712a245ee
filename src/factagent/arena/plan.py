"""From an arena's configuration to its runs: where each lies, what it is trained with, whether it may go on.

DIR/cold-starts/PROTOCOL/          a run directory of `factagent sft`
DIR/cold-starts/PROTOCOL.json      the checkpoint that it ended with; written when it is done
DIR/runs/ENTRY.seedK/              a run directory of `factagent train`
DIR/configs/NAME.toml              what each of them was started with
DIR/logs/NAME.log, NAME.json       its output; how it failed, if it did
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factagent.arena.config import ArenaConfig
from factagent.configuration import load_config
from factagent.errors import ConfigError, UsageError
from factagent.evaluation.config import differences
from factagent.train.config import RunConfig

STEPS = "schedule.steps"


@dataclass(frozen=True)
class Places:
    """The paths of an arena's directory."""

    root: Path

    def run(self, entry: str, seed: int) -> Path:
        """The directory of one training run."""
        return self.root / "runs" / run_name(entry, seed)

    def cold_start(self, protocol: str) -> Path:
        """The directory of one cold start."""
        return self.root / "cold-starts" / protocol

    def config(self, name: str) -> Path:
        """What a run or a cold start was started with."""
        return self.root / "configs" / f"{name}.toml"

    def log(self, name: str) -> Path:
        """What its processes wrote."""
        return self.root / "logs" / f"{name}.log"

    def failure(self, name: str) -> Path:
        """How its last process failed; no file where it did not."""
        return self.root / "logs" / f"{name}.json"

    def policy(self, protocol: str) -> Path | None:
        """The checkpoint that the protocol's cold start ended with; None where it is not done."""
        done = self.cold_start(protocol).with_suffix(".json")
        if not done.exists():
            return None
        return self.cold_start(protocol) / "checkpoints" / str(json.loads(done.read_text("utf-8"))["checkpoint"])


@dataclass(frozen=True)
class PlannedRun:
    """One entry under one seed."""

    entry: str
    seed: int
    path: Path
    config: RunConfig
    cold_start: str | None
    """The cold start that it begins with."""

    @property
    def name(self) -> str:
        """Entry and seed, as its directory is called."""
        return run_name(self.entry, self.seed)


def run_name(entry: str, seed: int) -> str:
    """The directory name of one run."""
    return f"{entry}.seed{seed}"


def planned_runs(arena: ArenaConfig, places: Places, entries: tuple[str, ...] = ()) -> list[PlannedRun]:
    """The runs of some entries (all by default), all entries of a seed before the next seed.

    Raises:
        ConfigError: an entry's configuration is refused.
        UsageError: an entry is not of this arena.
    """
    chosen = _chosen(arena, entries)
    return [_planned(arena, places, entry, seed) for seed in arena.seed_list for entry in chosen]


def cold_start_config(arena: ArenaConfig, protocol: str) -> RunConfig:
    """The resolved configuration of a protocol's cold start.

    Raises:
        ConfigError: it is refused.
    """
    cold = arena.cold_start[protocol]
    named = {"name": f"cold start {protocol}", "threads": arena.threads, "rollout": {"protocol": protocol}}
    tables = [
        ("shared", arena.shared.overrides),
        (f"cold_start.{protocol}", cold.overrides),
        (f"cold_start.{protocol}", named),
    ]
    return _load(cold.config or arena.base, tables)


def check_unchanged(directory: Path, now: RunConfig, cold_start: str | None = None) -> None:
    """Refuse to go on with a run that was started with other settings: its figures would not be comparable.

    Its name may differ, the checkpoint of its cold start may have moved, and it may get more steps, unless they decide
    what its environment answers (a curriculum).

    Raises:
        ConfigError: a key differs that decides the results.
    """
    before = load_config(RunConfig, directory / "config.toml")
    free = {"name"} | ({"model.path"} if cold_start else set())
    free |= {STEPS} if now.environment.kind == "retriever" else set()
    for key, old, new in differences(before.model_dump(mode="json"), now.model_dump(mode="json"), ""):
        if key not in free:
            raise ConfigError(
                f"{directory}: was started with {key} = {old!r}, the arena now says {new!r}; "
                "put the key back, rename the entry, or choose another --out"
            )


def _planned(arena: ArenaConfig, places: Places, entry: str, seed: int) -> PlannedRun:
    own: dict[str, Any] = {"name": run_name(entry, seed), "seed": seed, "threads": arena.threads}
    own["schedule"] = _schedule(arena)
    tables = [("shared", arena.shared.overrides), (f"entries.{entry}", arena.entries[entry].overrides)]
    config = _load(arena.base, [*tables, ("the arena", own)])
    protocol = config.rollout.protocol
    cold = protocol if arena.entries[entry].cold_start and protocol in arena.cold_start else None
    if cold is not None and (policy := places.policy(cold)) is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(policy)})})
    return PlannedRun(entry, seed, places.run(entry, seed), config, cold)


def _schedule(arena: ArenaConfig) -> dict[str, int]:
    keys = {"steps": arena.steps, "eval_every": arena.eval_every, "eval_questions": arena.questions}
    return {key: value for key, value in keys.items() if value is not None}


def _load(base: Path, tables: Sequence[tuple[str, Mapping[str, Any]]]) -> RunConfig:
    return load_config(RunConfig, base, tables=tables)


def _chosen(arena: ArenaConfig, entries: tuple[str, ...]) -> list[str]:
    for entry in entries:
        if entry not in arena.entries:
            raise UsageError(f"'{entry}' is no entry of {arena.name}; entries are {', '.join(arena.entries)}")
    return [entry for entry in arena.entries if not entries or entry in entries]
