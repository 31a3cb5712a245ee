"""`kill -9` at any point of an evaluation: resumed, it ends with the bytes of one that nothing interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from random import Random

from factagent.data.world.build import build_world
from factagent.data.world.config import WorldConfig

KILLS = 3


def command(*arguments):
    return [
        sys.executable,
        "-W",
        "ignore::factagent.run_files.TornTailWarning",
        "-m",
        "factagent.cli",
        "eval",
        *arguments,
    ]


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def kill_at(process, path, size):
    """Kill the process when the file has grown to this size; False where it ended before."""
    while process.poll() is None:
        if size_of(path) >= size:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.001)
    return False


def test_a_killed_evaluation_resumes_to_the_same_report(tmp_path):
    world, rng = tmp_path / "world", Random(7)
    build_world(WorldConfig(entities=600, train=90, dev=60, test=0), world)
    config = tmp_path / "eval.toml"
    config.write_text(
        f"""
        batch_size = 2
        [model]
        path = "expert"
        noise = 0.3
        facts = "{world / "facts.jsonl"}"
        [retriever]
        corpus = "{world / "corpus.jsonl"}"
        [[sets]]
        name = "dev"
        path = "{world / "qa.dev.jsonl"}"
        [[sets]]
        name = "train"
        path = "{world / "qa.train.jsonl"}"
        """,
        encoding="utf-8",
    )
    whole, run = tmp_path / "whole", tmp_path / "run"
    subprocess.run(command("--config", config, "--out", whole), check=True, capture_output=True)
    total, kills, acknowledged = size_of(whole / "results.jsonl"), 0, b""
    for share in sorted(rng.random() for _ in range(KILLS)):
        arguments = ("--resume", run) if run.exists() else ("--config", config, "--out", run)
        process = subprocess.Popen(
            command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        kills += kill_at(process, run / "results.jsonl", share * total)
        content = (run / "results.jsonl").read_bytes()
        assert content.startswith(acknowledged)  # nothing that was written is lost or asked again
        acknowledged = content[: content.rfind(b"\n") + 1]
    assert kills == KILLS
    subprocess.run(command("--resume", run), check=True, capture_output=True)
    for name in ("summary.json", "tables.md", "results.jsonl"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    keys = [(row["set"], row["id"]) for row in map(json.loads, (run / "results.jsonl").read_text().splitlines())]
    assert len(keys) == len(set(keys)) == 150
