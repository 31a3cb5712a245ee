"""The policy objective: clipped surrogate, KL to the reference, entropy bonus, and the LLDS stabiliser.

Everything works on token tensors of one shape (a padded micro-batch `(B, T)` or a flat list `(T,)`) and only on the
tokens of `loss_mask`: what stands elsewhere, NaN included, reaches neither the loss nor a gradient.

    loss = - sum_t w_t min(r_t A_t, clip(r_t) A_t) + kl_coef sum_t w_t KL_t - entropy_coef sum_t w_t H_t + LLDS

with `w` of `aggregation.token_weights` (credit.md section 7). Summed over the micro-batches of a batch this is the
batch's objective: add up the gradients and divide by nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from factagent.errors import ConfigError

_LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped here: exp(20) is far beyond any clip, and exp(89) would be infinite in float32."""

_KL_LIMIT = 10.0


@dataclass(frozen=True)
class LossConfig:
    """Settings of the objective; the defaults are the paper's (clip 0.2, KL 0.001, LLDS off).

    Attributes:
        ratio: "token": one importance ratio a token; "step": one an action, `exp(mean over its tokens of log r)`, as
            the paper writes it, length-normalised.
        clip_low: the ratio is clipped at `1 - clip_low`.
        clip_high: and at `1 + clip_high`.
        kl_coef: beta of the k3 estimator of the KL to the reference; 0 needs no reference.
        entropy_coef: weight of the entropy bonus.
        llds_coef: lambda of LLDS (methods.md 12.2; 0.2 where it is used); 0 turns it off.
        llds_gate: what must have become less likely as a whole before its tokens are held: "action", "response", or
            "token" (no gate).

    Raises:
        ConfigError: if a value is out of range.
    """

    ratio: Literal["token", "step"] = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.001
    entropy_coef: float = 0.0
    llds_coef: float = 0.0
    llds_gate: Literal["action", "response", "token"] = "action"

    def __post_init__(self) -> None:
        """Refuse values that would train something else than asked for."""
        if self.ratio not in ("token", "step"):
            raise ConfigError(f"ratio = {self.ratio!r}: choose 'token' or 'step'")
        if self.llds_gate not in ("action", "response", "token"):
            raise ConfigError(f"llds_gate = {self.llds_gate!r}: choose 'action', 'response' or 'token'")
        if not 0 < self.clip_low < 1:
            raise ConfigError(f"clip_low = {self.clip_low}: choose a value in (0, 1)")
        if not 0 < self.clip_high < math.inf:
            raise ConfigError(f"clip_high = {self.clip_high}: choose a positive value")
        for name in ("kl_coef", "entropy_coef", "llds_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} = {getattr(self, name)}: choose a value >= 0")


