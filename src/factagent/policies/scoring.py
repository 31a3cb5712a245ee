"""Log-probabilities of given replies under a model: what teacher forcing reads.

Rows (prompt and reply) are sorted by length, cut into batches by a budget of padded tokens and padded on the right: a
causal model never looks ahead. Logits are made for reply positions only, since the vocabulary projection is the largest
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from factagent.policies.sampling import sampling_mode, split_by_budget

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCORE_TOKENS = 8_192
"""Padded tokens that are scored together."""

Floats = NDArray[np.float64]


def reply_logprobs(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    replies: Sequence[Sequence[int]],
    *,
    pad_id: int = 0,
    max_batch_tokens: int = SCORE_TOKENS,
    autocast: bool = False,
) -> list[Floats]:
    """The log-probability of each token of each reply behind its prompt, in nats, at temperature 1.

    Args:
        prompts: token ids, none empty.
        replies: token ids, one reply a prompt, none empty.

    Returns:
        One array a pair, as long as its reply.

    Raises:
        ValueError: numbers of prompts and replies differ, or one of them is empty.
    """
    if not all(prompts) or not all(replies):
        raise ValueError("a prompt or a reply without tokens cannot be scored")
    rows = [(*prompt, *reply) for prompt, reply in zip(prompts, replies, strict=True)]
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), rows[i]))
    scores: dict[int, Floats] = {}
    with sampling_mode(model, autocast):
        for batch in split_by_budget(order, [len(row) for row in rows], max_batch_tokens):
            lengths = [len(replies[i]) for i in batch]
            found = _score(model, [rows[i] for i in batch], lengths, pad_id)
            scores.update(zip(batch, found, strict=True))
    return [scores[i] for i in range(len(rows))]


def _score(model: PreTrainedModel, rows: list[tuple[int, ...]], lengths: list[int], pad_id: int) -> list[Floats]:
    """Score the last `lengths[i]` tokens of `rows[i]`."""
    width = max(map(len, rows))
    padded = torch.tensor([(*row, *[pad_id] * (width - len(row))) for row in rows], device=model.device)
    ends = torch.tensor([len(row) for row in rows], device=model.device)[:, None]
    counts = torch.tensor(lengths, device=model.device)[:, None]
    columns = torch.arange(1, width, device=model.device)[None]
    scored = (columns < ends) & (columns >= ends - counts)
    hidden = model.base_model(input_ids=padded, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[:, :-1][scored]).float()
    targets = padded[:, 1:][scored]
    flat = torch.log_softmax(logits, dim=-1).gather(-1, targets[:, None])[:, 0].double().cpu().numpy()
    return np.split(flat, np.cumsum(lengths)[:-1])
