from __future__ import annotations

import math

import numpy as np
import pytest

from factagent.evaluation.intervals import bootstrap_mean, paired_difference, wilson_interval


def test_wilson_known_values() -> None:
    # p = 0.5, n = 100, z = 1.959964: (0.5 +- 0.0962) around the same centre.
    assert wilson_interval(50, 100) == pytest.approx((0.403832, 0.596168), abs=1e-6)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(10, 10) == pytest.approx((0.722467, 1.0), abs=1e-6)
    assert wilson_interval(1, 1, confidence=0.5)[0] < 1


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0), (math.nan, 5)])
def test_wilson_refuses_impossible_counts(successes: float, trials: int) -> None:
    with pytest.raises(ValueError, match="trials"):
        wilson_interval(successes, trials)


def test_wilson_holds_its_share_in_every_case() -> None:
    for trials in (1, 2, 3, 7, 300, 12_576):
        for successes in {0, 1, trials // 2, trials - 1, trials}:
            low, high = wilson_interval(successes, trials)
            assert 0 <= low <= successes / trials <= high <= 1
            assert low < high


def test_bootstrap_is_repeatable_and_seeded() -> None:
    values = list(np.random.default_rng(2).random(50))
    assert bootstrap_mean(values, 3) == bootstrap_mean(values, 3)
    assert bootstrap_mean(values, 3) != bootstrap_mean(values, 4)


def test_bootstrap_agrees_with_the_normal_theory() -> None:
    values = np.random.default_rng(0).normal(2.0, 3.0, 4000)
    mean, low, high = bootstrap_mean(values.tolist(), 1)
    half = 1.959964 * values.std() / math.sqrt(len(values))
    assert mean == pytest.approx(values.mean())
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.1 * half)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(7)
    inside = 0
    for trial in range(300):
        _, low, high = bootstrap_mean((draw.random(200) < 0.4).astype(float).tolist(), trial, resamples=300)
        inside += low <= 0.4 <= high
    assert 0.90 <= inside / 300 <= 0.99


def test_bootstrap_result_does_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    values = list(np.random.default_rng(2).random(50))
    whole = bootstrap_mean(values, 9)
    monkeypatch.setattr("factagent.evaluation.intervals._BLOCK", 333)
    assert bootstrap_mean(values, 9) == whole


def test_confidence_widens() -> None:
    values = list(np.random.default_rng(2).random(50))
    narrow, wide = bootstrap_mean(values, 0, confidence=0.5), bootstrap_mean(values, 0, confidence=0.99)
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high


def test_equal_values_have_no_width() -> None:
    assert bootstrap_mean([1.0, 1.0], 0) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 1.0]])
def test_bootstrap_refuses_what_has_no_mean(values: list[float]) -> None:
    with pytest.raises(ValueError, match="needs"):
        bootstrap_mean(values, 0)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="resamples=0"):
        bootstrap_mean([1.0], 0, resamples=0)
    for confidence in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="confidence"):
            bootstrap_mean([1.0], 0, confidence=confidence)


def test_paired_difference_uses_the_pairs() -> None:
    draw = np.random.default_rng(5)
    before = draw.random(300)
    after = before + 0.1
    mean, low, high = paired_difference(before.tolist(), after.tolist(), 0)
    assert (mean, low, high) == pytest.approx((0.1, 0.1, 0.1))
    shuffled = paired_difference(before.tolist(), draw.permutation(after).tolist(), 0)
    assert shuffled.high - shuffled.low > 0.05
    with pytest.raises(ValueError, match="share their questions"):
        paired_difference([1.0], [1.0, 0.0], 0)
