"""`factagent arena` from the command line: stopped, killed, gone on with; failures; cold start; test questions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from factagent.arena.config import load_arena
from factagent.arena.plan import Places, planned_runs
from factagent.cli import main
from factagent.runs import metrics_digest, read_metrics

pytestmark = pytest.mark.slow

ARENA = """
name = "small"
base = "{base}"
steps = 2
seeds = 2
questions = 6

[entries.outcome]
credit = {{ process_weight = 0.0 }}
learner = {{ kl_coef = 0.0 }}

[entries.plain]
"""

SHORT = ["--set", "steps=1", "--set", "seeds=1"]


@pytest.fixture
def arena_file(config_file: Path, tmp_path: Path) -> Path:
    path = tmp_path / "arena.toml"
    path.write_text(ARENA.format(base=config_file))
    return path


def launch(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "factagent.cli", "arena", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def wait_for(process: subprocess.Popen[str], *paths: Path) -> None:
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in paths):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_arena_that_is_interrupted_and_killed_loses_nothing_finished(arena_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summaries = {run.name: run.path / "summary.json" for run in planned_runs(load_arena(arena_file), Places(out))}

    process = launch(arena_file, "--out", out)
    wait_for(process, out / "runs" / "outcome.seed0" / "metrics.jsonl")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (130, ""), errors
    assert "Traceback" not in errors
    assert json.loads((out / "table.json").read_text())["states"].get("finished", 0) < 4
    assert not summaries["plain.seed1"].exists()

    process = launch(arena_file, "--out", out)
    wait_for(
        process, summaries["outcome.seed0"], summaries["plain.seed0"], out / "runs" / "plain.seed1" / "config.toml"
    )
    kept = summaries["outcome.seed0"].stat().st_mtime_ns
    process.kill()
    process.communicate(timeout=60)  # runs that it started may live on; the next call waits for them

    process = launch(arena_file, "--out", out)
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert output == (out / "report.md").read_text()
    assert "4 runs of 2 steps (seeds 0, 1): 4 finished." in output
    assert summaries["outcome.seed0"].stat().st_mtime_ns == kept
    table = json.loads((out / "table.json").read_text())
    assert [run["answers_kept"] for run in table["runs"]] == [True] * 4
    assert table["entries"]["plain"]["difference"]["question"]["em"]["count"] == 6
    assert [row["step"] for row in read_metrics(out / "runs" / "plain.seed1")] == [0, 1, 2]

    # What was stopped, killed and resumed is what an unbroken run gives.
    config = out / "configs" / "plain.seed0.toml"
    assert main(["train", "--config", str(config), "--out", str(tmp_path / "whole")]) == 0
    assert metrics_digest(tmp_path / "whole") == metrics_digest(out / "runs" / "plain.seed0")


def test_a_failing_entry_does_not_stop_the_others(arena_file: Path, tmp_path: Path, capsys) -> None:
    with arena_file.open("a") as file:
        file.write('[entries.broken]\nmodel = { path = "nowhere" }\n[entries.alarmed]\n')
        file.write("alarms = { parse_error_rate = 0.01, parse_error_steps = 1 }\nrollout = { max_new_tokens = 2 }\n")
    out = tmp_path / "out"
    arguments = ["arena", str(arena_file), "--out", str(out), *SHORT]
    assert main(arguments) == 75
    captured = capsys.readouterr()
    assert "2 of the arena's runs failed (broken.seed0, alarmed.seed0); see" in captured.err.replace("\n", " ")
    text = (out / "report.md").read_text()
    assert "4 runs of 1 steps (seeds 0): 2 finished, 2 stopped." in text
    assert "| broken.seed0 | stopped | step 0 of 1; exit code " in text
    assert "nowhere" in text
    assert "| alarmed.seed0 | stopped | step 1 of 1; exit code 75: " in text
    # What failed is tried again, but not what an alarm stopped, unless it is named.
    rows = len(read_metrics(out / "runs" / "alarmed.seed0"))
    assert main(arguments) == 75
    assert "1 of the arena's runs failed (broken.seed0)" in capsys.readouterr().err.replace("\n", " ")
    assert len(read_metrics(out / "runs" / "alarmed.seed0")) == rows


def test_a_cold_start_is_done_once_and_test_questions_are_looked_at_once(
    arena_file: Path, place: Path, tiny_build: Path, tmp_path: Path, capsys
) -> None:
    with arena_file.open("a") as file:
        file.write(
            "[cold_start.factagent]\nsft = { trajectories = 8, epochs = 1, batch_size = 8, learning_rate = 1e-6 }\n"
        )
        file.write(f'[test]\npath = "{place / "world" / "qa.dev.jsonl"}"\nquestions = 5\n')
    out = tmp_path / "out"
    arguments = ["arena", str(arena_file), "--out", str(out), *SHORT]
    assert main([*arguments, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "waiting    cold start of factagent",
        "waiting    step 0 of 1  outcome.seed0",
        "waiting    step 0 of 1  plain.seed0",
    ]
    assert not out.exists()
    assert main([*arguments, "--confirm", "plain"]) == 2
    assert "plain.seed0 not finished; run the arena to its end first" in capsys.readouterr().err
    assert main([*arguments, "--only", "plain"]) == 0
    done = json.loads((out / "cold-starts" / "factagent.json").read_text())
    assert (
        f'cold-starts/factagent/checkpoints/{done["checkpoint"]}"' in (out / "configs" / "plain.seed0.toml").read_text()
    )
    before = (out / "cold-starts" / "factagent" / "metrics.jsonl").stat().st_mtime_ns
    assert main(arguments) == 0
    assert (out / "cold-starts" / "factagent" / "metrics.jsonl").stat().st_mtime_ns == before
    assert "2 finished." in capsys.readouterr().out

    assert main([*arguments, "--confirm", "plain"]) == 0
    assert "## Confirmed on test questions" in capsys.readouterr().out
    confirmed = json.loads((out / "table.json").read_text())["confirmed"]
    assert (confirmed["chosen"], confirmed["questions"], confirmed["looks"]) == (["plain"], 5, 1)
    summary = json.loads((out / "confirm" / "plain.seed0" / "summary.json").read_text())
    assert confirmed["entries"]["plain"]["em"]["mean"] == summary["sets"]["test"]["em"]
    for entry in ("plain", "outcome"):
        assert main([*arguments, "--confirm", entry]) == 2
        assert "plain was confirmed on the test questions" in capsys.readouterr().err
    assert main([*arguments, "--confirm", "outcome", "--force"]) == 0
    assert "looked at 2 times: only the first look is a confirmation" in capsys.readouterr().out
