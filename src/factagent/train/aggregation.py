"""How the terms of tokens make one objective: the weights of everything that one optimiser step sees.

The paper takes a mean over steps; published neighbours take means over tokens or over trajectories (methods.md 0). All
are weights, one a token, counted over the whole optimiser step, so that the loss stays a plain weighted sum and the sum
over micro-batches is the same however they are cut. That is the one thing in which "token-mean" differs from the
originals: there the mean is taken in each micro-batch and then over micro-batches, so that tokens of a micro-batch with
short rows weigh more, and the objective depends on the memory of the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, assert_never

import numpy as np

from factagent.train.samples import Floats, Sample, count_loss_tokens, step_weights

Aggregation = Literal["step-mean", "token-mean", "trajectory-mean"]
"""Of what an objective is the mean."""


def token_weights(samples: Sequence[Sample], aggregation: Aggregation = "step-mean") -> list[Floats]:
    """Token weights of the objective, one array a sample, aligned with its response (0 where masked).

    With `weight = 1` everywhere they sum to 1. Call it once on everything that one optimiser step sees.

    Args:
        samples: all of them; failed trajectories have left and are counted nowhere.
        aggregation: "step-mean", see `samples.step_weights`. "token-mean": every loss token weighs
            `weight / loss tokens`, so long steps, trajectories and groups weigh more. "trajectory-mean": `weight /
            (groups * trajectories of the group * loss tokens of the trajectory)`, where a trajectory is all rows of
            one member of one group.
    """
    match aggregation:
        case "step-mean":
            return step_weights(samples)
        case "token-mean":
            count = count_loss_tokens(samples)
            return [np.where(sample.loss_mask, sample.weight / count, 0.0) for sample in samples]
        case "trajectory-mean":
            return _trajectory_weights(samples)
    assert_never(aggregation)


def _trajectory_weights(samples: Sequence[Sample]) -> list[Floats]:
    tokens: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        tokens[sample.group, sample.member] += int(sample.loss_mask.sum())
    members = Counter(group for group, _ in tokens)
    weights = []
    for sample in samples:
        share = sample.weight / (len(members) * members[sample.group] * tokens[sample.group, sample.member])
        weights.append(np.where(sample.loss_mask, share, 0.0))
    return weights
