"""The laws of credit.md, section 8 (those of equivalence itself stand with the equivalence tests)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from factagent.credit import advantages, shaping, utility
from factagent.credit.assign import GroupCredit, assign_credit
from factagent.credit.config import CreditConfig
from factagent.credit.encoders import load_encoder
from factagent.types import (
    Action,
    Answer,
    Assert,
    Group,
    Invalid,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

law = settings(max_examples=1000, deadline=None)

FACTS = tuple(Triple(f"Person {name}", "was born in", f"Town {name}") for name in "abcd")
SAME = tuple(Triple(fact.subject.upper(), fact.relation, fact.object.lower()) for fact in FACTS)
ACTIONS: tuple[Action, ...] = (
    Search("one"), Search("two"), Invalid("no_json"), *(Assert((fact,)) for fact in FACTS),
    Assert(FACTS[:2]), Assert((SAME[0], FACTS[3])), Assert((SAME[2],)),
)  # fmt: skip
ANSWERS = ("Oslo", "oslo.", "Rome", "Oslo Norway", None)
STOPS = (StopReason.ANSWERED, StopReason.ANSWERED, StopReason.ANSWERED, StopReason.TIMEOUT)


def build(actions: Sequence[Action], answer: str | None, stop: StopReason) -> Trajectory:
    ending = () if answer is None else (Answer(answer),)
    return Trajectory(tuple(Step(action) for action in (*actions, *ending)), stop)


trajectories = st.builds(
    build, st.lists(st.sampled_from(ACTIONS), max_size=5), st.sampled_from(ANSWERS), st.sampled_from(STOPS)
)
members = st.lists(trajectories, min_size=1, max_size=5)
configs = st.builds(
    CreditConfig,
    process_weight=st.sampled_from([0.5, 2.0]),
    attribution=st.floats(0.0, 1.0),
    prior=st.sampled_from(["symmetric", "centred"]),
    prior_strength=st.floats(0.1, 3.0),
    utility=st.sampled_from(["relative", "contrast"]),
    counting=st.sampled_from(["group", "leave-one-out"]),
    consensus=st.sampled_from([0.0, 0.1, 1.0]),
    success=st.sampled_from(["em", "f1", "soft"]),
    outcome=st.sampled_from(["em", "f1"]),
    process=st.sampled_from(["shaping", "return"]),
    process_scale=st.sampled_from(["raw", "batch-std"]),
    encoder=st.just("exact"),
)
unit = st.floats(0.0, 1.0)
successes = st.lists(unit, min_size=1, max_size=6).map(lambda values: np.array(values))


def credit(group: Sequence[Trajectory], config: CreditConfig) -> GroupCredit:
    question = Question("q", "Where?", ("Oslo",))
    return assign_credit([Group(question, tuple(group))], config, load_encoder("exact"))[0]


@st.composite
def presences(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A presence matrix (G, K) with a success for each member."""
    success = draw(successes)
    presence = draw(arrays(np.bool_, st.tuples(st.just(len(success)), st.integers(0, 4))))
    return presence, success


@st.composite
def meetings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """First steps (K,), utilities (K,) and the number of steps of one trajectory."""
    steps, clusters = draw(st.integers(1, 8)), draw(st.integers(0, 30))
    first = draw(arrays(np.int64, clusters, elements=st.integers(-1, steps - 1)))
    return first, draw(arrays(np.float64, clusters, elements=st.floats(-2.0, 2.0))), steps


@law
@given(members, configs)
def test_shaping_sums_to_the_final_potential(group: list[Trajectory], config: CreditConfig) -> None:
    for record in credit(group, config).trajectories:
        if record.steps:
            assert sum(step.shaping for step in record.steps) == pytest.approx(record.steps[-1].potential, abs=1e-12)


@law
@given(meetings())
def test_potential_is_strictly_between_minus_one_and_one(meeting: tuple[np.ndarray, np.ndarray, int]) -> None:
    potential = shaping.potentials(*meeting)
    assert np.all(np.abs(potential) < 1.0)
    assert shaping.shaping(potential).sum() == pytest.approx(potential[-1], abs=1e-12)


@law
@given(meetings(), st.randoms(use_true_random=False))
def test_renaming_clusters_changes_nothing(meeting: tuple[np.ndarray, np.ndarray, int], random: object) -> None:
    first, value, steps = meeting
    order = list(range(len(first)))
    random.shuffle(order)  # type: ignore[attr-defined]
    renamed = shaping.potentials(first[order], value[order], steps)
    assert renamed == pytest.approx(shaping.potentials(first, value, steps), abs=1e-12)


@law
@given(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8), st.data(), unit)
def test_redistribution_keeps_the_sum(actions: list[Action], data: st.DataObject, attribution: float) -> None:
    sources = shaping.source_steps(actions)
    shape = data.draw(arrays(np.float64, len(actions), elements=st.floats(-2.0, 2.0)))
    assert shaping.redistribute(shape, sources, attribution).sum() == pytest.approx(shape.sum(), abs=1e-12)


@law
@given(presences(), st.floats(0.01, 10.0))
def test_posterior_mean_is_a_proper_probability(case: tuple[np.ndarray, np.ndarray], strength: float) -> None:
    counts = utility.count_group(*case)
    a, b = utility.beta_prior("symmetric", strength, counts.baseline)
    mean = utility.posterior_mean(counts.successes, counts.support, a, b)
    assert np.all((mean > 0.0) & (mean < 1.0))
    low, high = utility.credible_interval(counts, a, b)
    assert np.all((low >= 0.0) & (low <= high) & (high <= 1.0))


