from __future__ import annotations

import numpy as np
import pytest

from factagent.credit import utility

PRESENCE = np.array([[True, False], [True, False], [True, True], [False, False]])
SUCCESS = np.array([1.0, 1.0, 0.0, 0.0])


def relative(presence: np.ndarray, success: np.ndarray, prior: str = "symmetric") -> np.ndarray:
    return utility.relative_utility(utility.count_group(presence, success), prior, 0.5)


def test_group_counts() -> None:
    counts = utility.count_group(PRESENCE, SUCCESS)
    assert counts.support.tolist() == [3.0, 1.0]
    assert counts.successes.tolist() == [2.0, 0.0]
    assert (counts.size, float(counts.baseline)) == (4, 0.5)


def test_worked_numbers_of_the_specification() -> None:
    counts = utility.count_group(PRESENCE, SUCCESS)
    a, b = utility.beta_prior("symmetric", 0.5, counts.baseline)
    assert utility.posterior_mean(counts.successes, counts.support, a, b)[0] == 0.625
    assert relative(PRESENCE, SUCCESS)[0] == 0.125


@pytest.mark.parametrize(
    ("members", "success", "expected"), [(1, 0.0, 0.25), (6, 0.0, 0.0714), (1, 1.0, -0.25), (6, 1.0, -0.0714)]
)
def test_symmetric_prior_is_biased_where_outcomes_agree_and_centred_is_not(
    members: int, success: float, expected: float
) -> None:
    presence = (np.arange(6) < members)[:, None]
    outcomes = np.full(6, success)
    assert relative(presence, outcomes)[0] == pytest.approx(expected, abs=5e-5)
    assert relative(presence, outcomes, "centred")[0] == 0.0


def test_leave_one_out_counts_only_the_others() -> None:
    counts = utility.count_others(PRESENCE, SUCCESS)
    assert counts.support.tolist() == [[2.0, 1.0], [2.0, 1.0], [2.0, 0.0], [3.0, 1.0]]
    assert counts.successes.tolist() == [[1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 0.0]]
    assert counts.size == 3
    assert counts.baseline[:, 0].tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])


def test_leave_one_out_utility_is_that_of_the_group_without_the_member() -> None:
    value = utility.relative_utility(utility.count_others(PRESENCE, SUCCESS), "symmetric", 0.5)
    for member in range(4):
        rest = np.arange(4) != member
        assert value[member] == pytest.approx(relative(PRESENCE[rest], SUCCESS[rest]))


def test_soft_success_makes_fractional_counts() -> None:
    counts = utility.count_group(PRESENCE, np.array([0.8, 0.4, 0.2, 0.0]))
    assert counts.successes.tolist() == pytest.approx([1.4, 0.2])
    assert float(counts.baseline) == pytest.approx(0.35)


def test_contrast_compares_with_the_members_that_miss_the_cluster() -> None:
    counts = utility.count_group(PRESENCE, SUCCESS)
    # centred prior with m = .5 adds (.5, .5): present (2+.5)/(3+1), absent (0+.5)/(1+1)
    assert utility.contrast_utility(counts, 0.5)[0] == pytest.approx(0.625 - 0.25)


def test_contrast_without_an_absent_member_compares_with_the_baseline() -> None:
    counts = utility.count_group(np.ones((4, 1), dtype=bool), SUCCESS)
    assert utility.contrast_utility(counts, 0.5)[0] == pytest.approx(0.0)


def test_consensus_pays_above_its_centre_and_costs_below() -> None:
    counts = utility.count_group(PRESENCE, SUCCESS)
    assert utility.consensus_bonus(counts, 0.1, 0.5).tolist() == pytest.approx([0.025, -0.025])


def test_utility_adds_consensus_to_the_chosen_rule() -> None:
    counts = utility.count_group(PRESENCE, SUCCESS)
    value = utility.utility(counts, kind="relative", prior="centred", strength=0.5, consensus=0.1, centre=0.0)
    assert value.tolist() == pytest.approx([0.125 + 0.075, -0.25 + 0.025])


@pytest.mark.parametrize("kind", ["relative", "contrast"])
def test_a_lone_member_has_no_others_to_learn_from(kind: str) -> None:
    counts = utility.count_others(np.ones((1, 2), dtype=bool), np.ones(1))
    value = utility.utility(counts, kind=kind, prior="symmetric", strength=0.5, consensus=0.3)
    assert value.tolist() == [[0.0, 0.0]]


def test_an_empty_group_has_baseline_zero_and_no_clusters() -> None:
    counts = utility.count_group(np.zeros((0, 0), dtype=bool), np.zeros(0))
    assert float(counts.baseline) == 0.0
    assert counts.support.shape == (0,)


def test_utility_none_is_zero_for_every_cluster_with_or_without_consensus() -> None:
    counts = utility.count_group(PRESENCE, SUCCESS)
    value = utility.utility(counts, kind="none", prior="symmetric", strength=0.5, consensus=0.3)
    assert value.tolist() == [0.0, 0.0]


def test_interval_matches_the_beta_distribution() -> None:
    from scipy.stats import beta

    counts = utility.count_group(PRESENCE, SUCCESS)
    low, high = utility.credible_interval(counts, *utility.beta_prior("symmetric", 0.5, counts.baseline))
    assert (low[0], high[0]) == pytest.approx(beta.interval(0.95, 2.5, 1.5))
    assert (low[1], high[1]) == pytest.approx(beta.interval(0.95, 0.5, 1.5))


@pytest.mark.parametrize("success", [0.0, 1.0])
def test_interval_of_a_degenerate_posterior_is_a_point(success: float) -> None:
    counts = utility.count_group(np.ones((3, 1), dtype=bool), np.full(3, success))
    low, high = utility.credible_interval(counts, *utility.beta_prior("centred", 0.5, counts.baseline))
    assert (low[0], high[0]) == (success, success)


def test_sum_does_not_depend_on_the_order_of_members() -> None:
    values = np.array([0.1, 0.2, 0.3, 1e16, -1e16])[:, None]
    sums = {float(utility.ordered_sum(values[order])[0]) for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1])}
    assert len(sums) == 1
