"""Laws of the credit rules beside FactAgent's (methods.md, sections 3-12)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.credit.advantages import whiten
from factagent.credit.assign import GroupCredit
from factagent.credit.config import RuleConfig
from factagent.credit.egrpo import EgrpoConfig
from factagent.credit.encoders import load_encoder
from factagent.credit.gae import GaeConfig, gae_advantages
from factagent.credit.gigpo import GigpoConfig, discounted_returns
from factagent.credit.igpo import IgpoConfig
from factagent.credit.measured import Measured
from factagent.credit.outcome import OutcomeConfig, ReinforceConfig
from factagent.credit.rule_choice import assign
from factagent.credit.tree_grpo import TreeGrpoConfig
from factagent.credit.vine import VineConfig, vine_advantages
from factagent.types import (
    Action,
    Answer,
    Assert,
    Generation,
    Group,
    Invalid,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

law = settings(max_examples=300, deadline=None)

QUESTION = Question("q", "Where?", ("Oslo",), supporting_titles=("Anna", "Oslo"))
FACT = Triple("Anna", "born in", "Oslo")
COMMON = {"needs_facts": False, "outcome": "em"}


def found(title: str) -> Observation:
    return Observation("q", (Passage(title, title, title * 3),))


MOVES: tuple[tuple[Action, str, Observation | None], ...] = (
    (Search("one"), "<think>Anna</think>", found("a")),
    (Search("two"), "<think>so</think>", found("b")),
    (Invalid("no_json"), "?", None),
    (Assert((FACT,)), "<think>Oslo</think>", None),
)
ANSWERS = ("Oslo", "Rome", None)
STOPS = (StopReason.ANSWERED, StopReason.ANSWERED, StopReason.ANSWERED, StopReason.TIMEOUT)


def build(moves: Sequence[tuple[Action, str, Observation | None]], answer: str | None, stop: StopReason) -> Trajectory:
    steps = [Step(action, Generation(text), seen) for action, text, seen in moves]
    ending = [] if answer is None else [Step(Answer(answer), Generation("<think>hm</think>"))]
    return Trajectory((*steps, *ending), stop)


trajectories = st.builds(
    build, st.lists(st.sampled_from(MOVES), max_size=4), st.sampled_from(ANSWERS), st.sampled_from(STOPS)
)
members = st.lists(trajectories, min_size=1, max_size=5)
rules = st.one_of(
    st.builds(OutcomeConfig, outcome=st.sampled_from(["em", "f1"]), needs_facts=st.booleans()),
    st.builds(ReinforceConfig, needs_facts=st.booleans()),
    st.builds(
        GigpoConfig,
        needs_facts=st.booleans(),
        omega=st.sampled_from([0.0, 1.0, 2.0]),
        mode=st.sampled_from(["mean_std_norm", "mean_norm"]),
        cross_steps=st.booleans(),
        anchor=st.sampled_from(["observation", "state"]),
        similarity=st.none(),  # similar anchors are joined in the order of the members
    ),
    st.builds(EgrpoConfig, needs_facts=st.booleans(), alpha=st.sampled_from([0.0, 0.3])),
    st.builds(VineConfig, needs_facts=st.booleans(), whiten=st.sampled_from(["none", "steps", "tokens"])),
    st.builds(IgpoConfig, needs_facts=st.booleans()),
    st.builds(TreeGrpoConfig, needs_facts=st.booleans(), levels=st.sampled_from(["both", "tree"])),
    st.builds(GaeConfig, needs_facts=st.booleans()),
)


def measure(group: Sequence[Trajectory]) -> Measured:
    """Numbers that depend on the member alone."""
    values = [np.array([0.1 * (len(t.steps) - s) for s in range(len(t.steps) + 1)]) for t in group]
    return Measured(
        values=[values], gold_logprobs=[[-row for row in values]], trees=[[len(t.steps) % 2 for t in group]]
    )


def credit(group: Sequence[Trajectory], config: RuleConfig) -> GroupCredit:
    return assign([Group(QUESTION, tuple(group))], config, load_encoder("exact"), measure(group))[0]  # type: ignore[arg-type]


@law
@given(members, rules, st.data())
def test_the_order_of_the_members_does_not_matter(
    group: list[Trajectory], config: RuleConfig, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(group))))
    straight, permuted = credit(group, config), credit([group[i] for i in order], config)
    assert permuted.baseline == straight.baseline
    for place, i in enumerate(order):
        old, new = straight.trajectories[i], permuted.trajectories[place]
        assert (new.outcome, new.success, new.excluded) == (old.outcome, old.success, old.excluded)
        expected = [step.advantage for step in old.steps]
        assert [step.advantage for step in new.steps] == pytest.approx(expected, abs=1e-9)


@law
@given(members, rules)
def test_ledgers_add_up_and_failures_get_nothing(group: list[Trajectory], config: RuleConfig) -> None:
    for trajectory, record in zip(group, credit(group, config).trajectories, strict=True):
        assert record.excluded == trajectory.stop_reason.is_failure
        assert len(record.steps) == len(trajectory.steps)
        for step in record.steps:
            assert np.isfinite(step.advantage)
            assert step.advantage == record.outcome_advantage + step.process
            assert not record.excluded or step.advantage == 0.0


@law
@given(members, rules)
def test_failures_change_nothing_for_the_others(group: list[Trajectory], config: RuleConfig) -> None:
    counted = [trajectory for trajectory in group if not trajectory.stop_reason.is_failure]
    whole = [record for record in credit(group, config).trajectories if not record.excluded]
    assert whole == list(credit(counted, config).trajectories)


@law
@given(trajectories, st.integers(1, 5), rules)
def test_copies_of_one_member_teach_nothing_where_members_are_compared(
    member: Trajectory, copies: int, config: RuleConfig
) -> None:
    valid = not any(isinstance(step.action, Invalid) for step in member.steps)
    repeated = len({step.observation for step in member.steps}) < len(member.steps)
    if not config.compares_members or (isinstance(config, GigpoConfig) and copies > 1 and (repeated or not valid)):
        return  # GiGPO also compares the steps of one member with each other
    for record in credit([member] * copies, config).trajectories:
        assert {step.advantage for step in record.steps} <= {0.0}


@law
@given(members, st.sampled_from(["em", "f1"]))
def test_outcome_advantages_are_centred(group: list[Trajectory], outcome: str) -> None:
    config = OutcomeConfig(outcome=outcome, needs_facts=False)  # type: ignore[arg-type]
    total = sum(record.outcome_advantage for record in credit(group, config).trajectories)
    assert total == pytest.approx(0.0, abs=1e-9)


@law
@given(members, st.booleans(), st.booleans())
def test_egrpo_without_alpha_is_the_outcome(group: list[Trajectory], needs_facts: bool, f1: bool) -> None:
    common = {"needs_facts": needs_facts, "outcome": "f1" if f1 else "em"}
    plain, entity = (credit(group, config) for config in (OutcomeConfig(**common), EgrpoConfig(alpha=0.0, **common)))
    assert [record.outcome for record in plain.trajectories] == [record.outcome for record in entity.trajectories]
    for old, new in zip(plain.trajectories, entity.trajectories, strict=True):
        assert [step.advantage for step in old.steps] == [step.advantage for step in new.steps]


@law
@given(members, st.floats(0.0, 1.0))
def test_egrpo_pays_wrong_answers_at_most_alpha(group: list[Trajectory], alpha: float) -> None:
    for record in credit(group, EgrpoConfig(alpha=alpha, needs_facts=False)).trajectories:
        assert 0.0 <= record.outcome <= (1.0 if record.success else alpha)


@law
@given(members, st.booleans())
def test_gigpo_without_omega_is_its_episode_part(group: list[Trajectory], cross_steps: bool) -> None:
    common = {"omega": 0.0, "cross_steps": cross_steps, "invalid_penalty": 0.0} | COMMON
    for record in credit(group, GigpoConfig(**common)).trajectories:  # type: ignore[arg-type]
        assert {step.advantage for step in record.steps} <= {record.outcome_advantage}


@law
@given(members)
def test_gigpo_by_trajectory_without_steps_is_the_outcome_rule(group: list[Trajectory]) -> None:
    config = GigpoConfig(omega=0.0, cross_steps=False, invalid_penalty=0.0, **COMMON)  # type: ignore[arg-type]
    plain = credit(group, OutcomeConfig(**COMMON)).trajectories  # type: ignore[arg-type]
    for old, new in zip(plain, credit(group, config).trajectories, strict=True):
        assert [s.advantage for s in new.steps] == pytest.approx([s.advantage for s in old.steps], abs=1e-9)


rewards = st.lists(st.floats(-2, 2), min_size=1, max_size=8).map(np.array)


@law
@given(rewards, st.floats(0.0, 1.0))
def test_discounted_returns_follow_their_recursion(rewards_S: np.ndarray, gamma: float) -> None:
    returns_S = discounted_returns(rewards_S, gamma)
    assert returns_S == pytest.approx(rewards_S + gamma * np.append(returns_S[1:], 0.0))


@law
@given(st.floats(0.0, 1.0), rewards)
def test_vine_advantages_sum_to_the_surprise(outcome: float, values_S: np.ndarray) -> None:
    values_S = np.append(values_S, 0.0)
    assert vine_advantages(outcome, values_S).sum() == pytest.approx(outcome - values_S[0], abs=1e-9)


@law
@given(st.floats(0.0, 1.0), rewards, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_gae_joins_differences_and_returns(outcome: float, values_S: np.ndarray, gamma: float, lam: float) -> None:
    rewards_S = np.zeros(len(values_S))
    rewards_S[-1] = outcome
    values_S = np.append(values_S, 0.0)
    assert gae_advantages(rewards_S, values_S, lam=0.0) == pytest.approx(vine_advantages(outcome, values_S), abs=1e-9)
    returns_S = discounted_returns(rewards_S, gamma)
    assert gae_advantages(rewards_S, values_S, gamma, 1.0) == pytest.approx(returns_S - values_S[:-1], abs=1e-9)
    delta_S = rewards_S + gamma * values_S[1:] - values_S[:-1]
    assert gae_advantages(rewards_S, values_S, gamma, lam) == pytest.approx(discounted_returns(delta_S, gamma * lam))


@law
@given(rewards, st.integers(1, 4))
def test_whitening_by_weights_is_whitening_of_copies(values_N: np.ndarray, copies: int) -> None:
    weights_N = np.arange(len(values_N)) % copies + 1.0
    repeated = np.repeat(values_N, weights_N.astype(int))
    expected = whiten(repeated, np.ones(len(repeated)))
    assert np.repeat(whiten(values_N, weights_N), weights_N.astype(int)) == pytest.approx(expected, abs=1e-6)
