from __future__ import annotations

import numpy as np
import pytest

from factagent.credit import advantages


def test_grpo_vector_of_the_specification() -> None:
    advantage = advantages.outcome_advantages(np.array([1.0, 0.0, 0.0, 0.0, 1.0]))
    assert advantage.tolist() == pytest.approx([1.0954, -0.7303, -0.7303, -0.7303, 1.0954], abs=5e-5)


def test_the_small_constant_stands_in_the_denominator() -> None:
    advantage = advantages.outcome_advantages(np.array([1e-6, 0.0]))
    std = 1e-6 / np.sqrt(2)
    assert advantage[0] == pytest.approx(0.5e-6 / (std + 1e-6))


@pytest.mark.parametrize("outcomes", [[], [0.7], [0.0] * 6, [1.0] * 6, [0.1 + 0.2] * 7])
def test_no_spread_gives_exactly_zero(outcomes: list[float]) -> None:
    assert advantages.outcome_advantages(np.array(outcomes)).tolist() == [0.0] * len(outcomes)


def test_total_is_outcome_plus_weighted_process() -> None:
    assert advantages.total_advantages(1.5, np.array([0.2, -0.4]), 0.5).tolist() == [1.6, 1.3]


def test_zero_weight_is_outcome_only_bit_for_bit() -> None:
    outcome = 0.1 + 0.2
    assert advantages.total_advantages(outcome, np.array([np.inf, -1.0]), 0.0).tolist() == [outcome, outcome]


def test_divisor_is_the_unbiased_deviation_of_the_batch() -> None:
    assert advantages.process_divisor(np.array([1.0, 0.0, 0.0, 0.0, 1.0])) == pytest.approx(0.5477226 + 1e-6)


@pytest.mark.parametrize("process", [[], [0.3], [0.2, 0.2]])
def test_divisor_without_spread_leaves_the_process_alone(process: list[float]) -> None:
    assert advantages.process_divisor(np.array(process)) == 1.0
