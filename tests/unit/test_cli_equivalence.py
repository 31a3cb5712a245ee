"""`factagent equivalence`: rows in, verdicts out, malformed rows refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from factagent.cli.app import main


def rows(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_exact_orientations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows(tmp_path, json.dumps({"a": ["Anna", "defeated", "Peter"], "b": ["peter", "defeated", "anna"]}))
    assert main(["equivalence", path, "--encoder", "exact"]) == 0
    expected = {"equivalent": True, "similarity": 1.0, "configuration": "swapped", "reason": "exact"}
    assert json.loads(capsys.readouterr().out) == expected
    assert main(["equivalence", path, "--encoder", "exact", "--orientation", "strict"]) == 0
    assert json.loads(capsys.readouterr().out)["equivalent"] is False


def test_malformed_row_follows_the_good_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = json.dumps({"a": ["A", "is", "B"], "b": ["A", "is", "B"]})
    path = rows(tmp_path, good, '{"a": ["A", "is"], "b": ["A", "is", "B"]}')
    assert main(["equivalence", path, "--encoder", "exact"]) == 65
    captured = capsys.readouterr()
    assert json.loads(captured.out)["equivalent"] is True
    assert "pairs.jsonl:2: field 'a'" in captured.err


def test_uncalibrated_encoder_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows(tmp_path, json.dumps({"a": ["A", "is", "B"], "b": ["A", "is", "B"]}))
    assert main(["equivalence", path, "--encoder", "no/such-model"]) == 2
    assert "factagent calibrate" in capsys.readouterr().err
