"""EM recomputed on real runs of Search-R1 checkpoints equals the score recorded beside each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from factagent.rewards import exact_match
from factagent.rows import read_rows


@pytest.mark.parametrize(("name", "runs", "right"), [("nq", 1_000, 390), ("bamboogle", 125, 43)])
def test_exact_match_reproduces_every_recorded_score(shared_data: Path, name: str, runs: int, right: int) -> None:
    scores = []
    for row in read_rows(shared_data / "trajectories" / f"search_r1.{name}.jsonl.gz"):
        scores.append(exact_match(row.text("pred", ""), row.texts("golden_answers")))
        assert scores[-1] == row.row("metric_score").number("em"), row.text("id")
    assert (len(scores), sum(scores)) == (runs, right)