@dataclass(frozen=True)
class LossStats:
    """Sums over loss tokens, so that micro-batches add up with `+`; `means()` gives the figures to log.

    `policy`, `kl`, `entropy_bonus` and `llds` are the parts of the loss as they entered it; `clipped`, `approx_kl` (k3
    of old to new policy), `kl_ref`, `ratio`, `entropy` and `llds_held` (tokens that LLDS held) are sums over `tokens`.
    """

    tokens: float = 0.0
    policy: float = 0.0
    kl: float = 0.0
    entropy_bonus: float = 0.0
    llds: float = 0.0
    clipped: float = 0.0
    approx_kl: float = 0.0
    kl_ref: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    entropy: float = 0.0
    llds_held: float = 0.0

    def __add__(self, other: LossStats) -> LossStats:
        """The sums of both; of `ratio_max` the larger."""
        merged = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return LossStats(**merged | {"ratio_max": max(self.ratio_max, other.ratio_max)})

    def means(self) -> dict[str, float]:
        """Parts of the loss, and per loss token: clip fraction, approximate KL, KL to the reference, ratio, entropy."""
        count = max(self.tokens, 1.0)
        return {
            "loss": self.policy + self.kl + self.entropy_bonus + self.llds,
            "loss_policy": self.policy,
            "loss_kl": self.kl,
            "loss_entropy": self.entropy_bonus,
            "loss_llds": self.llds,
            "clip_fraction": self.clipped / count,
            "approx_kl": self.approx_kl / count,
            "kl_ref": self.kl_ref / count,
            "ratio_mean": self.ratio / count,
            "ratio_max": self.ratio_max,
            "entropy": self.entropy / count,
            "llds_held_share": self.llds_held / count,
        }


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    weights: Tensor,
    step_ids: Tensor,
    config: LossConfig,
    *,
    sample_ids: Tensor | None = None,
    entropy: Tensor | None = None,
    n_loss_tokens: int | None = None,
    llds_weights: Tensor | None = None,
) -> tuple[Tensor, LossStats]:
    """The objective of a micro-batch (see the module's docstring) and its diagnostics.

    Args:
        logprobs: of the policy in training, with gradient; all tensors have its shape.
        old_logprobs: of the policy that sampled.
        ref_logprobs: of the reference; may be None where `kl_coef` is 0.
        advantages: one a token, constant within a step.
        loss_mask: True where the policy sampled the token.
        weights: of `aggregation.token_weights`.
        step_ids: which step a token belongs to, unique in the micro-batch.
        config: settings.
        sample_ids: which row a token belongs to; needed by `llds_gate = "response"`.
        entropy: of the policy's distribution at each token, with gradient where `entropy_coef` > 0.
        n_loss_tokens: denominator of LLDS. Default: the loss tokens of this micro-batch, as in methods.md 12.2; give
            the whole batch's count to make the sum independent of how the batch is cut.
        llds_weights: factors on the LLDS term of each token; None: 1 everywhere.

    Returns:
        A scalar with gradient, and the sums to log.

    Raises:
        ConfigError: if the settings need a tensor that is not given.
    """
    mask = loss_mask.bool()
    new, old, weight, advantage = (x[mask] for x in (logprobs, old_logprobs, weights, advantages))
    old, weight, advantage = (x.detach().to(new.dtype) for x in (old, weight, advantage))
    steps = step_ids[mask]
    log_ratio = (new - old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    ratio = torch.exp(_segment_mean(new - old, steps) if config.ratio == "step" else log_ratio)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    policy = -(weight * surrogate).sum()
    zero = policy.detach() * 0
    kl_T = _reference_kl(new, ref_logprobs, mask, config)
    kl = zero if kl_T is None else config.kl_coef * (weight * kl_T).sum()
    bonus = _entropy_bonus(entropy, mask, weight, config)
    held = _llds(old - new, advantage, steps, None if sample_ids is None else sample_ids[mask], config)
    if held is not None and llds_weights is not None:
        held = held * llds_weights[mask].detach().to(new.dtype)
    count = int(mask.sum()) if n_loss_tokens is None else n_loss_tokens
    llds = zero if held is None else config.llds_coef * held.sum() / max(count, 1)
    loss = policy + kl + (zero if bonus is None else bonus) + llds
    with torch.no_grad():
        sums = [policy, kl, zero if bonus is None else bonus, llds]
        sums += [(clipped * advantage < ratio * advantage).sum(), (torch.expm1(log_ratio) - log_ratio).sum()]
        sums += [zero if kl_T is None else kl_T.sum(), ratio.sum(), ratio.max() if len(ratio) else zero]
        sums += [zero if entropy is None else entropy[mask].sum(), zero if held is None else (held > 0).sum()]
        stats = LossStats(float(mask.sum()), *torch.stack([x.detach().double() for x in sums]).tolist())
    return loss, stats


def k3_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The k3 estimator of KL(policy || reference) a token, `exp(d) - d - 1` with `d = ref - new` clamped to +-10.

    Never negative, 0 where both agree (methods.md 3.5).
    """
    difference = (ref_logprobs - logprobs).clamp(-_KL_LIMIT, _KL_LIMIT)
    return torch.expm1(difference) - difference


def _reference_kl(new: Tensor, ref_logprobs: Tensor | None, mask: Tensor, config: LossConfig) -> Tensor | None:
    """KL a token, or None where there is no reference."""
    if ref_logprobs is None:
        if config.kl_coef > 0:
            raise ConfigError(
                f"kl_coef = {config.kl_coef} needs the reference's log-probabilities; pass them or set it to 0"
            )
        return None
    return k3_kl(new, ref_logprobs[mask].detach().to(new.dtype))


def _entropy_bonus(entropy: Tensor | None, mask: Tensor, weight: Tensor, config: LossConfig) -> Tensor | None:
    """Minus the weighted entropy, or None where it is off."""
    if config.entropy_coef == 0:
        return None
    if entropy is None:
        raise ConfigError(f"entropy_coef = {config.entropy_coef} needs the entropy a token; pass it or set it to 0")
    return -config.entropy_coef * (weight * entropy[mask]).sum()


def _llds(drop: Tensor, advantage: Tensor, steps: Tensor, rows: Tensor | None, config: LossConfig) -> Tensor | None:
    """`gate * max(0, drop)` a token (methods.md 12.2), or None where LLDS is off.

    `drop` is old minus new log-probability. Held are tokens with advantage >= 0 whose action (or response) lost
    likelihood in the sum over its such tokens; the gate carries no gradient.
    """
    if config.llds_coef == 0:
        return None
    preserved = (advantage >= 0).to(drop.dtype)
    if config.llds_gate == "token":
        return preserved * drop.clamp(min=0)
    if config.llds_gate == "response" and rows is None:
        raise ConfigError("llds_gate = 'response' needs sample_ids")
    segments = steps if rows is None or config.llds_gate == "action" else rows
    gate = (_segment_sum((preserved * drop).detach(), segments) > 0).to(drop.dtype)
    return gate * preserved * drop.clamp(min=0)


def _segment_sum(values: Tensor, segments: Tensor) -> Tensor:
    """The sum of `values` over each segment, handed back to each of its members."""
    unique, inverse = torch.unique(segments, return_inverse=True)
    totals = torch.zeros(len(unique), dtype=values.dtype, device=values.device).index_add(0, inverse, values)
    return totals[inverse]


def _segment_mean(values: Tensor, segments: Tensor) -> Tensor:
    """The mean of `values` over each segment, clamped like any log-ratio, handed back to each of its members."""
    mean = _segment_sum(values, segments) / _segment_sum(torch.ones_like(values), segments)
    return mean.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)


def non_finite(tensors: Mapping[str, Tensor | None] | Iterable[tuple[str, Tensor | None]]) -> list[str]:
    """Names of the tensors that hold NaN or infinity, in order (None counts as finite).

    Use it on the loss, on log-probabilities under the mask, and on `(name, parameter.grad)`; an optimiser step must not
    be taken where it returns anything (reliability.md R5).
    """
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    return [name for name, tensor in pairs if tensor is not None and not bool(torch.isfinite(tensor).all())]
