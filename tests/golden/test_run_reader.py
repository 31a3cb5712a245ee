"""Runs written by released versions stay readable (reliability.md R10): one folder a schema, never made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from factagent.records import dumps, group_to_record
from factagent.runs import RunDirectory, TornTailWarning, read_groups, read_metrics
from factagent.types import (
    Answer,
    Assert,
    Generation,
    Group,
    Invalid,
    Message,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

V1 = Path(__file__).parent / "run-v1"

BORN = Triple("Mara Voss", "born in", "Ilmen")
FIRST = Group(
    Question(
        "q1", "Where was Mara Voss born?", ("Ilmen", "Ilmen City"), "bridge", 1, ("Mara Voss",), (BORN,), ((BORN,),)
    ),
    (
        Trajectory(
            (
                Step(
                    Search("Mara Voss"),
                    Generation("<think>é\n</think>", (1, 2, 3), (4, 5), (-0.1, -1e-07), "stop", 3),
                    Observation("Mara Voss", (Passage("p1", "Mara Voss", "Mara Voss was born in Ilmen.", 7.25),)),
                ),
                Step(Assert((BORN,), "the article says so"), Generation("", (1,), (6,), (-2.0,), "length", 1)),
                Step(Answer("Ilmen")),
            ),
            StopReason.ANSWERED,
            0,
            ((Message("system", "Act."), Message("user", "Go.")),),
        ),
        Trajectory((Step(Invalid("no_json", "nothing found")),), StopReason.RETRIEVAL_FAILED, 1),
    ),
)
SECOND = Group(Question("q2", "?", ()), (Trajectory((), StopReason.TIMEOUT),))
CREDIT = {"baseline": 1.0, "clusters": [{"representative": ["Mara Voss", "born in", "Ilmen"], "utility": 0.125}]}


def test_version_1_is_read_with_one_warning_for_its_torn_tail():
    with pytest.warns(TornTailWarning, match="step-000002") as caught:
        rows = list(read_groups(V1))
    assert len(caught) == 1
    assert rows == [(1, FIRST, CREDIT), (1, SECOND, None), (2, SECOND, None)]


def test_version_1_metrics_are_read():
    with pytest.warns(TornTailWarning, match="metrics"):
        assert read_metrics(V1) == [
            {"step": 1, "reward": 0.5, "loss": None, "seconds": {"rollout": 1.25}},
            {"step": 2, "reward": 1 / 3, "loss": -1e-07, "seconds": {"rollout": 1.5}},
        ]


def test_what_is_written_today_is_still_version_1():
    """A change of the written form needs a new schema number, a new folder here, and a reader for both."""
    expected = (V1 / "first.json").read_bytes()
    assert dumps(group_to_record(FIRST, CREDIT, step=1)) + b"\n" == expected


def write_version_1(folder: Path) -> None:
    """How the folder was made."""
    run = RunDirectory.create(folder, "seed = 1\n")
    run.log_group(1, FIRST, CREDIT)
    run.log_group(1, SECOND)
    run.log_group(2, SECOND)
    run.log_group(2, FIRST)
    run.log_metrics({"step": 1, "reward": 0.5, "loss": float("nan"), "seconds": {"rollout": 1.25}})
    run.log_metrics({"step": 2, "reward": 1 / 3, "loss": -1e-07, "seconds": {"rollout": 1.5}})
    torn = run.trajectories / "step-000002.jsonl.zst"
    torn.write_bytes(torn.read_bytes()[:-9])
    run.metrics_path.write_bytes(run.metrics_path.read_bytes() + b'{"step":3,"rew')
    (folder / "first.json").write_bytes(dumps(group_to_record(FIRST, CREDIT, step=1)) + b"\n")
