"""Generalised advantage estimation against a naive loop, by its laws, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factagent.train.gae import advantages_and_returns, explained_variance, split_at, token_rewards, whitened

numbers = st.floats(-5.0, 5.0)
shares = st.floats(0.0, 1.0)
chains = st.lists(st.lists(st.tuples(numbers, numbers), max_size=9), max_size=5)


def rows_of(chains, column):
    return [np.array([pair[column] for pair in chain], dtype=np.float64) for chain in chains]


def naive(rewards, values, gamma, lam):
    """The definition: A_t = sum_k (gamma lambda)^k delta_{t+k}, each delta from its own rewards and values."""
    length = len(rewards)
    following = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * following[t] - values[t] for t in range(length)]
    return [sum((gamma * lam) ** k * deltas[t + k] for k in range(length - t)) for t in range(length)]


@given(chains, shares, shares)
def test_it_is_the_discounted_sum_of_one_step_errors(chains, gamma, lam):
    rewards, values = rows_of(chains, 0), rows_of(chains, 1)
    advantages, returns = advantages_and_returns(rewards, values, gamma, lam)
    assert [len(row) for row in advantages] == [len(chain) for chain in chains]
    for found, target, reward_T, value_T in zip(advantages, returns, rewards, values, strict=True):
        assert found == pytest.approx(np.array(naive(reward_T, value_T, gamma, lam)), abs=1e-9)
        assert target == pytest.approx(found + value_T, abs=0)


@given(chains)
def test_with_the_defaults_it_is_the_sum_of_what_follows_minus_the_value(chains):
    rewards, values = rows_of(chains, 0), rows_of(chains, 1)
    advantages, returns = advantages_and_returns(rewards, values)
    for found, target, reward_T, value_T in zip(advantages, returns, rewards, values, strict=True):
        to_go = np.cumsum(reward_T[::-1])[::-1]
        assert target == pytest.approx(to_go, abs=1e-9)
        assert found == pytest.approx(to_go - value_T, abs=1e-9)


@given(chains, shares, shares)
def test_company_changes_no_bit(chains, gamma, lam):
    rewards, values = rows_of(chains, 0), rows_of(chains, 1)
    together, _ = advantages_and_returns(rewards, values, gamma, lam)
    for index in range(len(chains)):
        ((alone,), _) = advantages_and_returns([rewards[index]], [values[index]], gamma, lam)
        assert np.array_equal(together[index], alone)


@given(st.lists(st.lists(numbers, max_size=7).map(lambda row: np.array(row, dtype=np.float64)), max_size=5))
def test_whitening_centres_scales_and_keeps_the_order(advantages):
    white = whitened(advantages)
    assert [row.shape for row in white] == [row.shape for row in advantages]
    flat, before = (np.concatenate([np.zeros(0), *rows]) for rows in (white, advantages))
    if len(before) < 2 or before.min() == before.max():
        assert not flat.any()
        return
    assert np.all(np.isfinite(flat))
    assert flat.mean() == pytest.approx(0.0, abs=1e-6)
    if before.std() > 1e-2:
        assert flat.std(ddof=1) == pytest.approx(1.0, abs=1e-3)
    assert np.all(np.diff(flat[np.argsort(before, kind="stable")]) >= -1e-12)


@given(st.lists(numbers, min_size=2, max_size=8), st.floats(0.5, 2.0), numbers)
def test_whitening_does_not_see_shift_and_scale(values, scale, shift):
    row = np.array(values)
    if row.std() < 1e-1:
        return
    assert whitened([row * scale + shift])[0] == pytest.approx(whitened([row])[0], abs=1e-4)


def test_a_chain_by_hand():
    """Three tokens, reward 1 at the last, values .2, .4, .9, gamma .9, lambda .5."""
    (found,), (target,) = advantages_and_returns([np.array([0.0, 0.0, 1.0])], [np.array([0.2, 0.4, 0.9])], 0.9, 0.5)
    last = 1.0 - 0.9
    middle = 0.9 * 0.9 - 0.4 + 0.45 * last
    first = 0.9 * 0.4 - 0.2 + 0.45 * middle
    assert found == pytest.approx([first, middle, last])
    assert found == pytest.approx([0.3645 + 0.45 * 0.045 - 0.02, 0.455, 0.1], abs=1e-9)
    assert target == pytest.approx(found + np.array([0.2, 0.4, 0.9]))


def test_rewards_by_hand():
    assert token_rewards(1.0, 3).tolist() == [0.0, 0.0, 1.0]
    assert token_rewards(0.0, 0).tolist() == []
    rewards = token_rewards(0.5, 3, np.array([0.2, -0.4, 1.0]), 0.1)
    assert rewards == pytest.approx([-0.02, 0.04, 0.4])
    with pytest.raises(ValueError, match=r"kl_coef = 0\.1 needs a divergence for each of the 3 tokens"):
        token_rewards(1.0, 3, None, 0.1)
    with pytest.raises(ValueError, match="for each of the 3 tokens"):
        token_rewards(1.0, 3, np.zeros(2), 0.1)


def test_rewards_and_values_must_pair():
    with pytest.raises(ValueError, match=r"rewards of lengths \[2\], values of lengths \[1\]"):
        advantages_and_returns([np.zeros(2)], [np.zeros(1)])


def test_parts_of_a_chain():
    assert [part.tolist() for part in split_at(np.arange(5.0), [2, 0, 3])] == [[0, 1], [], [2, 3, 4]]
    assert split_at(np.zeros(0), []) == []
    with pytest.raises(ValueError, match="do not make 3"):
        split_at(np.zeros(3), [1, 1])


def test_explained_variance_by_hand():
    returns = [np.array([1.0, 0.0]), np.array([1.0, 0.0])]
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance([np.full(2, 0.5)] * 2, returns) == 0.0
    assert explained_variance([1 - row for row in returns], returns) == pytest.approx(-3.0)
    assert explained_variance([np.ones(2)], [np.ones(2)]) == 0.0
    assert explained_variance([], []) == 0.0
