"""Generalised advantage estimation over the tokens that the policy sampled (Search-R1's PPO, methods.md 3.5).

A trajectory is one chain of decisions: the tokens of all its replies, in order. The state of a token is everything
that the policy had read when it sampled it, so what lies between two replies (an observation, a prompt made anew) is
part of the environment's move: the value of the first token of the next reply bootstraps the last token of this one,
whether the two stand in one row (`append` protocols) or in two (`rebuild`).

    delta_t = r_t + gamma V_{t+1} - V_t,    A_t = delta_t + gamma lambda A_{t+1},    V_T = A_T = 0
    returns_t = A_t + V_t  (what the critic learns)

The original runs the recursion over every token of the row, observations included, so that its gamma and lambda count
those too; with gamma = lambda = 1, its setting, both sums telescope to `A_t = sum_{k >= t} r_k - V_t` and agree. It
also takes mean and deviation of the whitening over observation tokens; here only tokens that carry loss count.

Pure: numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from factagent.credit.advantages import whiten

Floats = NDArray[np.float64]


def token_rewards(outcome: float, length: int, divergence_T: Floats | None = None, kl_coef: float = 0.0) -> Floats:
    """The outcome reward at the last sampled token, minus `kl_coef` times the divergence at each. Shape (T,).

    Args:
        outcome: of the trajectory.
        length: sampled tokens of the trajectory.
        divergence_T: `log pi_old - log pi_ref` of each token (nats); needed where `kl_coef` is not 0.
        kl_coef: weight of the KL in the reward.

    Raises:
        ValueError: no divergence where one is needed, or of another length.
    """
    rewards_T = np.zeros(length)
    if kl_coef:
        if divergence_T is None or len(divergence_T) != length:
            raise ValueError(f"kl_coef = {kl_coef} needs a divergence for each of the {length} tokens")
        rewards_T -= kl_coef * divergence_T
    if length:
        rewards_T[-1] += outcome
    return rewards_T


def advantages_and_returns(
    rewards: Sequence[Floats], values: Sequence[Floats], gamma: float = 1.0, lam: float = 1.0
) -> tuple[list[Floats], list[Floats]]:
    """Advantages and returns of trajectories of any lengths (see the module's docstring).

    One sweep from the last column to the first over all trajectories at once, aligned at their ends; a trajectory's
    numbers do not depend on its company.

    Args:
        rewards: one `(T,)` a trajectory.
        values: V at the state before each of these tokens, aligned.
        gamma: discount a token.
        lam: 1 sums all that follows (Monte Carlo minus the value), 0 looks one token ahead.

    Raises:
        ValueError: rewards and values do not pair.
    """
    lengths = [len(rewards_T) for rewards_T in rewards]
    if lengths != [len(values_T) for values_T in values]:
        raise ValueError(f"rewards of lengths {lengths}, values of lengths {[len(v) for v in values]}")
    width = max(lengths, default=0)
    rewards_BT, values_BT = _end_aligned(rewards, width), _end_aligned(values, width)
    advantages_BT = np.zeros_like(values_BT)
    following_B, value_B = np.zeros(len(lengths)), np.zeros(len(lengths))
    for column in reversed(range(width)):
        delta_B = rewards_BT[:, column] + gamma * value_B - values_BT[:, column]
        following_B = delta_B + gamma * lam * following_B
        advantages_BT[:, column], value_B = following_B, values_BT[:, column]
    advantages = [row_T[width - length :] for row_T, length in zip(advantages_BT, lengths, strict=True)]
    return advantages, [advantage_T + value_T for advantage_T, value_T in zip(advantages, values, strict=True)]


def whitened(advantages: Sequence[Floats]) -> list[Floats]:
    """Mean 0 and unbiased variance 1 over all tokens of the batch; zeros where they do not differ."""
    flat = np.concatenate([np.zeros(0), *advantages])
    if not len(flat):
        return [np.zeros(0) for _ in advantages]
    return split_at(whiten(flat, np.ones(len(flat))), [len(advantage_T) for advantage_T in advantages])


def split_at(values_T: Floats, lengths: Sequence[int]) -> list[Floats]:
    """Cut a trajectory's tokens into consecutive parts of these lengths.

    Raises:
        ValueError: the lengths do not add up.
    """
    if sum(lengths) != len(values_T):
        raise ValueError(f"parts of {list(lengths)} tokens do not make {len(values_T)}")
    return np.split(values_T, np.cumsum(lengths)[:-1]) if len(lengths) else []


def explained_variance(values: Sequence[Floats], returns: Sequence[Floats]) -> float:
    """1 - Var(returns - values) / Var(returns) over all tokens: 1 for a perfect critic, 0 for a constant one.

    0 where the returns do not vary, since there is nothing to explain.
    """
    values_N, returns_N = (np.concatenate([np.zeros(0), *arrays]) for arrays in (values, returns))
    spread = float(returns_N.var()) if len(returns_N) else 0.0
    return 1.0 - float((returns_N - values_N).var()) / spread if spread > 0 else 0.0


def _end_aligned(rows: Sequence[Floats], width: int) -> Floats:
    """Rows padded with zeros on the left, `(B, width)`."""
    padded = np.zeros((len(rows), width))
    for row, values_T in enumerate(rows):
        padded[row, width - len(values_T) :] = values_T
    return padded
