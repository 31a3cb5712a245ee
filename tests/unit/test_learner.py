"""The learner: the objective does not depend on how a batch is cut, and only what should count counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.credit.assign import assign_credit  # noqa: E402
from factagent.credit.config import CreditConfig  # noqa: E402
from factagent.credit.encoders import load_encoder  # noqa: E402
from factagent.train.config import LearnerConfig  # noqa: E402
from factagent.train.forward import masked_logits, token_entropy, token_logprobs  # noqa: E402
from factagent.train.learner import Learner  # noqa: E402
from factagent.train.loop import samples_of  # noqa: E402
from factagent.train.samples import Sample, collate, step_weights  # noqa: E402
from factagent.train.tiny import TinyConfig, build_model, build_tokenizer  # noqa: E402
from factagent.types import (  # noqa: E402
    Answer,
    Assert,
    Generation,
    Group,
    Invalid,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

SIZE = TinyConfig(hidden_size=16, layers=2, heads=2, intermediate_size=32)
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["alpha", "beta"])


@pytest.fixture
def model(tokenizer):
    model = build_model(SIZE, tokenizer)
    with torch.no_grad():  # wider than Qwen2's initial weights, so that distributions are far from uniform
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else None
    return model


def make_samples(model, seed=0, rows=12, groups=4, temperature=TEMPERATURE, advantage=None):
    """Rows of several lengths whose old log-probabilities are the model's own at the temperature."""
    rng, samples = np.random.default_rng(seed), []
    for row in range(rows):
        prompt, response = (rng.integers(5, 200, size=int(rng.integers(*bounds))) for bounds in ((2, 9), (1, 12)))
        value = float(rng.normal()) if advantage is None else advantage
        size = len(response)
        samples.append(
            Sample(
                prompt,
                response,
                np.ones(size, bool),
                own_logprobs(model, prompt, response, temperature),
                np.full(size, value),
                row % groups,
                np.zeros(size, np.int64),
            )
        )
    return samples


