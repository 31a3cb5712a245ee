"""Of what an objective is the mean: hand vectors, laws, and independence of the cut into micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factagent.train.aggregation import Aggregation, token_weights
from factagent.train.samples import Sample, micro_batches, step_weights

AGGREGATIONS = get_args(Aggregation)


def row(mask: list[int], group: int = 0, member: int = 0, weight: float = 1.0) -> Sample:
    """A response with these loss tokens; each run of them is a step."""
    loss = np.array(mask, bool)
    runs = np.cumsum(np.diff([0, *mask]) == 1) - 1
    length = len(mask)
    return Sample(
        np.array([1]),
        np.arange(length) + 10,
        loss,
        np.full(length, -1.0),
        np.arange(length) - 1.5,
        group,
        np.where(loss, runs, -1),
        weight,
        member,
    )


# Group 0: member 0 has steps of 2 and 4 tokens in two rows, member 1 one of 1; group 1: member 0 two in one row.
ROWS = [row([1, 1]), row([1, 1, 1, 1]), row([1], 0, 1), row([1, 0, 1, 1], 1)]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("step-mean", [[1 / 12] * 2, [1 / 24] * 4, [1 / 6], [1 / 4, 0, 1 / 8, 1 / 8]]),
        ("token-mean", [[1 / 10] * 2, [1 / 10] * 4, [1 / 10], [1 / 10, 0, 1 / 10, 1 / 10]]),
        ("trajectory-mean", [[1 / 24] * 2, [1 / 24] * 4, [1 / 4], [1 / 6, 0, 1 / 6, 1 / 6]]),
    ],
)
def test_weights_by_hand(aggregation: Aggregation, expected: list[list[float]]) -> None:
    found = token_weights(ROWS, aggregation)
    assert [weights.tolist() for weights in found] == [pytest.approx(weights) for weights in expected]


def test_the_default_is_the_step_mean_bit_for_bit() -> None:
    for found, expected in zip(token_weights(ROWS), step_weights(ROWS), strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_weight_of_a_row_changes_no_denominator(aggregation: Aggregation) -> None:
    half = [replace(ROWS[0], weight=0.5), *ROWS[1:]]
    plain = token_weights(ROWS, aggregation)
    for index, (found, expected) in enumerate(zip(token_weights(half, aggregation), plain, strict=True)):
        assert found.tolist() == pytest.approx((expected / 2 if index == 0 else expected).tolist())


def test_members_of_two_groups_are_two_trajectories() -> None:
    rows = [row([1, 1], 0, 3), row([1, 1, 1, 1], 1, 3)]
    assert [w.tolist() for w in token_weights(rows, "trajectory-mean")] == [[1 / 4] * 2, [1 / 8] * 4]


masks = st.lists(st.integers(0, 1), min_size=1, max_size=9).filter(any)
batches = st.lists(st.builds(row, masks, st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12)


@given(batches, st.sampled_from(AGGREGATIONS))
def test_weights_sum_to_one_and_fall_on_loss_tokens_alone(rows: list[Sample], aggregation: Aggregation) -> None:
    weights = token_weights(rows, aggregation)
    assert sum(float(each.sum()) for each in weights) == pytest.approx(1.0)
    for one, each in zip(rows, weights, strict=True):
        assert np.array_equal(each > 0, one.loss_mask)


@given(batches, st.integers(1, 60))
def test_each_aggregation_is_the_mean_that_it_names_however_the_batch_is_cut(rows: list[Sample], budget: int) -> None:
    def mean(parts: list[list[float]]) -> float:
        return float(np.mean([np.mean(part) for part in parts]))

    def tokens(keep: list[Sample]) -> list[float]:
        return [float(value) for one in keep for value in one.advantages[one.loss_mask]]

    groups = sorted({one.group for one in rows})
    steps, trajectories = [], []
    for group in groups:
        own = [one for one in rows if one.group == group]
        spans = [one.advantages[one.step_ids == step] for one in own for step in range(int(one.step_ids.max()) + 1)]
        steps.append([float(span.mean()) for span in spans])
        members = sorted({one.member for one in own})
        trajectories.append([float(np.mean(tokens([one for one in own if one.member == m]))) for m in members])
    expected = {"step-mean": mean(steps), "token-mean": mean([tokens(rows)]), "trajectory-mean": mean(trajectories)}
    for aggregation in AGGREGATIONS:
        weights = token_weights(rows, aggregation)
        total = 0.0
        for indices in micro_batches(rows, budget):
            total += sum(float((weights[i] * rows[i].advantages)[rows[i].loss_mask].sum()) for i in indices)
        assert total == pytest.approx(expected[aggregation], abs=1e-12)
