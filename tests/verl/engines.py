"""Runs of both engines: the command as people start it, and what two runs of one configuration must share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factagent.records import to_plain
from factagent.runs import read_groups, read_metrics
from factagent.types import Group

SECONDS = int(os.environ.get("FACTAGENT_VERL_SECONDS", "900"))
"""For one command; a machine that is shared with much else may need more."""

CLOSE = ("loss", "loss_policy", "loss_kl", "grad_norm", "approx_kl", "kl_ref", "ratio_mean", "clip_fraction")
"""What rounding may change."""

OURS_ALONE = {"seconds", "rows", "rows_added", "sampler_probability_gap", "dropped_groups", "entropy"}
"""Figures of one engine, or of another moment (verl measures entropy before the update)."""


def factagent(*arguments: str) -> dict[str, Any]:
    """Run a command that must succeed; the row that it prints."""
    code, out, errors = run_command(*arguments)
    assert code == 0, errors[-4000:]
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return result


def run_command(*arguments: str, seconds: int = SECONDS) -> tuple[int, str, str]:
    """Run the command; whatever hangs is ended with everything that it started."""
    command = [sys.executable, "-m", "factagent.cli", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=dict(os.environ)
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        pytest.fail(f"{' '.join(arguments)} did not end within {seconds} s\n{errors[-3000:]}")
    return process.returncode, out, errors


def assert_same_groups(ours: Path, theirs: Path, step: int, count: int) -> None:
    """The trajectories and the ledger of a step are equal; `count` groups."""
    groups, expected = list(read_groups(ours, step)), list(read_groups(theirs, step))
    assert len(groups) == len(expected) == count
    for (_, group, credit), (_, local, ledger) in zip(groups, expected, strict=True):
        assert texts(group) == texts(local)
        assert [t.stop_reason for t in group.trajectories] == [t.stop_reason for t in local.trajectories]
        assert credit == ledger


def texts(group: Group) -> list[list[tuple[Any, str, Any]]]:
    """What was asked, written and found."""
    return [
        [(to_plain(step.action), step.generation.text, to_plain(step.observation)) for step in trajectory.steps]
        for trajectory in group.trajectories
    ]


def assert_same_metrics(ours: Path, theirs: Path) -> None:
    """Every step of the local run `theirs` has the same figures in `ours`, losses and gradients within 1e-4."""
    rows, expected = read_metrics(ours), read_metrics(theirs)
    assert len(rows) >= len(expected) > 0
    for row, local in zip(rows, expected, strict=False):
        shared = set(local) - OURS_ALONE - {"measure_tokens", "environment_noise", "ratio_max"}
        assert shared <= set(row)
        for name in shared:
            if name in CLOSE:
                assert row[name] == pytest.approx(local[name], abs=1e-4), name
            else:
                assert row[name] == local[name], name
