"""Encoders: deduplication, cache, thresholds, missing models."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from factagent.credit.encoders import CachedEncoder, ExactEncoder, load_encoder
from factagent.credit.thresholds import Thresholds, stored_thresholds
from factagent.errors import DataError, MissingExtraError, UsageError
from factagent.sentence_models import valid_text


def counting_encoder(capacity: int = 100) -> tuple[CachedEncoder, list[list[str]]]:
    calls: list[list[str]] = []

    def embed(texts: list[str]) -> NDArray[np.float32]:
        calls.append(texts)
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)

    return CachedEncoder("counting", embed, Thresholds(0.9, 0.8, None), capacity), calls


def test_texts_are_encoded_once() -> None:
    encoder, calls = counting_encoder()
    rows = encoder.encode(["a", "bb", "a"])
    assert calls == [["a", "bb"]]
    assert rows[0].tolist() == rows[2].tolist()
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0)
    encoder.encode(["bb", "ccc"])
    assert calls[1:] == [["ccc"]]
    assert (encoder.counts.asked, encoder.counts.encoded) == (5, 3)


def test_cache_forgets_the_least_recently_used() -> None:
    encoder, calls = counting_encoder(capacity=2)
    for text in ("a", "bb", "a", "ccc", "a", "bb"):
        encoder.encode([text])
    assert calls == [["a"], ["bb"], ["ccc"], ["bb"]]


def test_a_call_larger_than_the_cache_is_still_right() -> None:
    encoder, _ = counting_encoder(capacity=1)
    assert encoder.encode(["a", "bb", "ccc"]).shape == (3, 2)


def test_exact_encoder_sees_normalised_text() -> None:
    rows = ExactEncoder().encode(["Anna, left!", "anna LEFT", "anna right", "\ud800"])
    assert float(rows[0] @ rows[1]) == 1.0
    assert abs(float(rows[0] @ rows[2])) < 0.5
    assert ExactEncoder().encode([]).shape[0] == 0


def test_uncalibrated_encoder_is_refused_with_advice() -> None:
    with pytest.raises(UsageError, match="factagent calibrate --encoder some/model"):
        load_encoder("some/model")


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"factagent\[minilm\]"):
        load_encoder("minilm")


def test_papers_threshold() -> None:
    assert stored_thresholds("intfloat/e5-base-v2") == stored_thresholds("e5-base-v2")
    thresholds = stored_thresholds("e5-base-v2")
    assert thresholds is not None
    assert (thresholds.similarity, thresholds.entity) == (0.95, None)


def test_own_thresholds_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"encoders": {"mine": {"similarity_threshold": 0.5, "relation_threshold": 0.6}}}))
    monkeypatch.setenv("FACTAGENT_THRESHOLDS", str(own))
    assert stored_thresholds("mine") == Thresholds(0.5, 0.6, None)
    assert stored_thresholds("e5-base-v2") is not None
    own.write_text('{"encoders": {"mine": {"similarity_threshold": "x"}}}')
    with pytest.raises(DataError, match="mine"):
        stored_thresholds("mine")


def test_importing_credit_loads_no_torch() -> None:
    code = "import sys, factagent.credit.clustering, factagent.credit.calibration; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_surrogates_are_replaced_before_the_tokenizer() -> None:
    assert valid_text("a\ud800b") == "a?b"
