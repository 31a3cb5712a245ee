"""`factagent eval` of a served model: the same answers, scores and tokens as of the model itself, and resumable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from factagent.cli import main
from factagent.data.world.build import build_world
from factagent.data.world.config import WorldConfig

pytest.importorskip("torch")


def rows(run: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, (run / "results.jsonl").read_text().splitlines())}


def test_an_endpoint_is_scored_as_the_model_behind_it(
    chat_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    world, here, there = tmp_path / "world", tmp_path / "here", tmp_path / "there"
    build_world(WorldConfig(entities=600, train=0, dev=6, test=0, hops=(1,)), world)
    shared = ["eval", "--corpus", str(world / "corpus.jsonl"), "--questions", str(world / "qa.dev.jsonl"), "--json"]
    shared += ["--set", "rollout.max_new_tokens=60", "--set", "threads=1", "--set", "concurrency=3"]
    assert main([*shared, "--model", "tiny", "--set", "model.device=cpu", "--out", str(here)]) == 0
    local = json.loads(capsys.readouterr().out)
    assert main([*shared, "--model", chat_server.url, "--prompt", "factagent-terse", "--out", str(there)]) == 0
    assert json.loads(capsys.readouterr().out) == local
    assert rows(there).keys() == rows(here).keys()
    for name, row in rows(here).items():
        assert {key: row[key] for key in row if key != "trajectory"} == {
            key: rows(there)[name][key] for key in row if key != "trajectory"
        }
    assert local["scored"] == 6
    assert local["sets"]["qa.dev"]["response_tokens"] > 0
    # Killed after two answers, at another address of the server: the same report.
    report = (there / "summary.json").read_bytes()
    lines = (there / "results.jsonl").read_bytes().splitlines(keepends=True)
    (there / "results.jsonl").write_bytes(b"".join(lines[:2]))
    (there / "summary.json").unlink()
    moved = chat_server.url.replace("127.0.0.1", "localhost")
    assert main(["eval", "--resume", str(there), "--model", moved, "--json"]) == 0
    assert (there / "summary.json").read_bytes() == report


def test_a_dead_endpoint_is_no_wrong_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    world, out = tmp_path / "world", tmp_path / "out"
    build_world(WorldConfig(entities=600, train=0, dev=4, test=0, hops=(1,)), world)
    arguments = ["eval", "--corpus", str(world / "corpus.jsonl"), "--questions", str(world / "qa.dev.jsonl")]
    arguments += ["--model", "http://127.0.0.1:9/v1", "--model-name", "m", "--set", "model.endpoint.tries=1"]
    assert main([*arguments, "--out", str(out)]) == 75
    assert "4 of 4 questions failed (" in capsys.readouterr().err
    assert {row["stop_reason"] for row in rows(out).values()} == {"policy_failed"}
    assert all("127.0.0.1:9" in row["error"] for row in rows(out).values())
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["scored"], summary["averages"]) == (0, {})
