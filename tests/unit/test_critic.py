"""The critic: where values are read, what its loss is by hand, and that only what should move moves."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.train.config import CriticConfig, LearnerConfig  # noqa: E402
from factagent.train.critic import Critic, value_loss  # noqa: E402
from factagent.train.samples import Sample  # noqa: E402
from factagent.train.tiny import TinyConfig, build_model, build_tokenizer  # noqa: E402

SIZE = TinyConfig(hidden_size=16, layers=2, heads=2, intermediate_size=32)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["alpha", "beta"])


@pytest.fixture
def policy(tokenizer):
    return build_model(SIZE, tokenizer)


def critic_of(policy, seed=0, token_budget=16384, grad_clip=1e9, **changes):
    learner = LearnerConfig(precision="fp32", token_budget=token_budget, grad_clip=grad_clip)
    return Critic(policy, CriticConfig(**({"learning_rate": 1e-3, "warmup_steps": 0} | changes)), learner, seed)


def make_samples(rows=9, groups=3, seed=0):
    """Rows with two replies and two observation tokens between them."""
    rng, samples = np.random.default_rng(seed), []
    for row in range(rows):
        first, second = (int(size) for size in rng.integers(1, 6, size=2))
        steps = np.array([0] * first + [-1, -1] + [1] * second)
        tokens = rng.integers(5, 200, size=len(steps))
        zeros = np.zeros(len(steps))
        prompt = rng.integers(5, 200, size=int(rng.integers(2, 9)))
        samples.append(Sample(prompt, tokens, steps >= 0, zeros, zeros, row % groups, steps))
    return samples


def by_hand(critic, sample):
    """Head of the hidden state in front of each loss token, straight from the backbone, one row at a time."""
    ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.response_ids]))[None]
    hidden = critic.model.backbone(ids).last_hidden_state[0]
    places = len(sample.prompt_ids) - 1 + np.flatnonzero(sample.loss_mask)
    return hidden[places] @ critic.model.head.weight[0] + critic.model.head.bias


def weights(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def test_values_are_those_of_the_states_before_the_sampled_tokens(policy):
    critic, samples = critic_of(policy), make_samples()
    found = critic.values(samples)
    assert [len(row) for row in found] == [int(sample.loss_mask.sum()) for sample in samples]
    for row, sample in zip(found, samples, strict=True):
        assert row == pytest.approx(by_hand(critic, sample).detach().double().numpy(), abs=1e-6)


def test_a_value_has_not_seen_its_token_but_has_seen_the_observation(policy):
    critic, (sample, *_) = critic_of(policy), make_samples()
    before = critic.values([sample])[0]
    first = int((sample.step_ids == 0).sum())
    last, observation = sample.response_ids.copy(), sample.response_ids.copy()
    last[-1] += 1
    observation[first] += 1
    unseen, seen = (
        critic.values([Sample(sample.prompt_ids, ids, sample.loss_mask, *[np.zeros(len(ids))] * 2, 0, sample.step_ids)])
        for ids in (last, observation)
    )
    assert np.array_equal(unseen[0], before)
    assert np.array_equal(seen[0][:first], before[:first])
    assert not np.isclose(seen[0][first:], before[first:], atol=1e-7).any()


def test_it_starts_as_the_policys_backbone_with_values_near_zero(policy):
    critic = critic_of(policy)
    own, theirs = critic.model.backbone.state_dict(), policy.base_model.state_dict()
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    values = np.concatenate(critic.values(make_samples()))
    assert 0 < np.abs(values).max() < 0.1
    assert torch.equal(critic_of(policy).model.head.weight, critic.model.head.weight)
    assert not torch.equal(critic_of(policy, seed=1).model.head.weight, critic.model.head.weight)
    assert float(critic.model.head.bias.detach()) == 0.0


def test_training_the_critic_leaves_the_policy_alone_and_fits_the_returns(policy):
    critic, samples, before = critic_of(policy, learning_rate=1e-2), make_samples(), weights(policy)
    returns = [np.full(int(sample.loss_mask.sum()), float(row % 2)) for row, sample in enumerate(samples)]
    losses = []
    for index in range(60):
        values = critic.values(samples)
        losses.append(critic.update(samples, values, returns, index).metrics["critic_loss"])
    assert torch.equal(weights(policy), before)
    assert losses[0] > 0.1
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("budget", [1, 40])
def test_the_cut_into_micro_batches_changes_nothing(tokenizer, budget):
    samples = make_samples()
    returns = [np.linspace(-1, 1, int(sample.loss_mask.sum())) for sample in samples]
    found = []
    for size in (10**6, budget):
        critic = critic_of(build_model(SIZE, tokenizer), token_budget=size)
        values = critic.values(samples)
        report = critic.update(samples, values, returns, 0)
        found.append((np.concatenate(values), weights_of_gradients(critic), report.metrics))
    (values, gradient, metrics), (cut_values, cut_gradient, cut_metrics) = found
    assert cut_values == pytest.approx(values, abs=1e-6)
    assert torch.allclose(cut_gradient, gradient, atol=2e-6, rtol=1e-4)
    assert cut_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    assert float(gradient.norm()) > 1e-2


def weights_of_gradients(critic):
    return torch.cat([parameter.grad.flatten() for parameter in critic.model.parameters()])


def test_the_gradient_is_that_of_half_the_mean_squared_error(policy):
    critic, samples = critic_of(policy), make_samples()
    returns = [np.linspace(-1, 1, int(sample.loss_mask.sum())) for sample in samples]
    other = critic_of(policy)
    errors = [by_hand(other, sample) - torch.tensor(row).float() for sample, row in zip(samples, returns, strict=True)]
    loss = 0.5 * (torch.cat(errors) ** 2).mean()
    loss.backward()
    report = critic.update(samples, critic.values(samples), returns, 0)
    assert torch.allclose(weights_of_gradients(critic), weights_of_gradients(other), atol=2e-6, rtol=1e-4)
    assert report.metrics["critic_loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert report.metrics["critic_clip_fraction"] == 0.0
    assert report.metrics["critic_grad_norm"] == pytest.approx(float(weights_of_gradients(other).norm()), rel=1e-4)


def test_the_value_clip_by_hand():
    """Old value .2, return 1, clip .5: inside; too far towards it; away from it; beyond it."""
    new = torch.tensor([0.5, 0.9, -0.9, 1.6], dtype=torch.float64, requires_grad=True)
    loss, clipped = value_loss(new, torch.full((4,), 0.2).double(), torch.ones(4).double(), 0.5)
    assert loss.tolist() == pytest.approx([0.125, 0.045, 0.5 * 1.9**2, 0.5 * 0.6**2])
    assert clipped.tolist() == [False, True, False, False]
    loss.sum().backward()
    assert new.grad.tolist() == pytest.approx([-0.5, 0.0, -1.9, 0.6])


def test_each_mini_batch_is_an_optimiser_step_and_the_rate_warms_up(policy):
    samples = make_samples()
    critic = critic_of(policy, updates_per_batch=2, warmup_steps=4)
    zeros = [np.ones(int(sample.loss_mask.sum())) for sample in samples]
    rates = [
        critic.update(samples, critic.values(samples), zeros, index).metrics["critic_learning_rate"]
        for index in (0, 1, 3, 9)
    ]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 1e-3, 1e-3])
    assert {int(state["step"]) for state in critic.optimizer.state.values()} == {8}


def test_an_update_that_is_not_finite_is_skipped(policy):
    samples = make_samples()
    critic = critic_of(policy, updates_per_batch=3)
    returns = [np.ones(int(sample.loss_mask.sum())) for sample in samples]
    returns[4][0] = np.nan
    report = critic.update(samples, critic.values(samples), returns, 0)
    assert report.skipped == 1
    assert bool(torch.isfinite(weights(critic.model)).all())
    assert {int(state["step"]) for state in critic.optimizer.state.values()} == {2}


def test_an_empty_batch_changes_nothing(policy):
    critic = critic_of(policy)
    before = weights(critic.model)
    assert critic.values([]) == []
    report = critic.update([], [], [], 0)
    assert (report.skipped, report.metrics["critic_loss"], report.metrics["critic_grad_norm"]) == (0, 0.0, 0.0)
    assert torch.equal(weights(critic.model), before)


def test_gradients_are_clipped(policy):
    samples = make_samples()
    critic = critic_of(policy, grad_clip=0.01)
    critic.update(samples, critic.values(samples), [np.ones(int(s.loss_mask.sum())) for s in samples], 0)
    assert float(weights_of_gradients(critic).norm()) == pytest.approx(0.01, rel=1e-3)
