"""The learner: samples in, optimiser steps out. It is blind to the method; every figure it needs is in the samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from factagent.train.config import LearnerConfig
from factagent.train.forward import masked_logits, token_entropy, token_logprobs
from factagent.train.loss import LossConfig, LossStats, non_finite, policy_loss
from factagent.train.samples import Sample, collate, count_loss_tokens, micro_batches, mini_batches, step_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class UpdateReport:
    """What one batch did: means of `LossStats`, gradient norm, and how many updates were skipped as not finite."""

    metrics: dict[str, float]
    skipped: int


class Learner:
    """Holds the policy, its frozen reference and the optimiser.

    Args:
        model: the policy, trained in place, kept in eval mode (no dropout: old and new log-probabilities must agree).
        config: see `LearnerConfig`.
        temperature: at which the samples were drawn.
        reference: the policy of the KL term; by default a copy of `model` as it is now, none where `kl_coef` is 0.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        temperature: float,
        reference: PreTrainedModel | None = None,
    ) -> None:
        self.model = model.eval()
        self.config = config
        self.loss_config = LossConfig(**{name: getattr(config, name) for name in LossConfig.__dataclass_fields__})
        self.temperature = temperature
        needs_reference = config.kl_coef > 0
        self.reference = (reference or copy.deepcopy(model)).eval().requires_grad_(False) if needs_reference else None
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )
        self.device = next(model.parameters()).device

    def update(self, samples: Sequence[Sample], batch_index: int) -> UpdateReport:
        """Train on one batch of samples.

        Args:
            samples: of all groups of the batch; an empty batch changes nothing.
            batch_index: 0-based; drives the warm-up.
        """
        rate = self.config.learning_rate * min(1.0, (batch_index + 1) / max(1, self.config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total, norms, skipped = LossStats(), [], 0
        parts = mini_batches(samples, self.config.updates_per_batch)
        for indices in parts:
            stats, norm = self._optimise([samples[i] for i in indices])
            total += stats
            norms += [norm] if norm is not None else []
            skipped += norm is None
        means = total.means()
        # The parts of the loss are sums over optimiser steps; the figure to log is the mean of a step's loss.
        means |= {name: value / max(1, len(parts)) for name, value in means.items() if name.startswith("loss")}
        metrics = means | {"grad_norm": sum(norms) / max(1, len(norms)), "learning_rate": rate}
        return UpdateReport(metrics, skipped)

    def _optimise(self, samples: list[Sample]) -> tuple[LossStats, float | None]:
        """One optimiser step; the gradient norm, or None where something was not finite and the step was skipped."""
        self.optimizer.zero_grad(set_to_none=True)
        weights, total = step_weights(samples), LossStats()
        n_loss_tokens = count_loss_tokens(samples)
        for indices in micro_batches(samples, self.config.token_budget):
            batch = collate([samples[i] for i in indices], [weights[i] for i in indices])
            total += self._backward({name: tensor.to(self.device) for name, tensor in batch.items()}, n_loss_tokens)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        # A NaN can hide from the gradient (clamps and minima drop it), so the loss is looked at too.
        if non_finite([("grad_norm", norm), ("loss", torch.tensor(total.means()["loss"]))]):
            self.optimizer.zero_grad(set_to_none=True)
            return total, None
        self.optimizer.step()
        return total, float(norm)

    def _backward(self, batch: dict[str, torch.Tensor], n_loss_tokens: int) -> LossStats:
        mask = batch["loss_mask"]
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                logits = masked_logits(self.reference, batch, self.config.precision)
                reference = token_logprobs(logits, batch, self.temperature)
        logits = masked_logits(self.model, batch, self.config.precision)
        logprobs = token_logprobs(logits, batch, self.temperature)
        with torch.set_grad_enabled(self.config.entropy_coef > 0):
            entropy = token_entropy(logits, self.temperature)
        flat = {name: batch[name][mask] for name in ("old_logprobs", "advantages", "weights", "step_ids", "sample_ids")}
        loss, stats = policy_loss(
            logprobs,
            flat["old_logprobs"],
            reference,
            flat["advantages"],
            mask[mask],
            flat["weights"],
            flat["step_ids"],
            self.loss_config,
            sample_ids=flat["sample_ids"],
            entropy=entropy,
            n_loss_tokens=n_loss_tokens,
        )
        loss.backward()
        return stats
