"""The critic of Search-R1's PPO: a value for the state before each sampled token (methods.md 3.5).

It is a copy of the policy's backbone, made before training, with one linear map to a scalar that starts near zero, so
that the first advantages are nearly the returns. The value of a token is read where the policy predicts it: it has seen
prompt, observations and earlier tokens, and not the token.

    loss = 1/2 mean_t max((V_t - R_t)^2, (clip(V_t, V_old_t - c, V_old_t + c) - R_t)^2)

over the tokens that carry loss; the original also fits the values at observation tokens, where nothing is decided.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from factagent.policies.base import seed_of
from factagent.train.config import CriticConfig, LearnerConfig
from factagent.train.forward import projected
from factagent.train.gae import Floats, split_at
from factagent.train.learner import UpdateReport
from factagent.train.loss import non_finite
from factagent.train.samples import Sample, collate, count_loss_tokens, micro_batches, mini_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel


INITIAL_VALUE = 0.01
"""Deviation of the first values where hidden states have unit root mean square, as behind a final RMS norm."""


class ValueModel(torch.nn.Module):
    """A backbone and a linear head: states in, one scalar a state out."""

    def __init__(self, policy: PreTrainedModel, seed: int) -> None:
        """Copy the policy's backbone; draw the head from `seed`, so small that values start at about +-0.01."""
        super().__init__()
        self.backbone = cast("PreTrainedModel", copy.deepcopy(policy.base_model))
        self.backbone.requires_grad_(True)
        like = next(policy.parameters())
        width = int(policy.config.hidden_size)
        self.head = torch.nn.Linear(width, 1)
        draws = torch.Generator().manual_seed(seed_of((seed, "value head")))
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(1, width, generator=draws) * (INITIAL_VALUE / width**0.5))
            self.head.bias.zero_()
        self.head.to(device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class ValueStats:
    """Sums over loss tokens: the loss as it entered the gradient, and tokens at which the clip decided it."""

    tokens: float = 0.0
    loss: float = 0.0
    clipped: float = 0.0

    def __add__(self, other: ValueStats) -> ValueStats:
        """The sums of both."""
        return ValueStats(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


class Critic:
    """Holds the value model and its optimiser.

    Args:
        policy: the model in training, as it is before training; its backbone is copied.
        config: see `CriticConfig`.
        learner: whose precision, token budget and gradient clipping are used.
        seed: of the value head.
    """

    def __init__(self, policy: PreTrainedModel, config: CriticConfig, learner: LearnerConfig, seed: int) -> None:
        self.model = ValueModel(policy, seed).eval()
        self.config = config
        self.learner = learner
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )
        self.device = next(self.model.parameters()).device

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """V at the state before each token that carries loss, one array a sample (in the order of its tokens)."""
        found: dict[int, Floats] = {}
        for indices in micro_batches(samples, self.learner.token_budget):
            with torch.no_grad():
                flat = self._forward([samples[i] for i in indices]).double().cpu().numpy()
            counts = [count_loss_tokens([samples[i]]) for i in indices]
            found |= zip(indices, split_at(flat, counts), strict=True)
        return [found[i] for i in range(len(samples))]

    def update(
        self, samples: Sequence[Sample], values: Sequence[Floats], returns: Sequence[Floats], batch_index: int
    ) -> UpdateReport:
        """Move the values towards the returns.

        Args:
            samples: of all groups of the batch; an empty batch changes nothing.
            values: of these samples, as `values` gave them before the batch.
            returns: aligned with `values`.
            batch_index: 0-based; drives the warm-up.
        """
        rate = self.config.learning_rate * min(1.0, (batch_index + 1) / max(1, self.config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total, norms, skipped = ValueStats(), [], 0
        parts = mini_batches(samples, self.config.updates_per_batch)
        for indices in parts:
            stats, norm = self._optimise(
                [samples[i] for i in indices], [values[i] for i in indices], [returns[i] for i in indices]
            )
            total += stats
            norms += [norm] if norm is not None else []
            skipped += norm is None
        metrics = {
            "critic_loss": total.loss / max(1, len(parts)),
            "critic_clip_fraction": total.clipped / max(1.0, total.tokens),
            "critic_grad_norm": sum(norms) / max(1, len(norms)),
            "critic_learning_rate": rate,
        }
        return UpdateReport(metrics, skipped)

    def _optimise(
        self, samples: list[Sample], values: list[Floats], returns: list[Floats]
    ) -> tuple[ValueStats, float | None]:
        """One optimiser step; the gradient norm, or None where something was not finite and the step was skipped."""
        self.optimizer.zero_grad(set_to_none=True)
        count, total = count_loss_tokens(samples), ValueStats()
        for indices in micro_batches(samples, self.learner.token_budget):
            new_N = self._forward([samples[i] for i in indices])
            old_N, return_N = (self._tensor([rows[i] for i in indices]) for rows in (values, returns))
            loss, clipped = value_loss(new_N, old_N, return_N, self.config.value_clip)
            (loss.sum() / count).backward()
            total += ValueStats(len(new_N), float(loss.detach().sum()) / count, float(clipped.sum()))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.learner.grad_clip)
        if non_finite([("grad_norm", norm), ("loss", torch.tensor(total.loss))]):
            self.optimizer.zero_grad(set_to_none=True)
            return total, None
        self.optimizer.step()
        return total, float(norm)

    def _forward(self, samples: list[Sample]) -> Tensor:
        """Values `(N,)` of the tokens that carry loss, row after row."""
        batch = {name: tensor.to(self.device) for name, tensor in collate(samples).items()}
        return projected(self.model.backbone, self.model.head, batch, self.learner.precision)[:, 0]

    def _tensor(self, rows: list[Floats]) -> Tensor:
        return torch.from_numpy(np.concatenate(rows)).float().to(self.device)


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Half the clipped squared error a token, with gradient, and where the clip decided it. Shapes (N,).

    The larger of the plain error and that of the value held within `clip` of its old one: moving further than `clip`
    towards the return earns nothing, moving away always costs.
    """
    held_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    plain_N, held_error_N = (values_N - returns_N) ** 2, (held_N - returns_N) ** 2
    return 0.5 * torch.maximum(plain_N, held_error_N), (held_error_N > plain_N).detach()
