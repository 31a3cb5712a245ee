"""VinePPO: what a step changed of the expected return, estimated by continuations (methods.md 9).

    A_t = r_{t+1} + V(s_{t+1}) - V(s_t)    with r the outcome reward, after the last step only, and V(s_S) = 0

so that a trajectory's advantages sum to `R - V(s_0)`. Over the batch they are then whitened. The values come with
`Measured.values`; sampling the continuations is the business of the methods layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from factagent.credit.advantages import whiten
from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig
from factagent.credit.ledger import Counted, Terms, counted, write
from factagent.credit.measured import Measured, states_of
from factagent.errors import UsageError
from factagent.types import Group

Floats = NDArray[np.float64]


class VineConfig(RuleConfig):
    """VinePPO's rule, and how its values are estimated."""

    compares_members: ClassVar[bool] = False
    needs: ClassVar[str | None] = "values"

    rule: Literal["vine"] = "vine"
    whiten: Literal["tokens", "steps", "none"] = "tokens"
    """Mean 0 and variance 1 over the batch, each step weighing its sampled tokens (the original), or 1."""
    continuations: Annotated[int, Field(ge=1)] = 4
    """K, continuations a state (the original on mathematics: 9)."""
    max_states: Annotated[int, Field(ge=0)] = 20
    """States of a trajectory that are estimated, besides s_0; later ones are filled from behind."""
    reuse_group: bool = True
    """V(s_0) is the mean return of the group's own members, who all start there."""


def assign_vine(groups: Sequence[Group], config: VineConfig, measured: Measured | None) -> list[GroupCredit]:
    """Credit by differences of estimated values (methods.md 9).

    In the ledger `potential` is V after a step, `shaping` the advantage before whitening, `process` the one after.
    Members are not compared: a group of one, one whose outcomes are equal or that failed throughout keep what their
    values say (0 where every value equals every outcome). Excluded members give 0 and do not count in the whitening,
    which turns a batch of equal advantages, or of one step, into zeros.

    Raises:
        UsageError: no values were measured.
        DataError: they do not fit the trajectories.
    """
    if measured is None or measured.values is None:
        raise UsageError("rule 'vine' needs the values of states: measure them with the policy (Measured.values)")
    kept = [counted(group, config) for group in groups]
    values = [_values(item, rows) for item, rows in zip(kept, measured.values, strict=True)]
    raw = [
        [vine_advantages(float(outcome), values_S) for outcome, values_S in zip(item.outcome_G, rows, strict=True)]
        for item, rows in zip(kept, values, strict=True)
    ]
    final = raw if config.whiten == "none" else _whitened(raw, _token_weights(kept, config))
    credits = []
    for item, values_GS, raw_GS, final_GS in zip(kept, values, raw, final, strict=True):
        rows = zip(values_GS, raw_GS, final_GS, strict=True)
        credits.append(write(item, [Terms(0.0, end, potential_S=v[1:], shaping_S=start) for v, start, end in rows]))
    return credits


def vine_advantages(outcome: float, values_S: Floats) -> Floats:
    """A_t = r_{t+1} + V(s_{t+1}) - V(s_t) from V(s_0), ..., V(s_S). Shape (S,)."""
    advantages_S = np.diff(values_S)
    advantages_S[-1:] += outcome
    return advantages_S


def _values(kept: Counted, rows: Sequence[Floats]) -> list[Floats]:
    """V(s_0), ..., V(s_S) of each counted member; the last is 0 by definition."""
    values = [states_of(kept.group, member, rows, "values").copy() for member in kept.members]
    for values_S in values:
        values_S[-1] = 0.0
    return values


def _token_weights(kept: Sequence[Counted], config: VineConfig) -> list[list[Floats]]:
    """Sampled tokens of each step; 1 each where that is chosen, or where the batch holds no counts."""
    tokens = [
        [np.array([step.generation.sampled_tokens for step in t.steps], dtype=np.float64) for t in item.trajectories]
        for item in kept
    ]
    known = any(tokens_S.any() for rows in tokens for tokens_S in rows)
    return tokens if known and config.whiten == "tokens" else [[np.ones(len(row)) for row in rows] for rows in tokens]


def _whitened(raw: list[list[Floats]], weights: list[list[Floats]]) -> list[list[Floats]]:
    flat = [advantages_S for rows in raw for advantages_S in rows]
    if not sum(map(len, flat)):
        return raw
    white_N = whiten(np.concatenate(flat), np.concatenate([row for rows in weights for row in rows]))
    parts = iter(np.split(white_N, np.cumsum([len(advantages_S) for advantages_S in flat])[:-1]))
    return [[next(parts) for _ in rows] for rows in raw]
