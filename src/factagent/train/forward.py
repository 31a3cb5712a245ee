"""Log-probabilities of response tokens: one forward pass, logits only where a token carries loss.

The vocabulary projection is the dearest part of a small model and its output the largest tensor of a large one, so it
runs on the positions of `loss_mask` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from factagent.train.config import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """bf16 autocast on the device, or nothing for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


SHORT = 512
"""Rows up to this length use plain attention on the CPU."""


@contextmanager
def _attention(model: PreTrainedModel, ids: Tensor) -> Iterator[None]:
    """Plain matrix products for short rows on a CPU, whose fused kernel is slow in the backward pass.

    Measured with the tiny policy in bf16 on one core, 64 rows of 130 tokens, forward and backward: 0.50 s against
    0.77 s. Elsewhere, and for long rows, the model keeps what it was loaded with.
    """
    loaded = model.config._attn_implementation
    if ids.device.type != "cpu" or ids.shape[1] > SHORT or loaded != "sdpa":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(loaded)


def projected(
    model: PreTrainedModel, head: Callable[[Tensor], Tensor], batch: dict[str, Tensor], precision: Precision
) -> Tensor:
    """`head` of the last hidden states at which the N tokens of `batch["loss_mask"]` are predicted, in fp32.

    In row-major order (see `samples.collate`). Rows are padded on the right and a causal model never looks ahead, so no
    attention mask is passed; what is computed at padding is not used.
    """
    ids = batch["input_ids"]
    with _attention(model, ids), autocast(ids.device, precision):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return head(hidden[:, :-1][batch["loss_mask"]]).float()


def masked_logits(model: PreTrainedModel, batch: dict[str, Tensor], precision: Precision) -> Tensor:
    """Logits `(N, V)` in fp32 for the N tokens of `batch["loss_mask"]` (see `projected`)."""
    return projected(model, model.get_output_embeddings(), batch, precision)


def token_logprobs(logits: Tensor, batch: dict[str, Tensor], temperature: float) -> Tensor:
    """Log-probabilities `(N,)`, in nats, of the tokens that carry loss.

    The logits are divided by the sampling temperature, so that the policy trained is the one that sampled.
    """
    log_softmax = torch.log_softmax(scaled(logits, temperature), dim=-1)
    return log_softmax.gather(-1, batch["targets"][batch["loss_mask"]][:, None])[:, 0]


def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy `(N,)`, in nats, of the distribution that each of the N tokens was drawn from."""
    log_softmax = torch.log_softmax(scaled(logits, temperature), dim=-1)
    return -(log_softmax.exp() * log_softmax).sum(-1)


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """The logits of the sampling distribution; temperature 0 (greedy) and 1 leave them as they are."""
    return logits if temperature in (0.0, 1.0) else logits / temperature
