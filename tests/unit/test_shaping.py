from __future__ import annotations

import numpy as np
import pytest

from factagent.credit import shaping
from factagent.types import Action, Answer, Assert, Invalid, Search, Triple

FACT = Triple("a", "is", "b")


def test_first_steps_keep_the_first_meeting_only() -> None:
    assert shaping.first_steps([(1, 0), (3, 0), (3, 2)], 4).tolist() == [1, -1, 3, -1]


def test_potential_is_the_tanh_of_the_sum_over_distinct_clusters() -> None:
    potential = shaping.potentials(np.array([1, -1, 3, 3]), np.array([0.125, 9.0, 0.2, -0.4]), 5)
    first, both = np.tanh(0.125), np.tanh(0.125 + 0.2 - 0.4)
    assert potential.tolist() == pytest.approx([0.0, first, first, both, both])


def test_worked_shaping_and_redistribution_of_the_specification() -> None:
    shape = shaping.shaping(shaping.potentials(np.array([1]), np.array([0.125]), 3))
    assert shape[1] == pytest.approx(0.12435, abs=5e-6)
    process = shaping.redistribute(shape, np.array([-1, 0, -1]), 0.2)
    assert process.tolist() == pytest.approx([0.02487, 0.09948, 0.0], abs=5e-6)


def test_potential_stays_below_one_where_tanh_rounds_to_one() -> None:
    potential = shaping.potentials(np.arange(60), np.full(60, 0.9), 60)
    assert potential.max() < 1.0
    assert shaping.potentials(np.arange(60), np.full(60, -0.9), 60).min() > -1.0


def test_shaping_is_exactly_zero_where_nothing_new_was_met() -> None:
    shape = shaping.shaping(shaping.potentials(np.array([1, 1, 4]), np.array([0.1, 0.2, 0.3]), 6))
    assert np.flatnonzero(shape).tolist() == [1, 4]


def test_source_is_the_latest_search_before_the_assert() -> None:
    steps: list[Action] = [
        Assert((FACT,)), Search("x"), Invalid("no_json"), Assert((FACT,)), Search("y"), Assert((FACT,)), Answer("b"),
    ]  # fmt: skip
    assert shaping.source_steps(steps).tolist() == [-1, -1, -1, 1, -1, 4, -1]


def test_several_asserts_after_one_search_each_pay_it() -> None:
    process = shaping.redistribute(np.array([0.0, 0.5, 0.3]), np.array([-1, 0, 0]), 0.2)
    assert process.tolist() == pytest.approx([0.16, 0.4, 0.24])


def test_an_assert_without_a_search_keeps_its_whole_shaping() -> None:
    assert shaping.redistribute(np.array([0.4, 0.0]), np.array([-1, -1]), 0.2).tolist() == [0.4, 0.0]


@pytest.mark.parametrize(("attribution", "expected"), [(0.0, [0.0, 0.7]), (1.0, [0.7, 0.0])])
def test_extreme_attributions_pay_one_side_only(attribution: float, expected: list[float]) -> None:
    assert shaping.redistribute(np.array([0.0, 0.7]), np.array([-1, 0]), attribution).tolist() == expected


def test_reward_to_go_sums_what_is_still_to_come() -> None:
    assert shaping.reward_to_go(np.array([1.0, 2.0, -4.0])).tolist() == [-1.0, -2.0, -4.0]


def test_a_trajectory_without_steps_has_empty_arrays() -> None:
    potential = shaping.potentials(np.array([-1, -1]), np.array([0.1, 0.2]), 0)
    assert potential.shape == shaping.shaping(potential).shape == (0,)
