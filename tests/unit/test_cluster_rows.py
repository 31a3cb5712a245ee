"""Samples as rows of a cluster's queue: fields, weights, and where rows go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factagent.distributed.rows import PER_TOKEN, lay_out, rows_of, share_of_group
from factagent.train.aggregation import Aggregation, token_weights
from factagent.train.samples import Sample, mini_batches

torch = pytest.importorskip("torch")


def sample(group: int, member: int, prompt: int, mask: list[int], *, advantage: float = 1.0) -> Sample:
    """A row whose response has these loss tokens; each run of loss tokens is a step."""
    loss = np.array(mask, bool)
    starts = np.flatnonzero(np.diff([0, *mask]) == 1)
    steps = np.where(loss, np.searchsorted(starts, np.arange(len(mask)), side="right") - 1, -1)
    return Sample(
        np.arange(1, prompt + 1),
        np.arange(100, 100 + len(mask)),
        loss,
        np.full(len(mask), -0.5),
        np.full(len(mask), advantage),
        group,
        steps,
        member=member,
    )


def test_a_row_holds_the_sample_under_the_names_that_verl_reads() -> None:
    rows = rows_of([sample(0, 2, 3, [1, 1, 0, 0, 1], advantage=-0.25)], step=7, position=4, rewards=[0.0, 0.0, 0.5])
    (row,) = rows
    assert row.key == "step7q4_2_0"
    assert row.fields["prompts"].tolist() == [1, 2, 3]
    assert row.fields["input_ids"].tolist() == [1, 2, 3, 100, 101, 102, 103, 104]
    assert row.fields["position_ids"].tolist() == list(range(8))
    assert row.fields["response_mask"].tolist() == row.fields["loss_mask"].tolist() == [1, 1, 0, 0, 1]
    assert row.fields["advantages"].tolist() == [-0.25, -0.25, 0, 0, -0.25]
    assert row.fields["rollout_log_probs"].tolist() == [-0.5, -0.5, 0, 0, -0.5]
    assert row.fields["step_ids"].tolist() == [0, 0, -1, -1, 1]
    assert row.fields["token_weights"].tolist() == [0.25, 0.25, 0, 0, 0.5]
    assert row.fields["rm_scores"].tolist() == [0, 0, 0, 0, 0.5]
    assert (row.tags["prompt_len"], row.tags["response_len"], row.tags["seq_len"]) == (3, 5, 8)


def test_keys_count_the_rows_of_each_member_and_are_unique() -> None:
    rows = rows_of([sample(0, 0, 1, [1]), sample(0, 0, 2, [1]), sample(0, 1, 1, [1])], 1, 0, [0.0, 0.0])
    assert [row.key for row in rows] == ["step1q0_0_0", "step1q0_0_1", "step1q0_1_0"]


@pytest.mark.parametrize("aggregation", ["step-mean", "token-mean", "trajectory-mean"])
def test_group_weights_by_their_share_are_those_of_the_batch(aggregation: Aggregation) -> None:
    groups = [[sample(0, 0, 2, [1, 1]), sample(0, 1, 2, [1])], [sample(1, 0, 2, [1, 0, 1, 1]), sample(1, 1, 1, [1])]]
    groups.append([sample(2, 0, 1, [1] * 9)])
    whole = token_weights([one for group in groups for one in group], aggregation)
    rows = [row for number, group in enumerate(groups) for row in rows_of(group, 1, number, [0.0, 0.0], aggregation)]
    shares = share_of_group(aggregation, [row.tags for row in rows])
    for expected, row in zip(whole, rows, strict=True):
        found = row.fields["token_weights"].numpy() * shares[row.tags["group"]]
        assert found == pytest.approx(expected, rel=1e-6)


batches = st.lists(st.lists(st.integers(2, 50), min_size=1, max_size=6), min_size=1, max_size=8)


@given(batches, st.integers(1, 4), st.integers(1, 5))
def test_a_layout_holds_each_row_once_in_equal_shares(lengths_G: list[list[int]], ranks: int, updates: int) -> None:
    groups = [group for group, lengths in enumerate(lengths_G) for _ in lengths]
    lengths = [length for group in lengths_G for length in group]
    layout = lay_out(groups, lengths, ranks, updates)
    assert sorted(row for row in layout.order if row is not None) == list(range(len(lengths)))
    assert layout.parts == min(updates, len(lengths_G))
    # Every rank reads the same number of rows in every mini-batch, one mini-batch after the other.
    share = len(layout.order) // ranks
    assert share * ranks == len(layout.order) == layout.part_rows * layout.parts
    for rank in range(ranks):
        assert layout.part[rank * share : (rank + 1) * share] == sorted(layout.part[:share])


@given(batches, st.integers(1, 4), st.integers(1, 5))
def test_mini_batches_are_those_of_the_local_learner(lengths_G: list[list[int]], ranks: int, updates: int) -> None:
    rows = [sample(group, 0, length, [1]) for group, lengths in enumerate(lengths_G) for length in lengths]
    layout = lay_out([row.group for row in rows], [row.length for row in rows], ranks, updates)
    found: list[set[int]] = [set() for _ in range(layout.parts)]
    for row, part in zip(layout.order, layout.part, strict=True):
        if row is not None:
            found[part].add(row)
    assert found == [set(part) for part in mini_batches(rows, updates)]


@given(batches, st.integers(1, 4))
def test_no_row_is_added_that_equal_shares_do_not_need(lengths_G: list[list[int]], ranks: int) -> None:
    lengths = [length for group in lengths_G for length in group]
    layout = lay_out([0] * len(lengths), lengths, ranks, 1)
    assert len(layout.order) - len(lengths) < ranks


def test_ranks_get_rows_of_like_total_length() -> None:
    layout = lay_out([0] * 4, [100, 10, 90, 20], 2, 1)
    assert [{layout.order[0], layout.order[1]}, {layout.order[2], layout.order[3]}] == [{0, 1}, {2, 3}]


def test_our_fields_are_a_token_each() -> None:
    (row,) = rows_of([sample(0, 0, 2, [1, 0, 1])], 1, 0, [0.0])
    assert {len(row.fields[name]) for name in PER_TOKEN} == {3}
