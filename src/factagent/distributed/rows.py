"""Samples as the rows of verl's queue, and the order in which its ranks read them. Knows torch, not verl.

A row is a `train.samples.Sample` under the names that verl's workers read, with three fields of ours a token:
`advantages` (the final number, which nothing changes any more), `token_weights` (its share of the objective) and
`step_ids`. Rows that verl adds to fill its ranks carry no loss token, so they add nothing to any sum; since weights are
shares that were counted over real rows only, they change no denominator either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from factagent.train.aggregation import Aggregation, token_weights
from factagent.train.samples import Sample

PER_TOKEN = ("advantages", "token_weights", "step_ids")
"""Our own fields; each has the length of the response."""


@dataclass(frozen=True)
class Row:
    """One row: its key, its fields, and the tags by which the driver plans without reading them."""

    key: str
    fields: dict[str, Any]
    tags: dict[str, Any]


def rows_of(
    samples: Sequence[Sample],
    step: int,
    position: int,
    rewards: Sequence[float],
    aggregation: Aggregation = "step-mean",
) -> list[Row]:
    """The rows of one group.

    Args:
        samples: of that group alone; its weights are then shares of the group, to be multiplied by `share_of_group`.
        step: the training step.
        position: of the question in the step's batch; it names the group.
        rewards: outcome reward a member, for verl's own records.
        aggregation: of what the objective is the mean.
    """
    rows: list[Row] = []
    counts: dict[int, int] = {}
    for sample, weights in zip(samples, token_weights(samples, aggregation), strict=True):
        index = counts.get(sample.member, 0)
        counts[sample.member] = index + 1
        # verl reads member and row number from the last two parts of a key, and the group from what stands before "_".
        key = f"step{step}q{position}_{sample.member}_{index}"
        tags = {
            "status": "success",
            "prompt_len": len(sample.prompt_ids),
            "response_len": len(sample.response_ids),
            "seq_len": sample.length,
            "global_steps": step,
            "min_global_steps": step - 1,
            "max_global_steps": step - 1,
            "group": position,
            "loss_tokens": int(sample.loss_mask.sum()),
        }
        rows.append(Row(key, fields_of(sample, weights, rewards[sample.member]), tags))
    return rows


def fields_of(sample: Sample, weights: np.ndarray[Any, Any], reward: float = 0.0) -> dict[str, Any]:
    """A sample under verl's names; `weights` of `aggregation.token_weights`."""
    prompt, response = (torch.from_numpy(np.ascontiguousarray(ids)) for ids in (sample.prompt_ids, sample.response_ids))
    mask = torch.from_numpy(sample.loss_mask.astype(np.int64))
    scores = torch.zeros(len(response))
    scores[-1] = reward
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": torch.cat([prompt, response]),
        "position_ids": torch.arange(sample.length),
        "response_mask": mask,
        "loss_mask": mask.clone(),
        "rollout_log_probs": _masked(sample.old_logprobs, sample),
        "rm_scores": scores,
        "num_turns": int(sample.step_ids.max()) + 1,
        "advantages": _masked(sample.advantages, sample),
        "token_weights": _masked(weights, sample),
        "step_ids": torch.from_numpy(np.ascontiguousarray(sample.step_ids)),
    }


def _masked(values: np.ndarray[Any, Any], sample: Sample) -> torch.Tensor:
    return torch.from_numpy(np.where(sample.loss_mask, values, 0.0).astype(np.float32))


def share_of_group(aggregation: Aggregation, tags: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """What each group weighs in an optimiser step, such that `share x weight in the group` is the weight of a token.

    Args:
        aggregation: of what the objective is the mean.
        tags: of the real rows that the step sees.
    """
    tokens: Counter[int] = Counter()
    for tag in tags:
        tokens[tag["group"]] += tag["loss_tokens"]
    if aggregation == "token-mean":
        return {group: count / tokens.total() for group, count in tokens.items()}
    return dict.fromkeys(tokens, 1 / max(1, len(tokens)))


@dataclass(frozen=True)
class Layout:
    """Where rows go: `order[i]` is the row at place i, or None for one that verl adds; `part[i]` its mini-batch.

    Places run over ranks, in a rank over mini-batches, in a mini-batch over rows; every rank has the same number of
    rows in every mini-batch. So one call of verl's worker makes one optimiser step a mini-batch, in which each rank
    reads its share.
    """

    order: list[int | None]
    part: list[int]
    parts: int

    @property
    def part_rows(self) -> int:
        """Rows of a mini-batch over all ranks, added ones included."""
        return len(self.order) // self.parts


def lay_out(groups: Sequence[int], lengths: Sequence[int], ranks: int, updates: int) -> Layout:
    """Deal rows to mini-batches, groups kept whole as `samples.mini_batches` does, and to ranks, of like total length.

    The number of optimiser steps is `updates` (fewer where there are fewer groups) however many rows there are.

    Args:
        groups: which group each row belongs to, in the order of the batch.
        lengths: tokens of each row.
        ranks: data-parallel ranks.
        updates: optimiser steps wanted.
    """
    names = list(dict.fromkeys(groups))
    cuts = np.array_split(np.arange(len(names)), min(updates, len(names)))
    part_of = {names[index]: part for part, indices in enumerate(cuts) for index in indices}
    rows_P: list[list[int]] = [[] for _ in cuts]
    for row, group in enumerate(groups):
        rows_P[part_of[group]].append(row)
    height = max(-(-len(rows) // ranks) for rows in rows_P)
    cells = [_deal(rows, lengths, ranks, height) for rows in rows_P]
    order = [row for rank in range(ranks) for part in range(len(cuts)) for row in cells[part][rank]]
    part = [part for _ in range(ranks) for part in range(len(cuts)) for _ in range(height)]
    return Layout(order, part, len(cuts))


def _deal(rows: Sequence[int], lengths: Sequence[int], ranks: int, height: int) -> list[list[int | None]]:
    """Longest first, each to the rank with the fewest tokens that has room; None fills up."""
    cells: list[list[int | None]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        rank = min((rank for rank in range(ranks) if len(cells[rank]) < height), key=lambda rank: (tokens[rank], rank))
        cells[rank].append(row)
        tokens[rank] += lengths[row]
    return [[*cell, *([None] * (height - len(cell)))] for cell in cells]
