"""Samples: builders, objective weights, cuts, padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from factagent.episode import FORCED
from factagent.errors import DataError, UsageError
from factagent.train.loss import LossConfig, policy_loss
from factagent.train.samples import (
    Sample,
    collate,
    count_loss_tokens,
    group_samples,
    micro_batches,
    mini_batches,
    padding_share,
    step_samples,
    step_weights,
    trajectory_sample,
)
from factagent.types import Answer, Generation, Group, Question, Search, Step, Trajectory


def generation(prompt, response, base=-0.5):
    return Generation("", tuple(prompt), tuple(response), tuple(base - 0.1 * i for i in range(len(response))))


REBUILT = Trajectory(
    (Step(Search("q"), generation([1, 2], [3, 4, 5])), Step(Answer("a"), generation([1, 9, 9], [6], -2.0))), member=1
)
APPENDED = Trajectory(
    (Step(Search("q"), generation([1, 2], [3, 4])), Step(Answer("a"), generation([1, 2, 3, 4, 7, 8], [5, 6], -2.0)))
)


def sample(prompt, response, group=0, weight=1.0):
    return Sample(
        np.arange(prompt) + 1,
        np.arange(response) + 100,
        np.ones(response, bool),
        np.full(response, -1.0),
        np.full(response, 0.5),
        group,
        np.zeros(response, np.int64),
        weight,
    )


def random_samples(seed, count=17):
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        length = int(rng.integers(1, 12))
        steps = np.sort(rng.integers(-1, 3, size=length))
        steps = np.where(steps >= 0, np.unique(steps, return_inverse=True)[1].reshape(-1), -1)
        steps = (
            np.where(steps >= 0, steps - steps[steps >= 0].min(), -1) if (steps >= 0).any() else np.zeros(length, int)
        )
        mask = steps >= 0
        samples.append(
            Sample(
                rng.integers(1, 50, size=int(rng.integers(1, 9))),
                rng.integers(1, 50, size=length),
                mask,
                -rng.exponential(size=length),
                rng.normal(size=4)[steps],
                int(rng.integers(0, 4)),
                steps.astype(np.int64),
            )
        )
    return samples


def test_rebuilding_protocol_gives_a_sample_a_step():
    first, second = step_samples(REBUILT, [0.5, -1.0], 3)
    assert first.prompt_ids.tolist() == [1, 2]
    assert first.response_ids.tolist() == [3, 4, 5]
    assert first.loss_mask.all()
    assert first.old_logprobs.tolist() == pytest.approx([-0.5, -0.6, -0.7])
    assert first.advantages.tolist() == [0.5, 0.5, 0.5]
    assert (second.group, second.advantages.tolist(), second.length) == (3, [-1.0], 4)


def test_appending_protocol_gives_a_sample_a_trajectory_with_observations_masked():
    row = trajectory_sample(APPENDED, [0.5, -1.0], 2)
    assert row.prompt_ids.tolist() == [1, 2]
    assert row.response_ids.tolist() == [3, 4, 7, 8, 5, 6]
    assert row.loss_mask.tolist() == [True, True, False, False, True, True]
    assert row.step_ids.tolist() == [0, 0, -1, -1, 1, 1]
    assert row.old_logprobs.tolist() == pytest.approx([-0.5, -0.6, 0, 0, -2.0, -2.1])
    assert row.advantages.tolist() == [0.5, 0.5, 0, 0, -1.0, -1.0]


def test_consecutive_actions_without_observation_stay_two_steps():
    trajectory = Trajectory((Step(Search("q"), generation([1], [2])), Step(Answer("a"), generation([1, 2], [3]))))
    assert trajectory_sample(trajectory, [1.0, 2.0], 0).step_ids.tolist() == [0, 1]


def test_a_forced_step_is_in_no_sample():
    forced = Step(Search("q"), Generation("", finish_reason=FORCED))
    rebuilt, appended = (Trajectory((forced, *t.steps)) for t in (REBUILT, APPENDED))
    for got, plain in zip(step_samples(rebuilt, [9, 1, 2], 0), step_samples(REBUILT, [1, 2], 0), strict=True):
        assert got.response_ids.tolist() == plain.response_ids.tolist()
        assert got.advantages.tolist() == plain.advantages.tolist()
    got, plain = trajectory_sample(appended, [9, 1, 2], 0), trajectory_sample(APPENDED, [1, 2], 0)
    for name in ("prompt_ids", "response_ids", "loss_mask", "step_ids", "advantages", "old_logprobs"):
        assert getattr(got, name).tolist() == getattr(plain, name).tolist()
    with pytest.raises(DataError, match="without steps"):
        trajectory_sample(Trajectory((forced,)), [9], 0)
    assert group_samples(Group(Question("q", "?", ("a",)), (Trajectory((forced,)),)), [[9]], 0) == []


def test_an_end_token_that_was_sampled_stays_in_the_row():
    # 4 ends the first reply; a prompt that leaves it out does not hold what was sampled.
    left_out = replace(APPENDED.steps[1], generation=generation([1, 2, 3, 7, 8], [5, 6]))
    with pytest.raises(DataError, match="the prompt of step 1 does not extend the tokens of step 0"):
        trajectory_sample(Trajectory((APPENDED.steps[0], left_out)), [1, 2], 0)


def test_group_samples_leaves_failures_out():
    group = Group(Question("q1", "?", ("a",)), (REBUILT, APPENDED, Trajectory(())))
    assert [s.group for s in group_samples(group, [[1.0, 2.0], None, []], 5)] == [5, 5]
    appended = Group(Question("q1", "?", ("a",)), (APPENDED,))
    assert len(group_samples(appended, [[1.0, 2.0]], 0, append=True)) == 1
    with pytest.raises(DataError, match="group 'q1': 1 rows of advantages for 3"):
        group_samples(group, [None], 0)


def test_trajectories_that_cannot_be_trained_on_are_refused():
    with pytest.raises(DataError, match="1 advantages for 2 steps"):
        step_samples(REBUILT, [1.0], 0)
    with pytest.raises(DataError, match="step 0 has no token ids"):
        step_samples(Trajectory((Step(Search("q")),)), [1.0], 0)
    with pytest.raises(DataError, match="0 log-probabilities for 1 tokens"):
        step_samples(Trajectory((Step(Search("q"), Generation("", (1,), (2,))),)), [1.0], 0)
    with pytest.raises(DataError, match="prompt of step 1 does not extend"):
        trajectory_sample(REBUILT, [1.0, 1.0], 0)
    with pytest.raises(DataError, match="without steps"):
        trajectory_sample(Trajectory(()), [], 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advantages": np.zeros(2)}, "'advantages' has 2 entries for 3"),
        ({"loss_mask": np.zeros(3, bool)}, "no token carries loss"),
        ({"step_ids": np.array([0, 0, -1])}, "'step_ids' must be"),
        ({"prompt_ids": np.array([], np.int64)}, "'prompt_ids' is empty"),
    ],
)
def test_malformed_samples_are_refused(change, message):
    good = sample(2, 3)
    fields = {name: getattr(good, name) for name in Sample.__dataclass_fields__}
    with pytest.raises(DataError, match=message):
        Sample(**fields | change)


def test_weights_are_the_mean_over_tokens_steps_and_groups():
    # Group 0: two steps (of 2 and 4 tokens); group 1: one step of 1 token.
    weights = step_weights([sample(1, 2, 0), sample(1, 4, 0), sample(1, 1, 1)])
    assert [w.tolist() for w in weights] == [[1 / 8] * 2, [1 / 16] * 4, [1 / 2]]
    row = trajectory_sample(APPENDED, [1.0, 1.0], 0)
    assert step_weights([row])[0].tolist() == [1 / 4, 1 / 4, 0, 0, 1 / 4, 1 / 4]
    assert step_weights([sample(1, 2, 0, 0.5), sample(1, 2, 1)])[0].tolist() == [1 / 8] * 2


def test_a_step_without_loss_tokens_is_no_step():
    good = sample(1, 3)
    fields = {name: getattr(good, name) for name in Sample.__dataclass_fields__}
    gap = {"step_ids": np.array([0, -1, 2]), "loss_mask": np.array([True, False, True])}
    assert step_weights([Sample(**fields | gap)])[0].tolist() == [1 / 2, 0, 1 / 2]


def test_appended_and_rebuilt_rows_of_the_same_steps_weigh_the_same():
    rows = step_weights([trajectory_sample(APPENDED, [1.0, 2.0], 0), *step_samples(REBUILT, [1.0, 1.0], 1)])
    assert rows[0][rows[0] > 0].tolist() == [1 / 8] * 4
    assert rows[1].tolist() == pytest.approx([1 / 12] * 3)
    assert rows[2].tolist() == [1 / 4]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ratio", ["token", "step"])
def test_the_sum_over_micro_batches_is_the_objective_however_the_batch_is_cut(seed, ratio):
    samples = random_samples(seed)
    weights = step_weights(samples)
    assert sum(float(w.sum()) for w in weights) == pytest.approx(1.0, abs=1e-12)
    config = LossConfig(ratio=ratio, kl_coef=0.01, llds_coef=0.2)
    table = torch.randn(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.3 - 1

    def objective(budget):
        parameter = table.clone().requires_grad_()
        total = 0.0
        for batch in micro_batches(samples, budget):
            rows = collate([samples[i] for i in batch], [weights[i] for i in batch])
            logprobs = parameter[rows["targets"]]
            loss, _ = policy_loss(
                logprobs,
                rows["old_logprobs"].double(),
                torch.full_like(logprobs, -1.0),
                rows["advantages"].double(),
                rows["loss_mask"],
                rows["weights"].double(),
                rows["step_ids"],
                config,
                sample_ids=rows["sample_ids"],
                n_loss_tokens=count_loss_tokens(samples),
            )
            loss.backward()
            total += loss.item()
        return total, parameter.grad

    whole, gradient = objective(10**6)
    for budget in (1, 20, 47, 100):
        value, part = objective(budget)
        assert value == pytest.approx(whole, abs=1e-12)
        torch.testing.assert_close(part, gradient, atol=1e-12, rtol=0)
    # The definition itself, step by step, for the surrogate alone at ratio 1.
    by_group: dict[int, list[float]] = {}
    for one in samples:
        for step in range(one.step_ids.max() + 1):
            if (one.step_ids == step).any():
                by_group.setdefault(one.group, []).append(float(one.advantages[one.step_ids == step].mean()))
    expected = np.mean([np.mean(steps) for steps in by_group.values()])
    assert sum(float((w * s.advantages).sum()) for w, s in zip(weights, samples, strict=True)) == pytest.approx(
        expected
    )


def test_micro_batches_keep_the_budget_and_every_sample():
    samples = random_samples(3, 40)
    batches = micro_batches(samples, 60)
    assert sorted(index for batch in batches for index in batch) == list(range(40))
    assert all(len(batch) * max(samples[i].length for i in batch) <= 60 for batch in batches)
    lengths = [samples[i].length for batch in batches for i in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert batches == micro_batches(samples, 60)
    assert len(batches) <= 2 * sum(lengths) / 60 + 1


def test_micro_batch_cases_by_hand():
    samples = [sample(1, 2), sample(1, 9), sample(1, 2), sample(1, 4)]
    assert micro_batches(samples, 10) == [[1], [3, 0], [2]]
    assert micro_batches(samples, 5) == [[1], [3], [0], [2]]  # a row longer than the budget stands alone
    assert micro_batches([], 5) == []
    assert padding_share(samples, micro_batches(samples, 10))["padding_share"] == pytest.approx(1 - 21 / 23)
    with pytest.raises(UsageError, match="token_budget is 0"):
        micro_batches(samples, 0)


def test_mini_batches_keep_groups_whole():
    samples = [sample(1, 1, group) for group in (7, 7, 3, 5, 3, 5)]
    assert mini_batches(samples, 1) == [[0, 1, 2, 3, 4, 5]]
    assert mini_batches(samples, 2) == [[0, 1, 2, 4], [3, 5]]
    assert mini_batches(samples, 9) == [[0, 1], [2, 4], [3, 5]]
    assert mini_batches([], 2) == []
    with pytest.raises(UsageError, match="count is 0"):
        mini_batches(samples, 0)


def test_collate_pads_right_and_aligns_with_predictions():
    rows = [trajectory_sample(APPENDED, [0.5, -1.0], 0), sample(1, 2)]
    batch = collate(rows, pad_id=77)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 7, 8, 5, 6], [1, 100, 101, 77, 77, 77, 77, 77]]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 3 + [0] * 5]
    assert batch["targets"].tolist() == [row[1:] for row in batch["input_ids"].tolist()]
    assert batch["loss_mask"][0].tolist() == [False, True, True, False, False, True, True]
    assert batch["targets"][batch["loss_mask"]].tolist() == [3, 4, 5, 6, 100, 101]
    assert batch["step_ids"].tolist() == [[-1, 0, 0, -1, -1, 1, 1], [2, 2, -1, -1, -1, -1, -1]]
    assert batch["sample_ids"].tolist() == [[-1, 0, 0, -1, -1, 0, 0], [1, 1, -1, -1, -1, -1, -1]]
    assert batch["advantages"][0].tolist() == [0.0, 0.5, 0.5, 0.0, 0.0, -1.0, -1.0]
    assert batch["weights"].sum().item() == pytest.approx(1.0)
    assert batch["old_logprobs"].dtype == torch.float32
    with pytest.raises(UsageError, match="0 samples"):
        collate([])


def test_llds_sees_the_actions_of_an_appended_row_between_its_observations():
    """The vector of methods.md 14 in one row: two actions of two tokens, two observation tokens between them."""
    first, second = generation([1, 2], [3, 4]), generation([1, 2, 3, 4, 8, 9], [5, 6])
    trajectory = Trajectory((Step(Search("q"), first), Step(Answer("a"), second)))
    config = LossConfig(kl_coef=0.0, llds_coef=0.2)
    for advantages, expected, held in (([1.0, 1.0], 0.025, 1), ([0.0, 0.0], 0.025, 1), ([-1.0, -1.0], 0.0, 0)):
        batch = collate([trajectory_sample(trajectory, advantages, 0), sample(1, 2)], pad_id=0)
        # The other row stays as likely as it was; the denominator is the four tokens of this one.
        drop = torch.zeros_like(batch["old_logprobs"])
        drop[0, 1:3], drop[0, 5:7] = torch.tensor([0.5, -0.2]), torch.tensor([0.2, -0.3])
        assert batch["loss_mask"][0].tolist() == [False, True, True, False, False, True, True]
        drop[0, 3:5] = 7.0  # what happens to observations is nobody's loss
        _, stats = policy_loss(
            batch["old_logprobs"] - drop,
            batch["old_logprobs"],
            None,
            batch["advantages"],
            batch["loss_mask"],
            batch["weights"],
            batch["step_ids"],
            config,
            sample_ids=batch["sample_ids"],
            n_loss_tokens=4,
            llds_weights=batch["llds_weights"],
        )
        assert stats.llds == pytest.approx(expected, abs=1e-7)
        assert stats.llds_held == held
