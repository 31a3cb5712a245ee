"""Token credit: along trajectories over their rows, the same for both kinds of context, and true to the ledger."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from factagent.credit.encoders import load_encoder
from factagent.credit.gae import GaeConfig
from factagent.credit.rule_choice import assign
from factagent.episode import FORCED
from factagent.train.loop import samples_of
from factagent.train.token_credit import token_credit
from factagent.types import (
    Answer,
    Generation,
    Group,
    Invalid,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
)

QUESTION = Question("q", "Who wrote The Trial?", ("Franz Kafka",))
GOLD = "Franz Kafka"
RAW = GaeConfig(outcome="em", needs_facts=False, whiten=False)


def generation(prompt, response):
    return Generation("x", tuple(prompt), tuple(response), tuple(-0.1 * (i + 1) for i in range(len(response))))


def appended(answer, reason=StopReason.ANSWERED, forced=False):
    """Two replies of 2 and 3 tokens, an observation of 2 between them; perhaps behind a forced search."""
    steps = (
        Step(Search("kafka"), generation([1, 2], [3, 4])),
        Step(Answer(answer), generation([1, 2, 3, 4, 8, 9], [5, 6, 7])),
    )
    opening = (Step(Search("who"), Generation("", finish_reason=FORCED)),) if forced else ()
    return Trajectory(opening + steps, reason)


def rebuilt(answer, reason=StopReason.ANSWERED, forced=False):
    """The same two replies, each behind a prompt of its own."""
    trajectory = appended(answer, reason, forced)
    steps = tuple(
        step
        if not step.generation.response_ids
        else Step(step.action, generation([1, 2], step.generation.response_ids))
        for step in trajectory.steps
    )
    return Trajectory(steps, reason)


def credited(trajectories, values, config=RAW, divergences=None, append=False):
    """Token credit of one group a trajectory."""
    groups = [Group(QUESTION, (trajectory,)) for trajectory in trajectories]
    credits = assign(groups, config, load_encoder("exact"))
    samples = samples_of(groups, credits, append=append, compares_members=config.compares_members)
    rows = [np.asarray(row, dtype=np.float64) for row in values]
    return token_credit(groups, credits, samples, rows, divergences, config)


VALUES_T = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
EXPECTED_T = [0.9, 0.8, 0.7, 0.6, 0.5]


def test_one_row_a_trajectory():
    found = credited([appended(GOLD)], [VALUES_T], append=True)
    (sample,) = found.samples
    assert sample.loss_mask.tolist() == [True, True, False, False, True, True, True]
    assert sample.advantages == pytest.approx([0.9, 0.8, 0.0, 0.0, 0.7, 0.6, 0.5])
    assert found.returns[0] == pytest.approx(np.ones(5))
    steps = found.credits[0].trajectories[0].steps
    assert [step.advantage for step in steps] == pytest.approx([0.85, 0.6])
    assert [step.process for step in steps] == [step.advantage for step in steps]


def test_one_row_a_step_gives_the_same_tokens_the_same_advantages():
    found = credited([rebuilt(GOLD)], [VALUES_T[:2], VALUES_T[2:]])
    assert np.concatenate([sample.advantages for sample in found.samples]) == pytest.approx(EXPECTED_T)
    assert [row.tolist() for row in found.returns] == [pytest.approx([1.0] * 2), pytest.approx([1.0] * 3)]
    assert [step.advantage for step in found.credits[0].trajectories[0].steps] == pytest.approx([0.85, 0.6])


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_the_first_value_of_the_next_reply_bootstraps_the_last_token_of_this_one(lam):
    config = RAW.model_copy(update={"gamma": 0.9, "lam": lam})
    one = credited([appended(GOLD)], [VALUES_T], config, append=True)
    two = credited([rebuilt(GOLD)], [VALUES_T[:2], VALUES_T[2:]], config)
    row = one.samples[0].advantages[one.samples[0].loss_mask]
    assert np.concatenate([sample.advantages for sample in two.samples]) == pytest.approx(row, abs=1e-12)
    if lam == 0.0:
        assert row == pytest.approx([0.9 * 0.2 - 0.1, 0.9 * 0.3 - 0.2, 0.9 * 0.4 - 0.3, 0.9 * 0.5 - 0.4, 0.5])


def test_a_forced_step_has_no_tokens_and_no_credit():
    for append, make, values in ((True, appended, [VALUES_T]), (False, rebuilt, [VALUES_T[:2], VALUES_T[2:]])):
        found = credited([make(GOLD, forced=True)], values, append=append)
        steps = found.credits[0].trajectories[0].steps
        assert [step.advantage for step in steps] == pytest.approx([0.0, 0.85, 0.6])
        assert sum(int(sample.loss_mask.sum()) for sample in found.samples) == 5


def test_whitening_runs_over_all_loss_tokens_of_the_batch():
    trajectories = [appended(GOLD), appended("nobody")]
    raw = credited(trajectories, [VALUES_T] * 2, append=True)
    white = credited(trajectories, [VALUES_T] * 2, RAW.model_copy(update={"whiten": True}), append=True)
    before, after = (
        np.concatenate([sample.advantages[sample.loss_mask] for sample in found.samples]) for found in (raw, white)
    )
    assert after == pytest.approx((before - before.mean()) / before.std(ddof=1), abs=1e-6)
    assert all(sample.advantages[~sample.loss_mask].tolist() == [0.0, 0.0] for sample in white.samples)
    # The critic learns returns, which whitening does not touch.
    assert [row.tolist() for row in white.returns] == [row.tolist() for row in raw.returns]
    means = [step.advantage for credit in white.credits for t in credit.trajectories for step in t.steps]
    assert means == pytest.approx([after[:2].mean(), after[2:5].mean(), after[5:7].mean(), after[7:].mean()])


def test_the_divergence_is_charged_to_the_reward_of_its_token():
    divergence_T = np.array([1.0, -2.0, 0.0, 3.0, 0.5])
    config = RAW.model_copy(update={"kl_in_reward": 0.1})
    found = credited([appended(GOLD)], [np.zeros(5)], config, [divergence_T], append=True)
    to_go = 1.0 - 0.1 * np.cumsum(divergence_T[::-1])[::-1]
    assert found.samples[0].advantages[found.samples[0].loss_mask] == pytest.approx(to_go)
    assert found.metrics["reward_with_kl"] == pytest.approx(1.0 - 0.25)
    parts = credited([rebuilt(GOLD)], [np.zeros(2), np.zeros(3)], config, [divergence_T[:2], divergence_T[2:]])
    assert np.concatenate([sample.advantages for sample in parts.samples]) == pytest.approx(to_go)


def test_rows_of_several_groups_and_members_keep_their_places():
    group = Group(QUESTION, (appended(GOLD), appended(GOLD, StopReason.POLICY_FAILED), appended("nobody")))
    other = Group(QUESTION, (appended("nobody", StopReason.OUT_OF_ROUNDS),))
    credits = assign([group, other], RAW, load_encoder("exact"))
    samples = samples_of([group, other], credits, append=True, compares_members=False)
    assert [(sample.group, sample.member) for sample in samples] == [(0, 0), (0, 2), (1, 0)]
    values = [np.full(5, 0.25), np.full(5, 0.5), np.full(5, 1.0)]
    found = token_credit([group, other], credits, samples, values, None, RAW)
    assert [sample.advantages[0] for sample in found.samples] == pytest.approx([0.75, -0.5, -1.0])
    ledger = [[step.advantage for step in t.steps] for credit in found.credits for t in credit.trajectories]
    assert ledger == [pytest.approx(row) for row in ([0.75] * 2, [0.0] * 2, [-0.5] * 2, [-1.0] * 2)]
    assert [t.excluded for t in found.credits[0].trajectories] == [False, True, False]
    assert [t.outcome for t in found.credits[0].trajectories] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("answers", [[GOLD], ["nobody"], [GOLD, GOLD], ["nobody", "nobody"]])
def test_degenerate_groups_give_the_return_minus_the_value(answers):
    """A group of one, one that failed throughout, one of equal outcomes: nothing is compared."""
    group = Group(QUESTION, tuple(appended(answer) for answer in answers))
    credits = assign([group], RAW, load_encoder("exact"))
    samples = samples_of([group], credits, append=True, compares_members=RAW.compares_members)
    assert len(samples) == len(answers)
    found = token_credit([group], credits, samples, [VALUES_T] * len(answers), None, RAW)
    for sample, answer in zip(found.samples, answers, strict=True):
        assert sample.advantages[sample.loss_mask] == pytest.approx(float(answer == GOLD) - VALUES_T)


def test_whitening_of_equal_advantages_gives_nothing():
    found = credited([appended(GOLD)], [np.zeros(5)], RAW.model_copy(update={"whiten": True}), append=True)
    assert not found.samples[0].advantages.any()
    assert found.returns[0].tolist() == [1.0] * 5


def test_an_empty_batch():
    group = Group(QUESTION, (appended(GOLD, StopReason.TIMEOUT),))
    credits = assign([group], RAW, load_encoder("exact"))
    samples = samples_of([group], credits, append=True, compares_members=False)
    found = token_credit([group], credits, samples, [], None, RAW)
    assert (found.samples, found.returns, found.metrics) == ([], [], {})
    assert found.credits == list(credits)


def test_a_reply_without_an_action_is_credited_like_any_other():
    trajectory = Trajectory((Step(Invalid("no_tags"), generation([1, 2], [3, 4])),), StopReason.NO_ANSWER)
    found = credited([trajectory], [[0.25, 0.5]], append=True)
    assert found.samples[0].advantages == pytest.approx([-0.25, -0.5])


def test_rules_that_compare_members_drop_a_group_of_one():
    group = Group(QUESTION, (appended(GOLD),))
    credits = assign([group], RAW, load_encoder("exact"))
    assert samples_of([group], credits, append=True) == []
    assert len(samples_of([group], credits, append=True, compares_members=False)) == 1
