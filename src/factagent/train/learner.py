"""The learner: samples in, optimiser steps out. It is blind to the method; every figure it needs is in the samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from factagent.errors import ConfigError
from factagent.train.aggregation import token_weights
from factagent.train.config import LearnerConfig
from factagent.train.forward import masked_logits, token_entropy, token_logprobs
from factagent.train.gae import Floats, split_at
from factagent.train.loss import LossConfig, LossStats, non_finite, policy_loss
from factagent.train.samples import Sample, collate, count_loss_tokens, micro_batches, mini_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class UpdateReport:
    """What one batch did: means of `LossStats`, gradient norm, and how many updates were skipped as not finite."""

    metrics: dict[str, float]
    skipped: int

    def joined(self, other: UpdateReport) -> UpdateReport:
        """The figures of both; an update that either skipped counts."""
        return UpdateReport(self.metrics | other.metrics, self.skipped + other.skipped)


class Learner:
    """Holds the policy, its frozen reference and the optimiser.

    Args:
        model: the policy, trained in place, kept in eval mode (no dropout: old and new log-probabilities must agree).
        config: see `LearnerConfig`.
        temperature: at which the samples were drawn.
        reference: the policy of the KL term; by default a copy of `model` as it is now, none where `kl_coef` is 0.
        keep_reference: keep one all the same, for `divergences` (KL in the reward).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        temperature: float,
        reference: PreTrainedModel | None = None,
        *,
        keep_reference: bool = False,
    ) -> None:
        self.model = model.eval()
        self.config = config
        self.loss_config = LossConfig(**{name: getattr(config, name) for name in LossConfig.__dataclass_fields__})
        self.temperature = temperature
        needs_reference = config.kl_coef > 0 or keep_reference
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

    def divergences(self, samples: Sequence[Sample]) -> list[Floats]:
        """`log pi_old - log pi_ref` of each token that carries loss, one array a sample (nats).

        The plain estimator of the KL, which may be negative: what a KL in the reward subtracts (methods.md 3.5).

        Raises:
            ConfigError: there is no reference.
        """
        if self.reference is None:
            raise ConfigError("a KL in the reward needs a reference; build the learner with keep_reference")
        found: dict[int, Floats] = {}
        for indices in micro_batches(samples, self.config.token_budget):
            rows = [samples[i] for i in indices]
            batch = {name: tensor.to(self.device) for name, tensor in collate(rows).items()}
            reference_N = self._frozen_logprobs(self.reference, batch).double().cpu().numpy()
            old_N = np.concatenate([row.old_logprobs[row.loss_mask] for row in rows])
            counts = [count_loss_tokens([row]) for row in rows]
            found |= zip(indices, split_at(old_N - reference_N, counts), strict=True)
        return [found[i] for i in range(len(samples))]

    def _frozen_logprobs(self, model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return token_logprobs(masked_logits(model, batch, self.config.precision), batch, self.temperature)

    def _optimise(self, samples: list[Sample]) -> tuple[LossStats, float | None]:
        """One optimiser step; the gradient norm, or None where something was not finite and the step was skipped."""
        self.optimizer.zero_grad(set_to_none=True)
        weights, total = token_weights(samples, self.config.aggregation), LossStats()
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
        # A reference kept for the reward alone has no part in the loss.
        needed = self.reference if self.config.kl_coef > 0 else None
        reference = None if needed is None else self._frozen_logprobs(needed, batch)
        logits = masked_logits(self.model, batch, self.config.precision)
        logprobs = token_logprobs(logits, batch, self.temperature)
        with torch.set_grad_enabled(self.config.entropy_coef > 0):
            entropy = token_entropy(logits, self.temperature)
        names = ("old_logprobs", "advantages", "weights", "llds_weights", "step_ids", "sample_ids")
        flat = {name: batch[name][mask] for name in names}
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
            llds_weights=flat["llds_weights"],
        )
        loss.backward()
        return stats
