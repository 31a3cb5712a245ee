"""What the learner sees: token samples, the weights that make a batch's objective, and micro-batches.

The learner is blind to the method. A protocol that rebuilds its prompt gives one sample a step (`step_samples`), one
that appends gives one a trajectory (`trajectory_sample`), in which observation tokens are masked. Tokens are the
policy's own: nothing here decodes or encodes text.

The objective (credit.md section 7) is, for every group, the mean over all its steps of the step's term, and the mean
over groups of that. A step's term is the mean over its loss tokens (length-normalised: a long thought weighs what a
short one does). `step_weights` turns this into one weight a token, taken from the whole batch, so that the sum over
micro-batches is the same however the batch is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factagent.episode import FORCED
from factagent.errors import DataError, UsageError
from factagent.types import Generation, Group, Trajectory

if TYPE_CHECKING:
    import torch

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sample:
    """One row for the learner. All arrays but `prompt_ids` have the length of the response.

    Attributes:
        prompt_ids: tokens that the policy read, `(P,)`.
        response_ids: tokens to score, `(T,)`: sampled ones, and in `append` protocols the observations between them.
        loss_mask: True where the policy sampled the token, `(T,)`.
        old_logprobs: log-probabilities at sampling time (nats), `(T,)`; ignored where the mask is False.
        advantages: one a token, `(T,)`; ignored where the mask is False.
        group: which group of the batch the sample belongs to.
        step_ids: which step of the sample a token belongs to, 0, 1, ..., and -1 where the mask is False, `(T,)`.
        weight: a factor on the sample's part of the objective; it changes no denominator. Usually 1.
        member: which trajectory of the group the sample belongs to.
        llds_weights: factors on what LLDS adds to the loss of a token, `(T,)`; None: 1 everywhere.

    Raises:
        DataError: if lengths differ, no token carries loss, or the step ids do not match the mask.
    """

    prompt_ids: Ints
    response_ids: Ints
    loss_mask: NDArray[np.bool_]
    old_logprobs: Floats
    advantages: Floats
    group: int
    step_ids: Ints
    weight: float = 1.0
    member: int = 0
    llds_weights: Floats | None = None

    def __post_init__(self) -> None:
        """Refuse a row that the learner would misread."""
        length = len(self.response_ids)
        for name in ("loss_mask", "old_logprobs", "advantages", "step_ids"):
            if len(getattr(self, name)) != length:
                raise DataError(f"sample: '{name}' has {len(getattr(self, name))} entries for {length} response tokens")
        if self.llds_weights is not None and len(self.llds_weights) != length:
            raise DataError(f"sample: 'llds_weights' has {len(self.llds_weights)} entries for {length} response tokens")
        if not self.loss_mask.any():
            raise DataError("sample: no token carries loss; leave such a row out of the batch")
        if not np.array_equal(self.step_ids >= 0, self.loss_mask):
            raise DataError("sample: 'step_ids' must be >= 0 where 'loss_mask' is True and -1 elsewhere")
        if len(self.prompt_ids) == 0:
            raise DataError("sample: 'prompt_ids' is empty; the first response token has nothing to be predicted from")

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)


def step_samples(trajectory: Trajectory, advantages_S: Sequence[float], group: int) -> list[Sample]:
    """One sample a step, for protocols that rebuild their prompt; a forced step gives none.

    Args:
        trajectory: steps that hold token ids and log-probabilities.
        advantages_S: one advantage a step.
        group: index of the group in the batch.

    Raises:
        DataError: if a step has no tokens or the number of advantages differs from the number of steps.
    """
    _check_steps(trajectory, advantages_S)
    samples = []
    for generation, advantage in _written(trajectory, advantages_S):
        length = len(generation.response_ids)
        samples.append(
            Sample(
                prompt_ids=np.asarray(generation.prompt_ids, np.int64),
                response_ids=np.asarray(generation.response_ids, np.int64),
                loss_mask=np.ones(length, bool),
                old_logprobs=np.asarray(generation.logprobs, np.float64),
                advantages=np.full(length, float(advantage)),
                group=group,
                step_ids=np.zeros(length, np.int64),
            )
        )
    return samples


def trajectory_sample(trajectory: Trajectory, advantages_S: Sequence[float], group: int) -> Sample:
    """One sample for a whole trajectory, for protocols that append.

    The prompt of each step must extend the tokens of the step before it (prompt and response), since what lies between
    two responses is the observation: it is kept in the row and carries no loss. Forced steps have no part in it. An
    end token that the policy sampled stays in the row, also where the observation stands inside the assistant's turn.

    Raises:
        DataError: as `step_samples`, and if a prompt does not extend what came before.
    """
    _check_steps(trajectory, advantages_S)
    written = _written(trajectory, advantages_S)
    if not written:
        raise DataError("a trajectory without steps has no tokens to train on; leave it out of the batch")
    start = len(written[0][0].prompt_ids)
    row: tuple[int, ...] = ()
    for index, (generation, _) in enumerate(written):
        if generation.prompt_ids[: len(row)] != row:
            raise DataError(
                f"trajectory of member {trajectory.member}: the prompt of step {index} does not extend the tokens of "
                f"step {index - 1}; build it with `step_samples` if the protocol rebuilds its prompt"
            )
        row = generation.prompt_ids + generation.response_ids
    length = len(row) - start
    step_ids = np.full(length, -1, np.int64)
    old_logprobs, advantages_T = np.zeros(length), np.zeros(length)
    for index, (generation, advantage) in enumerate(written):
        first = len(generation.prompt_ids) - start
        span = slice(first, first + len(generation.response_ids))
        step_ids[span], old_logprobs[span], advantages_T[span] = index, generation.logprobs, advantage
    tokens = np.asarray(row, np.int64)
    return Sample(tokens[:start], tokens[start:], step_ids >= 0, old_logprobs, advantages_T, group, step_ids)


def group_samples(
    group: Group, advantages: Sequence[Sequence[float] | None], index: int, *, append: bool = False
) -> list[Sample]:
    """The samples of a group: `advantages` holds one sequence a trajectory, or None for one that left the statistics.

    Raises:
        DataError: if the number of entries differs from the number of trajectories, or as the builders above.
    """
    if len(advantages) != len(group.trajectories):
        raise DataError(
            f"group '{group.question.id}': {len(advantages)} rows of advantages for "
            f"{len(group.trajectories)} trajectories"
        )
    samples: list[Sample] = []
    for member, (trajectory, advantages_S) in enumerate(zip(group.trajectories, advantages, strict=True)):
        if advantages_S is None or all(step.generation.finish_reason == FORCED for step in trajectory.steps):
            continue
        if append:
            rows = [trajectory_sample(trajectory, advantages_S, index)]
        else:
            rows = step_samples(trajectory, advantages_S, index)
        samples += [replace(row, member=member) for row in rows]
    return samples


def _written(trajectory: Trajectory, advantages_S: Sequence[float]) -> list[tuple[Generation, float]]:
    """What the policy wrote, with its advantages: every step but the forced ones."""
    pairs = zip(trajectory.steps, advantages_S, strict=True)
    return [(step.generation, advantage) for step, advantage in pairs if step.generation.finish_reason != FORCED]


def _check_steps(trajectory: Trajectory, advantages_S: Sequence[float]) -> None:
    """Refuse a trajectory whose steps and advantages do not pair, or that carries no tokens."""
    who = f"trajectory of member {trajectory.member}"
    if len(advantages_S) != len(trajectory.steps):
        raise DataError(f"{who}: {len(advantages_S)} advantages for {len(trajectory.steps)} steps")
    for index, step in enumerate(trajectory.steps):
        generation = step.generation
        if generation.finish_reason == FORCED:
            continue
        if not generation.response_ids or not generation.prompt_ids:
            raise DataError(
                f"{who}: step {index} has no token ids; train on rollouts of a policy that keeps its tokens"
            )
        if len(generation.logprobs) != len(generation.response_ids):
            raise DataError(
                f"{who}: step {index} has {len(generation.logprobs)} log-probabilities for "
                f"{len(generation.response_ids)} tokens"
            )


def step_weights(samples: Sequence[Sample]) -> list[Floats]:
    """Token weights of the objective, one array a sample, aligned with its response (0 where masked).

    `w = weight / (groups * steps of the group * loss tokens of the step)` (credit.md section 7), counted over all of
    `samples`; with `weight = 1` everywhere they sum to 1. Call it once on everything one optimiser step sees.
    """
    tokens_per_step = [np.bincount(sample.step_ids[sample.loss_mask]) for sample in samples]
    steps_per_group: Counter[int] = Counter()
    for sample, counts in zip(samples, tokens_per_step, strict=True):
        steps_per_group[sample.group] += int(np.count_nonzero(counts))
    weights = []
    for sample, counts in zip(samples, tokens_per_step, strict=True):
        weights_T = np.zeros(len(sample.response_ids))
        per_step = sample.weight / (len(steps_per_group) * steps_per_group[sample.group])
        weights_T[sample.loss_mask] = per_step / counts[sample.step_ids[sample.loss_mask]]
        weights.append(weights_T)
    return weights


def mini_batches(samples: Sequence[Sample], count: int) -> list[list[int]]:
    """Cut a batch for `count` optimiser steps, groups kept whole and dealt in order; returns indices of samples.

    Fewer than `count` lists come back where there are fewer groups. Shuffle the groups before, if wanted.

    Raises:
        UsageError: if `count` < 1.
    """
    if count < 1:
        raise UsageError(f"mini_batches: count is {count}; it must be at least 1")
    groups = list(dict.fromkeys(sample.group for sample in samples))
    cuts = np.array_split(np.arange(len(groups)), min(count, len(groups))) if groups else []
    part_of = {groups[position]: part for part, positions in enumerate(cuts) for position in positions}
    batches: list[list[int]] = [[] for _ in cuts]
    for index, sample in enumerate(samples):
        batches[part_of[sample.group]].append(index)
    return batches


def micro_batches(samples: Sequence[Sample], token_budget: int) -> list[list[int]]:
    """Cut a batch into micro-batches of at most `token_budget` padded tokens (rows x longest row).

    Rows are sorted by length, longest first, so that padding is small and a lack of memory shows at once; ties keep
    the order of `samples`. A row longer than the budget gets a micro-batch of its own.

    Returns:
        Indices into `samples`, each exactly once.

    Raises:
        UsageError: if the budget is not positive.
    """
    if token_budget < 1:
        raise UsageError(f"micro_batches: token_budget is {token_budget}; it must be at least 1")
    order = sorted(range(len(samples)), key=lambda index: (-samples[index].length, index))
    batches: list[list[int]] = []
    for index in order:
        fits = batches and samples[batches[-1][0]].length * (len(batches[-1]) + 1) <= token_budget
        if fits:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def collate(
    samples: Sequence[Sample], weights: Sequence[Floats] | None = None, *, pad_id: int = 0
) -> dict[str, torch.Tensor]:
    """Right-pad samples into tensors `(B, L)`, L the longest row; per-token tensors stand where the token is predicted.

    Row b of `input_ids` is prompt + response + padding. `targets`, `loss_mask`, `old_logprobs`, `advantages`,
    `weights`, `llds_weights`, `step_ids` and `sample_ids` have shape `(B, L - 1)`: column t belongs to the token at
    t + 1, which the model predicts at t, so that `logits[:, :-1]` and `targets` pair. `step_ids` are unique in the
    micro-batch (-1 where masked). Right padding needs no position ids (a causal model never looks ahead), but
    `attention_mask` is given all the same.

    Args:
        samples: the rows, at least one.
        weights: as of `step_weights` for these rows; without it, computed over these rows alone.
        pad_id: token that fills the padding; it carries no loss.

    Raises:
        UsageError: if there are no samples or the weights do not pair with them.
    """
    import torch

    weights = step_weights(samples) if weights is None else weights
    if not samples or len(weights) != len(samples):
        raise UsageError(f"collate: {len(samples)} samples and {len(weights)} rows of weights")
    shape = (len(samples), max(sample.length for sample in samples))
    input_ids, attention = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    tokens = {name: np.zeros(shape) for name in ("old_logprobs", "advantages", "weights", "llds_weights")}
    step_ids, sample_ids = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
    first_step = 0
    for row, (sample, weights_T) in enumerate(zip(samples, weights, strict=True)):
        start, end = len(sample.prompt_ids), sample.length
        input_ids[row, :start], input_ids[row, start:end] = sample.prompt_ids, sample.response_ids
        attention[row, :end] = 1
        tokens["old_logprobs"][row, start:end] = np.where(sample.loss_mask, sample.old_logprobs, 0.0)
        tokens["advantages"][row, start:end] = np.where(sample.loss_mask, sample.advantages, 0.0)
        tokens["weights"][row, start:end] = weights_T
        tokens["llds_weights"][row, start:end] = 1.0 if sample.llds_weights is None else sample.llds_weights
        step_ids[row, start:end] = np.where(sample.loss_mask, sample.step_ids + first_step, -1)
        sample_ids[row, start:end] = np.where(sample.loss_mask, row, -1)
        first_step += int(sample.step_ids.max()) + 1
    batch = {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(attention),
        "targets": torch.from_numpy(input_ids[:, 1:].copy()),
        "loss_mask": torch.from_numpy(step_ids[:, 1:] >= 0),
        "step_ids": torch.from_numpy(step_ids[:, 1:].copy()),
        "sample_ids": torch.from_numpy(sample_ids[:, 1:].copy()),
    }
    return batch | {name: torch.from_numpy(array[:, 1:].astype(np.float32)) for name, array in tokens.items()}


def count_loss_tokens(samples: Iterable[Sample]) -> int:
    """How many tokens carry loss (the denominator of LLDS over a whole batch)."""
    return sum(int(sample.loss_mask.sum()) for sample in samples)


def padding_share(samples: Sequence[Sample], batches: Sequence[Sequence[int]]) -> Mapping[str, float]:
    """Tokens, padded tokens and the share of padding of a cut, for the benchmark of a step."""
    used = sum(sample.length for sample in samples)
    padded = sum(max(samples[index].length for index in batch) * len(batch) for batch in batches)
    return {"tokens": used, "padded_tokens": padded, "padding_share": 1 - used / padded if padded else 0.0}