def own_logprobs(model, prompt, response, temperature):
    """Straight from the model's own forward pass, one row at a time."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(response)[:, None])[:, 0].double().numpy()


def config(**changes):
    plain = {"learning_rate": 1e-3, "grad_clip": 1e9, "precision": "fp32", "kl_coef": 0.0}
    return LearnerConfig(**(plain | changes))


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def weights(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def learn(tokenizer, samples, batch_index=0, temperature=TEMPERATURE, reference=None, **changes):
    """One update of a fresh copy of the model: report, gradients, weights."""
    model = build_model(SIZE, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else None
    learner = Learner(model, config(**changes), temperature, reference)
    report = learner.update(samples, batch_index)
    return report, gradients(model), weights(model)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"kl_coef": 0.5, "entropy_coef": 0.1, "ratio": "step", "llds_coef": 0.2},
        {"kl_coef": 0.5, "entropy_coef": 0.1, "aggregation": "token-mean"},
        {"kl_coef": 0.5, "entropy_coef": 0.1, "aggregation": "trajectory-mean"},
    ],
)
def test_the_cut_into_micro_batches_changes_nothing(tokenizer, model, extra):
    other = build_model(SIZE.model_copy(update={"seed": 1}), tokenizer)
    samples = make_samples(model)
    for sample in samples:  # off policy, so that clipping and LLDS act
        sample.old_logprobs[:] += 0.1
    whole, expected, _ = learn(tokenizer, samples, reference=other, token_budget=10**6, **extra)
    for budget in (1, 40, 90):
        report, found, _ = learn(tokenizer, samples, reference=other, token_budget=budget, **extra)
        assert torch.allclose(found, expected, atol=2e-6, rtol=1e-4)
        for name, value in whole.metrics.items():
            assert report.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert float(expected.norm()) > 1e-2


def test_the_gradient_on_policy_is_that_of_the_weighted_likelihood_at_the_sampling_temperature(tokenizer, model):
    samples = make_samples(model)
    report, found, _ = learn(tokenizer, samples)
    total = torch.zeros(())
    for sample, weight in zip(samples, step_weights(samples), strict=True):
        logits = model(torch.tensor([[*sample.prompt_ids, *sample.response_ids]])).logits
        logits = logits[0, len(sample.prompt_ids) - 1 : -1] / TEMPERATURE
        logprobs = torch.log_softmax(logits, -1).gather(1, torch.tensor(sample.response_ids)[:, None])[:, 0]
        total = total - (torch.tensor(weight * sample.advantages).float() * logprobs).sum()
    total.backward()
    assert torch.allclose(found, gradients(model), atol=2e-6, rtol=1e-4)
    assert report.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert report.metrics["clip_fraction"] == 0.0
    assert report.metrics["grad_norm"] == pytest.approx(float(gradients(model).norm()), rel=1e-4)


def test_each_aggregation_has_the_gradient_of_the_mean_that_it_names(tokenizer, model):
    samples = [replace(sample, member=row // 8) for row, sample in enumerate(make_samples(model))]

    def gradient_of(means):
        model.zero_grad()
        total = torch.zeros(())
        for part in means:
            logprobs = []
            for sample in part:
                logits = model(torch.tensor([[*sample.prompt_ids, *sample.response_ids]])).logits
                logits = logits[0, len(sample.prompt_ids) - 1 : -1] / TEMPERATURE
                chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(sample.response_ids)[:, None])[:, 0]
                logprobs.append(torch.tensor(sample.advantages).float() * chosen)
            total = total - torch.cat(logprobs).mean() / len(means)
        total.backward()
        return gradients(model)

    # Four groups of two trajectories, of two rows and one; every row is a step.
    trajectories = [[s for s in samples if (s.group, s.member) == (g, m)] for g in range(4) for m in range(2)]
    assert sorted(len(part) for part in trajectories) == [1] * 4 + [2] * 4
    cases = {
        "step-mean": [[s] for s in samples],
        "token-mean": [samples],
        "trajectory-mean": trajectories,
    }
    found = {}
    for aggregation, means in cases.items():
        _, found[aggregation], _ = learn(tokenizer, samples, aggregation=aggregation)
        assert torch.allclose(found[aggregation], gradient_of(means), atol=2e-6, rtol=1e-4)
    assert not torch.allclose(found["step-mean"], found["token-mean"], atol=1e-4)
    assert not torch.allclose(found["token-mean"], found["trajectory-mean"], atol=1e-4)


def test_another_temperature_than_the_sampling_one_is_seen_as_off_policy(tokenizer, model):
    report, _, _ = learn(tokenizer, make_samples(model), temperature=1.0)
    assert report.metrics["approx_kl"] > 1e-3
    assert report.metrics["clip_fraction"] > 0.0


def test_bf16_is_close_to_fp32(tokenizer, model):
    samples = make_samples(model, rows=24)
    full, expected, _ = learn(tokenizer, samples, kl_coef=0.1)
    half, found, _ = learn(tokenizer, samples, kl_coef=0.1, precision="bf16")
    assert not torch.equal(found, expected)
    assert float(torch.cosine_similarity(found, expected, dim=0)) > 0.995
    assert half.metrics["loss"] == pytest.approx(full.metrics["loss"], abs=0.02)
    assert half.metrics["grad_norm"] == pytest.approx(full.metrics["grad_norm"], rel=0.05)


def test_several_updates_a_batch_with_llds(tokenizer, model):
    samples = make_samples(model, rows=12, groups=4, advantage=0.0)
    for sample in samples:  # the first groups push likelihood down; LLDS may hold those of the later ones
        sample.advantages[:] = -3.0 if sample.group < 2 else 0.0
    fast = {"learning_rate": 3e-2, "updates_per_batch": 2}
    plain, _, without = learn(tokenizer, samples, **fast)
    held, _, with_llds = learn(tokenizer, samples, llds_coef=0.2, **fast)
    assert plain.metrics["loss_llds"] == 0.0
    assert held.metrics["loss_llds"] > 0.0
    assert held.metrics["llds_held_share"] > 0.0
    assert not torch.equal(without, with_llds)
    once, _, _ = learn(tokenizer, samples, learning_rate=3e-2, llds_coef=0.2)
    assert once.metrics["loss_llds"] == pytest.approx(0.0, abs=1e-6)  # on policy no likelihood has dropped


def test_each_mini_batch_is_an_optimiser_step(tokenizer, model):
    samples = make_samples(model)
    for updates, expected in ((1, 1), (3, 3), (9, 4)):  # never more updates than groups
        copy = build_model(SIZE, tokenizer)
        learner = Learner(copy, config(updates_per_batch=updates), TEMPERATURE)
        learner.update(samples, 0)
        steps = {int(state["step"]) for state in learner.optimizer.state.values()}
        assert steps == {expected}


def test_the_learning_rate_warms_up_over_batches(tokenizer, model):
    samples = make_samples(model)
    found = [learn(tokenizer, samples, batch_index=i, warmup_steps=4)[0].metrics["learning_rate"] for i in (0, 1, 3, 9)]
    assert found == pytest.approx([0.25e-3, 0.5e-3, 1e-3, 1e-3])
    assert learn(tokenizer, samples)[0].metrics["learning_rate"] == 1e-3


def test_the_reference_is_a_frozen_copy_and_absent_without_its_coefficient(tokenizer, model):
    learner = Learner(model, config(kl_coef=1.0, learning_rate=1e-2), TEMPERATURE)
    initial, samples = weights(learner.reference), make_samples(model)
    first = learner.update(samples, 0)
    second = learner.update(samples, 1)
    assert torch.equal(weights(learner.reference), initial)
    assert not torch.equal(weights(model), initial)
    assert not any(parameter.requires_grad for parameter in learner.reference.parameters())
    assert first.metrics["kl_ref"] == pytest.approx(0.0, abs=1e-7)
    assert second.metrics["kl_ref"] > 1e-5
    assert Learner(model, config(), TEMPERATURE).reference is None


def test_gradients_are_clipped_and_the_norm_reported_is_the_one_before(tokenizer, model):
    samples = make_samples(model)
    _, full, _ = learn(tokenizer, samples)
    report, clipped, _ = learn(tokenizer, samples, grad_clip=0.01)
    assert report.metrics["grad_norm"] == pytest.approx(float(full.norm()), rel=1e-5)
    assert float(clipped.norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("broken", ["advantages", "old_logprobs"])
def test_an_update_that_is_not_finite_is_skipped(tokenizer, model, broken):
    samples = make_samples(model)
    getattr(samples[5], broken)[0] = float("nan")
    learner = Learner(model, config(updates_per_batch=4), TEMPERATURE)
    report = learner.update(samples, 0)
    assert report.skipped == 1  # only the mini-batch that holds the row
    assert bool(torch.isfinite(weights(model)).all())
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {3}


def test_an_empty_batch_changes_nothing(tokenizer, model):
    learner = Learner(model, config(kl_coef=0.1), TEMPERATURE)
    before = weights(model)
    report = learner.update([], 0)
    assert torch.equal(weights(model), before)
    assert report.skipped == 0
    assert report.metrics["loss"] == report.metrics["grad_norm"] == 0.0


# Forward pass and samples of groups.


def test_logits_are_taken_at_the_tokens_that_carry_loss(model):
    samples = make_samples(model, rows=5, temperature=1.0)
    samples[2].loss_mask[:1], samples[2].step_ids[:1] = False, -1
    if not samples[2].loss_mask.any():
        pytest.fail("the row must keep a token")
    batch = collate(samples)
    logits = masked_logits(model, batch, "fp32")
    logprobs, entropy = token_logprobs(logits, batch, 1.0), token_entropy(logits, 1.0)
    expected = np.concatenate([sample.old_logprobs[sample.loss_mask] for sample in samples])
    assert logprobs.detach().numpy() == pytest.approx(expected, abs=1e-5)
    assert entropy.shape == logprobs.shape


TRIPLE = Triple("Kafka", "wrote", "The Trial")
QUESTION = Question("q", "Who wrote The Trial?", ("Franz Kafka",))


def step(action, token=7):
    return Step(action, Generation("x", (1, 2, token), (token, 8, 1), (-0.5, -0.2, -0.1)))


def trajectory(member, answer, reason=StopReason.ANSWERED):
    facts = step(Assert((TRIPLE,)), 10 + member)
    return Trajectory((step(Search("kafka")), facts, step(Invalid("no_json")), step(Answer(answer))), reason, member)


ANSWERS = ("Franz Kafka", "Kafka", "nobody", "Franz Kafka")
FAILED = (StopReason.RETRIEVAL_FAILED, StopReason.POLICY_FAILED, StopReason.TIMEOUT)


def samples_with(trajectories, **credit):
    group = Group(QUESTION, tuple(trajectories))
    credits = assign_credit([group], CreditConfig(encoder="exact", **credit), load_encoder("exact"))
    return samples_of([group], credits, append=False)


def test_without_process_weight_the_samples_are_those_of_outcome_only_grpo():
    samples = samples_with([trajectory(i, answer) for i, answer in enumerate(ANSWERS)], process_weight=0.0)
    rewards = np.array([1.0, 2 / 3, 0.0, 1.0])  # F1
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    assert len(samples) == 16
    found = np.array([sample.advantages for sample in samples])
    assert found == pytest.approx(np.repeat(expected, 4)[:, None] * np.ones(3), abs=1e-12)
    dense = np.array([s.advantages for s in samples_with([trajectory(i, a) for i, a in enumerate(ANSWERS)])])
    assert dense[2::4, 0] == pytest.approx(expected - 0.05)  # the invalid steps: half the penalty of 0.1
    assert not np.allclose(dense, found)


@pytest.mark.parametrize("reason", FAILED)
def test_failed_trajectories_give_no_samples_and_leave_the_statistics(reason):
    kept = [trajectory(0, "Franz Kafka"), trajectory(1, "nobody")]
    samples = samples_with([*kept, trajectory(2, "Franz Kafka", reason)])
    alone = samples_with(kept)
    assert len(samples) == len(alone) == 8
    assert not any(12 in sample.prompt_ids for sample in samples)  # the mark of member 2
    for one, other in zip(samples, alone, strict=True):
        assert np.array_equal(one.advantages, other.advantages)


def test_a_group_with_less_than_two_counted_members_gives_no_samples():
    failed = [trajectory(i, "Franz Kafka", FAILED[i % 3]) for i in range(1, 4)]
    assert samples_with([trajectory(0, "Franz Kafka"), *failed]) == []
    assert samples_with(failed) == []
    assert samples_with([trajectory(0, "Franz Kafka")]) == []
    assert len(samples_with([trajectory(0, "Franz Kafka"), trajectory(4, "nobody"), *failed])) == 8


def test_a_group_left_out_does_not_shift_the_group_of_others():
    lost = Group(QUESTION, (trajectory(0, "Franz Kafka"),))
    whole = Group(QUESTION, (trajectory(0, "Franz Kafka"), trajectory(1, "nobody")))
    groups = [lost, whole, Group(QUESTION, ()), whole]
    credits = assign_credit(groups, CreditConfig(encoder="exact"), load_encoder("exact"))
    assert sorted({sample.group for sample in samples_of(groups, credits, append=False)}) == [1, 3]
