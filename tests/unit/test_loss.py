"""The policy objective against an independent NumPy implementation, finite differences, and worked vectors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from factagent.errors import ConfigError
from factagent.train.loss import LossConfig, LossStats, k3_kl, non_finite, policy_loss


def reference_loss(new, old, ref, adv, mask, weights, steps, rows, entropy, config, n_tokens=None):
    """The objective as plain loops over steps and tokens (float64), written from credit.md 7 and methods.md 12.2."""
    total = 0.0
    tokens = list(zip(*np.nonzero(mask), strict=True))
    by_step: dict[int, list] = {}
    by_row: dict[int, list] = {}
    for token in tokens:
        by_step.setdefault(int(steps[token]), []).append(token)
        by_row.setdefault(int(rows[token]), []).append(token)
    for members in by_step.values():
        log_ratios = [new[t] - old[t] for t in members]
        shared = math.exp(sum(log_ratios) / len(log_ratios))
        for token, log_ratio in zip(members, log_ratios, strict=True):
            ratio = shared if config.ratio == "step" else math.exp(log_ratio)
            bounded = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            d = min(max(ref[token] - new[token], -10.0), 10.0)
            total -= weights[token] * min(ratio * adv[token], bounded * adv[token])
            total += config.kl_coef * weights[token] * (math.exp(d) - d - 1)
            total -= config.entropy_coef * weights[token] * entropy[token]
    segments = by_row if config.llds_gate == "response" else by_step
    for members in segments.values():
        kept = [t for t in members if adv[t] >= 0]
        drop = sum(old[t] - new[t] for t in kept)
        if config.llds_gate == "token" or drop > 0:
            total += config.llds_coef * sum(max(0.0, old[t] - new[t]) for t in kept) / (n_tokens or len(tokens))
    return total


def make_batch(seed, rows=3, length=12):
    """Random rows of several steps with observations (masked) between them."""
    rng = np.random.default_rng(seed)
    steps = np.full((rows, length), -1)
    step = 0
    for row in range(rows):
        position = int(rng.integers(0, 3))
        while position < length:
            size = int(rng.integers(1, 5))
            steps[row, position : position + size] = step
            position += size + int(rng.integers(0, 3))
            step += 1
    mask = steps >= 0
    per_step = rng.normal(size=step)
    per_step[0] = 0.0  # the boundary of "non-negative advantage"
    adv = np.where(mask, per_step[np.maximum(steps, 0)], 0.0)
    old = -rng.exponential(size=mask.shape)
    new = old + rng.normal(scale=0.3, size=mask.shape)
    ref = old + rng.normal(scale=0.3, size=mask.shape)
    weights = np.where(mask, rng.uniform(0.01, 0.1, size=mask.shape), 0.0)
    row_ids = np.where(mask, np.arange(rows)[:, None], -1)
    return new, old, ref, adv, mask, weights, steps, row_ids, rng.exponential(size=mask.shape)


def run(batch, config, dtype=torch.float64, n_tokens=None):
    """policy_loss on arrays: value, gradient, stats."""
    new, old, ref, adv, mask, weights, steps, rows, entropy = batch
    logprobs = torch.tensor(new, dtype=dtype, requires_grad=True)
    floats = [torch.tensor(x, dtype=dtype) for x in (old, ref, adv, weights, entropy)]
    loss, stats = policy_loss(
        logprobs,
        floats[0],
        floats[1],
        floats[2],
        torch.tensor(mask),
        floats[3],
        torch.tensor(steps),
        config,
        sample_ids=torch.tensor(rows),
        entropy=floats[4],
        n_loss_tokens=n_tokens,
    )
    loss.backward()
    return loss.item(), logprobs.grad.double().numpy(), stats


CONFIGS = [
    LossConfig(
        ratio=ratio, clip_low=0.2, clip_high=high, kl_coef=0.05, entropy_coef=0.01, llds_coef=llds, llds_gate=gate
    )
    for ratio, high, (llds, gate) in itertools.product(
        ("token", "step"), (0.2, 0.28), ((0.0, "action"), (0.2, "action"), (0.2, "response"), (0.3, "token"))
    )
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_loss_and_gradient_equal_the_reference_in_float64(config):
    for seed in range(3):
        batch = make_batch(seed)
        loss, gradient, _ = run(batch, config)
        assert loss == pytest.approx(reference_loss(*batch, config), abs=1e-10)
        numeric = np.zeros_like(gradient)
        for token in zip(*np.nonzero(batch[4]), strict=True):
            sides = []
            for shift in (1e-6, -1e-6):
                moved = batch[0].copy()
                moved[token] += shift
                sides.append(reference_loss(moved, *batch[1:], config))
            numeric[token] = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose(gradient, numeric, atol=2e-9)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_float32_is_within_1e_6_of_the_reference(config):
    batch = make_batch(11)
    loss, gradient, _ = run(batch, config, torch.float32)
    _, exact, _ = run(batch, config)
    assert loss == pytest.approx(reference_loss(*batch, config), abs=1e-6)
    np.testing.assert_allclose(gradient, exact, atol=1e-6)


def analytic_gradient(new, old, ref, adv, mask, weights, beta, clip=0.2):
    """By hand: d/dlp of -w min(rA, clip(r)A) is -w r A unless the clip binds; of k3, w beta (1 - exp(ref - new))."""
    ratio = np.exp(new - old)
    binds = ((adv > 0) & (ratio > 1 + clip)) | ((adv < 0) & (ratio < 1 - clip))
    return np.where(mask, weights * (beta * (1 - np.exp(ref - new)) - np.where(binds, 0.0, ratio * adv)), 0.0)


def test_token_gradient_equals_the_one_derived_by_hand():
    batch = make_batch(4)
    _, gradient, _ = run(batch, LossConfig(kl_coef=0.05))
    np.testing.assert_allclose(gradient, analytic_gradient(*batch[:6], 0.05), atol=1e-10)


def test_first_update_has_the_policy_gradient_and_no_clip():
    new, _, ref, adv, mask, weights, steps, rows, entropy = make_batch(5)
    batch = (new, new, ref, adv, mask, weights, steps, rows, entropy)
    loss, gradient, stats = run(batch, LossConfig(kl_coef=0.0))
    assert loss == pytest.approx(-(weights * adv).sum(), abs=1e-12)
    np.testing.assert_allclose(gradient, -weights * adv * mask, atol=1e-12)
    means = stats.means()
    assert (means["clip_fraction"], means["approx_kl"], means["ratio_mean"]) == (0.0, 0.0, 1.0)


def test_step_ratio_with_one_token_a_step_is_the_token_ratio():
    batch = list(make_batch(6))
    batch[6] = np.where(batch[4], np.arange(batch[4].size).reshape(batch[4].shape), -1)
    token, step = (run(tuple(batch), LossConfig(ratio=ratio)) for ratio in ("token", "step"))
    assert token[0] == pytest.approx(step[0], abs=1e-12)
    np.testing.assert_allclose(token[1], step[1], atol=1e-12)


def llds_vector(advantage, gate="action", llds=0.2, llds_weights=None):
    """methods.md 14: two actions with Delta (0.5, -0.2) and (0.2, -0.3)."""
    delta = torch.tensor([0.5, -0.2, 0.2, -0.3], dtype=torch.float64)
    old = torch.full((4,), -1.0, dtype=torch.float64)
    new = (old - delta).requires_grad_()
    adv = torch.full((4,), advantage, dtype=torch.float64)
    config = LossConfig(kl_coef=0.0, llds_coef=llds, llds_gate=gate)
    _, stats = policy_loss(
        new,
        old,
        None,
        adv,
        torch.ones(4, dtype=torch.bool),
        torch.zeros(4),
        torch.tensor([0, 0, 1, 1]),
        config,
        sample_ids=torch.zeros(4, dtype=torch.long),
        llds_weights=None if llds_weights is None else torch.tensor(llds_weights, dtype=torch.float64),
    )
    return stats


def test_llds_vector_of_the_specification():
    assert llds_vector(1.0).llds == pytest.approx(0.025, abs=1e-12)
    assert llds_vector(1.0).llds_held == 1
    assert llds_vector(-1.0).llds == 0.0
    assert llds_vector(0.0).llds == pytest.approx(0.025, abs=1e-12)
    assert llds_vector(1.0, "token").llds == pytest.approx(0.2 * 0.7 / 4, abs=1e-12)
    assert llds_vector(1.0, "response").llds == pytest.approx(0.2 * 0.7 / 4, abs=1e-12)  # Delta sums to +0.2 in all
    assert llds_vector(1.0, llds=0.0).llds == 0.0


def test_llds_weights_scale_the_pull_of_their_tokens_and_no_gate():
    assert llds_vector(1.0, llds_weights=[1.0] * 4).llds == pytest.approx(0.025, abs=1e-12)
    assert llds_vector(1.0, llds_weights=[0.5, 0.0, 0.0, 0.0]).llds == pytest.approx(0.0125, abs=1e-12)
    # The second token weighs nothing, and its gain of .2 still counts in the gate of its action (.5 - .2 > 0).
    assert llds_vector(1.0, llds_weights=[0.0, 1.0, 1.0, 1.0]).llds == 0.0
    assert llds_vector(1.0, "token", llds_weights=[0.0, 1.0, 1.0, 1.0]).llds == pytest.approx(0.2 * 0.2 / 4, abs=1e-12)


def test_micro_batches_add_up_to_the_batch_including_llds():
    batch = make_batch(8, rows=4)
    config = LossConfig(kl_coef=0.01, llds_coef=0.2)
    tokens = int(batch[4].sum())
    whole, gradient, stats = run(batch, config, n_tokens=tokens)
    parts = [run(tuple(x[rows] for x in batch), config, n_tokens=tokens) for rows in (slice(0, 1), slice(1, 4))]
    assert whole == pytest.approx(sum(part[0] for part in parts), abs=1e-12)
    np.testing.assert_allclose(gradient, np.concatenate([part[1] for part in parts]), atol=1e-12)
    merged = parts[0][2] + parts[1][2]
    assert merged.means() == pytest.approx(stats.means(), abs=1e-12)


def test_masked_positions_may_hold_nan_without_effect():
    new, old, ref, adv, mask, weights, steps, rows, entropy = make_batch(9)
    dirty = tuple(np.where(mask, x, np.nan) for x in (new, old, ref, adv))
    config = LossConfig(ratio="step", llds_coef=0.2)
    clean = run((new, old, ref, adv, mask, weights, steps, rows, entropy), config)
    poisoned = run((*dirty, mask, weights, steps, rows, entropy), config)
    assert clean[0] == poisoned[0]
    np.testing.assert_array_equal(clean[1], poisoned[1])
    assert (clean[1][~mask] == 0).all()


def test_extreme_log_ratios_stay_finite():
    one = torch.ones(1, dtype=torch.bool)
    for shift in (500.0, -500.0):
        new = torch.tensor([shift], requires_grad=True)
        loss, stats = policy_loss(
            new, torch.zeros(1), torch.zeros(1), -torch.ones(1), one, torch.ones(1), torch.zeros(1), LossConfig()
        )
        loss.backward()
        assert non_finite({"loss": loss, "grad": new.grad}) == []
        assert all(math.isfinite(value) for value in stats.means().values())


def test_clip_fraction_counts_tokens_where_the_clip_binds():
    new = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.0])
    adv = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    ones = torch.ones(5)
    _, stats = policy_loss(new, torch.zeros(5), None, adv, ones.bool(), ones, torch.arange(5), LossConfig(kl_coef=0.0))
    assert stats.means()["clip_fraction"] == pytest.approx(2 / 5)
    assert stats.means()["ratio_max"] == pytest.approx(math.exp(0.5))


def test_k3_is_zero_where_equal_positive_elsewhere_and_clamped():
    ref = torch.tensor([-1.0, -1.0, -1.0, 50.0], dtype=torch.float64)
    new = torch.tensor([-1.0, -1.5, -0.5, -50.0], dtype=torch.float64)
    expected = [0.0, math.exp(0.5) - 1.5, math.exp(-0.5) - 0.5, math.exp(10) - 11]
    assert k3_kl(new, ref).tolist() == pytest.approx(expected, abs=1e-9)


def test_an_empty_mask_gives_zero_with_a_gradient():
    new = torch.tensor([-1.0], requires_grad=True)
    loss, stats = policy_loss(
        new, new.detach(), None, new.detach(), torch.zeros(1), new.detach(), torch.zeros(1), LossConfig(kl_coef=0.0)
    )
    loss.backward()
    assert (loss.item(), new.grad.tolist(), stats.tokens) == (0.0, [0.0], 0.0)


def test_settings_that_need_a_missing_tensor_are_refused():
    tensor = torch.zeros(2)
    arguments = (tensor, tensor, None, tensor, torch.ones(2), tensor, torch.zeros(2))
    with pytest.raises(ConfigError, match=r"kl_coef = 0\.001 needs the reference"):
        policy_loss(*arguments, LossConfig())
    with pytest.raises(ConfigError, match=r"entropy_coef = 0\.1 needs the entropy"):
        policy_loss(*arguments, LossConfig(kl_coef=0.0, entropy_coef=0.1))
    with pytest.raises(ConfigError, match="needs sample_ids"):
        policy_loss(*arguments, LossConfig(kl_coef=0.0, llds_coef=0.1, llds_gate="response"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ratio", "sequence"),
        ("llds_gate", "word"),
        ("clip_low", 0.0),
        ("clip_low", 1.0),
        ("clip_high", -0.1),
        ("kl_coef", -1.0),
        ("entropy_coef", math.inf),
        ("llds_coef", math.nan),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        LossConfig(**{field: value})


def test_non_finite_names_what_is_poisoned():
    tensors = {"a": torch.tensor([1.0, math.nan]), "b": torch.ones(2), "c": None, "d": torch.tensor(-math.inf)}
    assert non_finite(tensors) == ["a", "d"]
    assert non_finite([("x", torch.zeros(3))]) == []


def test_stats_of_nothing_are_zero():
    assert set(LossStats().means().values()) == {0.0}


def test_diagnostics_by_hand():
    batch = make_batch(12)
    new, old, ref, _, mask, weights, *_, entropy = batch
    _, _, stats = run(batch, LossConfig(kl_coef=0.05, entropy_coef=0.02))
    ratio, d = np.exp(new - old)[mask], (ref - new)[mask]
    means = stats.means()
    assert stats.tokens == mask.sum()
    assert means["approx_kl"] == pytest.approx((ratio - 1 - np.log(ratio)).mean(), abs=1e-12)
    assert means["kl_ref"] == pytest.approx((np.exp(d) - d - 1).mean(), abs=1e-12)
    assert means["ratio_mean"] == pytest.approx(ratio.mean(), abs=1e-12)
    assert means["entropy"] == pytest.approx(entropy[mask].mean(), abs=1e-12)
    assert means["loss_kl"] == pytest.approx(0.05 * (weights[mask] * (np.exp(d) - d - 1)).sum(), abs=1e-12)
    assert means["loss_entropy"] == pytest.approx(-0.02 * (weights * entropy).sum(), abs=1e-12)
    assert means["loss"] == pytest.approx(sum(means[f"loss_{name}"] for name in ("policy", "kl", "entropy", "llds")))


def test_no_gradient_reaches_the_old_policy_or_the_reference():
    new, old, ref = (torch.tensor([-1.0, -2.0 + shift], requires_grad=True) for shift in (0.0, 0.3, -0.2))
    ones = torch.ones(2)
    config = LossConfig(kl_coef=0.1, llds_coef=0.2)
    loss, _ = policy_loss(new, old, ref, ones, ones, ones, torch.arange(2), config)
    loss.backward()
    assert new.grad is not None
    assert ref.grad is None
    assert old.grad is None
