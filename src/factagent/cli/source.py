"""Where `train` and `sft` take a run from: a configuration, for a new one, or the directory of an old one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from factagent.configuration import dump_toml, load_config
from factagent.errors import UsageError

if TYPE_CHECKING:
    from factagent.train.config import RunConfig


def check_source(
    config: Path | None, resume: Path | None, out: Path | None, overrides: tuple[str, ...], dry_run: bool
) -> None:
    """Refuse both sources at once, none, and beside --resume whatever it would have to ignore (UsageError)."""
    if (resume is None) == (config is None):
        raise UsageError("give either --config FILE with --out DIR, or --resume DIR")
    if resume is not None and (out is not None or overrides or dry_run):
        raise UsageError("--resume goes on with the run's own configuration; leave out --out, --set and --dry-run")


def resolve(config: Path | None, overrides: tuple[str, ...]) -> RunConfig:
    """The configuration of a new run, whose prompt is read too: it would fail only when the run has its directory.

    Raises:
        ConfigError: the configuration or its prompt is refused.
    """
    from factagent.evaluation.local import protocol_of
    from factagent.train.config import RunConfig

    resolved = load_config(RunConfig, config, overrides)
    protocol_of(resolved.rollout)
    return resolved


def new_run(
    config: Path | None, out: Path | None, overrides: tuple[str, ...], dry_run: bool
) -> tuple[RunConfig, Path] | None:
    """Resolved configuration and directory of a new run; None after a dry run, which prints the configuration.

    Raises:
        ConfigError: the configuration is refused.
        UsageError: --out is missing.
    """
    resolved = resolve(config, overrides)
    if dry_run:
        sys.stdout.write(dump_toml(resolved))
        return None
    if out is None:
        raise UsageError("--out DIR is missing: the directory for the new run")
    return resolved, out
