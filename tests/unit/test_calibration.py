"""The labelled suite and the choice of thresholds."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from factagent.credit.calibration import Scores, load_pairs
from factagent.errors import DataError


def test_the_suite_covers_the_scenarios() -> None:
    pairs = load_pairs()
    sizes = Counter(pair.scenario for pair in pairs)
    assert len(pairs) >= 400
    assert len(sizes) == 19
    assert min(sizes.values()) >= 20
    for scenario in sizes:
        assert {pair.equivalent for pair in pairs if pair.scenario == scenario} == {True, False}


def test_the_halves_are_disjoint_and_balanced() -> None:
    pairs = load_pairs()
    halves = Counter(pair.half for pair in pairs)
    assert abs(halves["choose"] - halves["measure"]) <= 2 * 19
    assert len({(pair.a, pair.b) for pair in pairs}) == len(pairs)


def test_scores() -> None:
    scores = Scores(6, 2, 4, 8)
    assert (scores.precision, scores.recall) == (0.75, 0.6)
    assert scores.f1 == pytest.approx(2 / 3)
    assert Scores(0, 0, 3, 1).precision == 1.0


def test_malformed_pair_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"scenario": "x", "equivalent": "yes", "a": ["a","b","c"], "b": ["a","b","c"]}\n')
    with pytest.raises(DataError, match=r"pairs.jsonl:1: field 'equivalent'"):
        load_pairs(path)


def test_shipped_thresholds_reach_the_bar() -> None:
    stored = json.loads((resources.files("factagent.credit") / "encoder_thresholds.json").read_text())
    entry = stored["encoders"]["minilm"]
    assert entry["orientation"] == "strict"
    assert entry["measuring_half"]["precision"] >= 0.97
    assert entry["measuring_half"]["recall"] >= 0.6
    assert len(entry["model"]["sha256"]) == 64