@law
@given(presences(), st.data(), st.sampled_from(["symmetric", "centred"]), st.floats(0.01, 10.0))
def test_posterior_mean_is_monotone_in_successes(
    case: tuple[np.ndarray, np.ndarray], data: st.DataObject, prior: str, strength: float
) -> None:
    counts = utility.count_group(*case)
    a, b = utility.beta_prior(prior, strength, counts.baseline)
    more = counts.successes + data.draw(arrays(np.float64, counts.successes.shape, elements=unit))
    more = np.minimum(more, counts.support)
    before = utility.posterior_mean(counts.successes, counts.support, a, b)
    after = utility.posterior_mean(np.maximum(more, counts.successes), counts.support, a, b)
    assert np.all(after >= before)
    strictly = more > counts.successes + 1e-9
    assert np.all(after[strictly] > before[strictly])


@law
@given(members, configs, st.randoms(use_true_random=False))
def test_permuting_trajectories_permutes_the_result(
    group: list[Trajectory], config: CreditConfig, random: object
) -> None:
    order = list(range(len(group)))
    random.shuffle(order)  # type: ignore[attr-defined]
    straight, permuted = credit(group, config), credit([group[i] for i in order], config)
    assert permuted.baseline == straight.baseline
    assert permuted.clusters == straight.clusters
    assert permuted.trajectories == tuple(straight.trajectories[i] for i in order)


@law
@given(members, configs, st.data())
def test_asserting_an_equivalent_fact_again_changes_nothing(
    group: list[Trajectory], config: CreditConfig, data: st.DataObject
) -> None:
    config = config.model_copy(update={"process_scale": "raw"})  # one more step changes the batch's deviation
    asserts = [
        (i, j)
        for i, trajectory in enumerate(group)
        for j, step in enumerate(trajectory.steps)
        if isinstance(step.action, Assert)
    ]
    if not asserts:
        return
    i, j = data.draw(st.sampled_from(asserts))
    steps = group[i].steps
    again = Assert(tuple(triple._replace(subject=triple.subject.swapcase()) for triple in steps[j].action.triples))
    repeated = Trajectory((*steps[: j + 1], Step(again), *steps[j + 1 :]), group[i].stop_reason)
    before = credit(group, config).trajectories
    after = credit([*group[:i], repeated, *group[i + 1 :]], config).trajectories
    inserted = after[i].steps[j + 1]
    assert inserted.shaping == 0.0
    assert inserted.potential == after[i].steps[j].potential
    assert after[i].steps[: j + 1] + after[i].steps[j + 2 :] == before[i].steps
    assert after[:i] + after[i + 1 :] == before[:i] + before[i + 1 :]


@law
@given(unit, st.integers(0, 8))
def test_equal_outcomes_have_no_advantage(outcome: float, size: int) -> None:
    assert advantages.outcome_advantages(np.full(size, outcome)).tolist() == [0.0] * size


@law
@given(successes)
def test_outcome_advantages_are_centred_and_ordered_as_the_outcomes(outcomes: np.ndarray) -> None:
    advantage = advantages.outcome_advantages(outcomes)
    assert advantage.sum() == pytest.approx(0.0, abs=1e-9)
    assert np.all(np.diff(advantage[np.argsort(outcomes, kind="stable")]) >= 0.0)


@law
@given(
    presences(), st.sampled_from([0.0, 1.0]), st.floats(0.01, 10.0), st.sampled_from(["relative", "contrast"]),
    st.booleans(),
)  # fmt: skip
def test_centred_prior_is_silent_where_all_pass_or_all_fail(
    case: tuple[np.ndarray, np.ndarray], success: float, strength: float, kind: str, leave_one_out: bool
) -> None:
    presence, success_G = case
    count = utility.count_others if leave_one_out else utility.count_group
    value = utility.utility(
        count(presence, np.full_like(success_G, success)), kind=kind, prior="centred", strength=strength
    )
    assert np.all(value == 0.0)


@law
@given(members, configs)
def test_zero_process_weight_is_outcome_only(group: list[Trajectory], config: CreditConfig) -> None:
    result = credit(group, config.model_copy(update={"process_weight": 0.0}))
    outcomes = np.array([record.outcome for record in result.trajectories if not record.excluded])
    expected = iter(advantages.outcome_advantages(outcomes).tolist())
    for record in result.trajectories:
        advantage = 0.0 if record.excluded else next(expected)
        assert all(step.advantage == advantage for step in record.steps)


@law
@given(members, configs)
def test_the_ledger_adds_up(group: list[Trajectory], config: CreditConfig) -> None:
    for trajectory, record in zip(group, credit(group, config).trajectories, strict=True):
        assert record.excluded == trajectory.stop_reason.is_failure
        assert len(record.steps) == len(trajectory.steps)
        for step in record.steps:
            assert step.advantage == record.outcome_advantage + config.process_weight * step.process
            assert all(value < 0.0 for value in step.penalties.values())


@law
@given(presences(), st.sampled_from(["symmetric", "centred"]))
def test_leave_one_out_does_not_see_the_own_outcome(case: tuple[np.ndarray, np.ndarray], prior: str) -> None:
    presence, success_G = case
    flipped = success_G.copy()
    flipped[0] = 1.0 - flipped[0]
    values = [
        utility.utility(utility.count_others(presence, outcomes), kind="relative", prior=prior, strength=0.5)
        for outcomes in (success_G, flipped)
    ]
    assert values[0][0] == pytest.approx(values[1][0], abs=1e-12)
