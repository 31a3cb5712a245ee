"""What a rule needs beyond the group itself: values of states, probabilities of the gold answer, trees.

Measuring needs the policy and the retriever, so it is done by the layer above (`methods.measure`) and handed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factagent.errors import DataError
from factagent.types import Group

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """Measurements of a batch, nested as it is: groups, members, states.

    Attributes:
        values: V(s_0), ..., V(s_S) of each member with S steps, `(S + 1,)`; the last entry is 0 (rule `vine`).
        gold_logprobs: mean log-probability (nats a token) of the gold answer before each step and after the last,
            `(S + 1,)` (rule `igpo`).
        trees: index of the tree that each member stems from (rule `tree-grpo`).
        tokens: generated (or scored) in measuring.
        seconds: that it took.

    The rows of members that stopped by a failure are not read and may be empty.
    """

    values: Sequence[Sequence[Floats]] | None = None
    gold_logprobs: Sequence[Sequence[Floats]] | None = None
    trees: Sequence[Sequence[int]] | None = None
    tokens: int = 0
    seconds: float = 0.0


def states_of(group: Group, member: int, rows: Sequence[Floats], what: str) -> Floats:
    """The measurements of one member: one a state, the last one included. Shape (S + 1,).

    Raises:
        DataError: the row is missing, or its length does not fit the steps, or it holds NaN.
    """
    steps = len(group.trajectories[member].steps)
    row = np.asarray(rows[member] if member < len(rows) else (), dtype=np.float64)
    if row.shape != (steps + 1,) or np.isnan(row).any():
        raise DataError(
            f"group '{group.question.id}', member {member}: {what} must be {steps + 1} numbers for {steps} steps, "
            f"found {row.tolist()}"
        )
    return row
