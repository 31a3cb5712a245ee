from __future__ import annotations

import dataclasses
import math

import pytest
from pydantic import ValidationError

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

FACT = Triple("Anna Berg", "was born in", "Oslo")
OTHER = Triple("Oslo", "lies in", "Norway")
THIRD = Triple("Bergen", "lies in", "Norway")


def run(*actions: Action, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    return Trajectory(tuple(Step(action) for action in actions), stop)


def usual(answer: str, *triples: Triple) -> Trajectory:
    return run(Search("where was Anna Berg born"), Assert(triples), Answer(answer))


def credit(*trajectories: Trajectory, **options: object) -> GroupCredit:
    group = Group(Question("q1", "Where was Anna Berg born?", ("Oslo",)), trajectories)
    return assign_credit([group], CreditConfig(encoder="exact", **options), load_encoder("exact"))[0]


WORKED = (usual("Oslo", FACT), usual("oslo.", FACT), usual("Rome", FACT), usual("Rome"))


def test_worked_numbers_of_the_specification() -> None:
    result = credit(*WORKED[:3], run(Search("s"), Answer("Rome")), premature_answer_penalty=0.0)
    (cluster,) = result.clusters
    assert (result.baseline, cluster.support, cluster.successes) == (0.5, 3, 2.0)
    assert (cluster.posterior_mean, cluster.utility) == (0.625, 0.125)
    search, fact, answer = result.trajectories[0].steps
    assert fact.shaping == fact.potential == answer.potential == pytest.approx(0.12435, abs=5e-6)
    assert search.process == pytest.approx(0.02487, abs=5e-6)
    assert fact.process == pytest.approx(0.09948, abs=5e-6)
    assert answer.process == 0.0
    outcome = result.trajectories[0].outcome_advantage
    assert outcome == pytest.approx(0.5 / (math.sqrt(1 / 3) + 1e-6))
    assert search.advantage == outcome + 0.5 * search.process


@pytest.mark.parametrize(("answer", "sign"), [("Rome", 1.0), ("Oslo", -1.0)])
@pytest.mark.parametrize(("members", "size"), [(1, 0.25), (6, 0.0714)])
def test_equal_outcomes_leave_only_the_bias_of_the_prior(answer: str, sign: float, members: int, size: float) -> None:
    trajectories = [usual(answer, FACT if i < members else OTHER) for i in range(6)]
    result = credit(*trajectories)
    by_fact = {cluster.representative: cluster for cluster in result.clusters}
    assert by_fact[FACT].utility == pytest.approx(sign * size, abs=5e-5)
    assert all(trajectory.outcome_advantage == 0.0 for trajectory in result.trajectories)
    centred = credit(*trajectories, prior="centred")
    assert all(cluster.utility == 0.0 for cluster in centred.clusters)
    assert all(step.advantage == 0.0 for trajectory in centred.trajectories for step in trajectory.steps)


def test_success_rules_differ_and_the_outcome_is_independent_of_them() -> None:
    half = usual("Oslo Norway", FACT)
    for options, success in (({}, 0.0), ({"success": "f1"}, 1.0), ({"success": "soft"}, 2 / 3)):
        record = credit(half, usual("Rome", FACT), **options).trajectories[0]
        assert (record.success, record.outcome) == (pytest.approx(success), pytest.approx(2 / 3))
    assert credit(half, success="f1", success_threshold=0.7).trajectories[0].success == 0.0
    assert credit(half, success="f1", success_threshold=2 / 3).trajectories[0].success == 1.0
    assert credit(half, success="f1", outcome="em").trajectories[0].outcome == 0.0


def test_soft_success_counts_fractions() -> None:
    (cluster,) = credit(usual("Oslo Norway", FACT), usual("Oslo", FACT), success="soft").clusters
    assert (cluster.support, cluster.successes) == (2, pytest.approx(5 / 3))


def test_premature_answer_is_penalised_and_counts_as_failure() -> None:
    result = credit(run(Search("s"), Answer("Oslo")), usual("Oslo", FACT))
    record = result.trajectories[0]
    assert (record.outcome, record.success, result.baseline) == (0.0, 0.0, 0.5)
    assert record.steps[1].penalties == {"premature_answer": -0.1}
    assert record.steps[1].process == -0.1
    assert record.steps[1].advantage == record.outcome_advantage + 0.5 * -0.1


def test_no_answer_means_no_outcome_and_no_penalty() -> None:
    record = credit(run(Search("s"), Assert((FACT,)), stop=StopReason.OUT_OF_ROUNDS)).trajectories[0]
    assert (record.outcome, record.success, record.excluded) == (0.0, 0.0, False)
    assert [step.penalties for step in record.steps] == [{}, {}]


def test_invalid_steps_and_repeated_queries_are_penalised() -> None:
    trajectory = run(
        Search("Where is Oslo?"), Invalid("no_json"), Search("where is  oslo"), Search("Oslo"), Search("OSLO!"),
        Assert((FACT,)), Answer("Rome"),
    )  # fmt: skip
    record = credit(trajectory, parse_error_penalty=0.3, attribution=0.0).trajectories[0]
    duplicate = {"duplicate_search": -0.01}
    assert [step.penalties for step in record.steps] == [{}, {"parse_error": -0.3}, duplicate, {}, duplicate, {}, {}]
    assert [step.process for step in record.steps[:5]] == [0.0, -0.3, -0.01, 0.0, -0.01]


def test_a_penalty_of_zero_is_not_reported() -> None:
    assert credit(run(Invalid("no_json")), parse_error_penalty=0.0).trajectories[0].steps[0].penalties == {}


def test_assert_without_search_keeps_its_whole_shaping() -> None:
    record = credit(run(Assert((FACT,)), Search("s"), Answer("Rome"))).trajectories[0]
    assert record.steps[0].process == record.steps[0].shaping == pytest.approx(math.tanh(0.25))
    assert record.steps[1].process == 0.0


def test_several_asserts_after_one_search_each_pay_it() -> None:
    record = credit(run(Search("s"), Assert((FACT,)), Assert((OTHER,)), Answer("Rome"))).trajectories[0]
    first, second = record.steps[1].shaping, record.steps[2].shaping
    assert second == pytest.approx(math.tanh(0.5) - math.tanh(0.25))
    assert record.steps[0].process == pytest.approx(0.2 * (first + second))


def test_asserting_an_equivalent_fact_again_changes_nothing() -> None:
    again = Triple("anna berg", "was born in", "OSLO")
    record = credit(run(Search("s"), Assert((FACT,)), Assert((again, FACT)), Answer("Rome"))).trajectories[0]
    assert record.steps[2].shaping == 0.0
    assert record.steps[2].process == 0.0


def test_cluster_members_are_unique_triples_and_support_counts_trajectories() -> None:
    again = Triple("anna berg", "was born in", "OSLO")
    result = credit(usual("Oslo", FACT, again, FACT), usual("Rome", again), usual("Rome", OTHER))
    clusters = {frozenset(cluster.members): cluster.support for cluster in result.clusters}
    assert clusters == {frozenset({FACT, again}): 2, frozenset({OTHER}): 1}
    assert all(len(cluster.members) == len(set(cluster.members)) for cluster in result.clusters)


def test_failures_of_infrastructure_leave_the_statistics() -> None:
    failed = run(Search("s"), Assert((OTHER,)), stop=StopReason.RETRIEVAL_FAILED)
    with_failure, without = credit(WORKED[0], failed, *WORKED[1:]), credit(*WORKED)
    record = with_failure.trajectories[1]
    assert record.excluded
    assert (record.outcome, record.success, record.outcome_advantage) == (0.0, 0.0, 0.0)
    assert [dataclasses.astuple(step) for step in record.steps] == [(0.0, 0.0, 0.0, {}, 0.0)] * 2
    assert with_failure.clusters == without.clusters
    assert with_failure.trajectories[:1] + with_failure.trajectories[2:] == without.trajectories


def test_all_excluded_is_defined() -> None:
    result = credit(run(Search("s"), stop=StopReason.TIMEOUT), run(stop=StopReason.POLICY_FAILED))
    assert (result.baseline, result.clusters) == (0.0, ())
    assert all(record.excluded for record in result.trajectories)


@pytest.mark.parametrize("counting", ["group", "leave-one-out"])
@pytest.mark.parametrize("trajectory", [usual("Oslo", FACT), run(Search("s"), Invalid("no_json")), run()])
def test_one_trajectory_has_no_outcome_advantage(trajectory: Trajectory, counting: str) -> None:
    record = credit(trajectory, counting=counting).trajectories[0]
    assert record.outcome_advantage == 0.0
    assert len(record.steps) == len(trajectory.steps)


def test_a_group_without_asserts_has_no_clusters() -> None:
    result = credit(run(Search("s"), Answer("Oslo")), run(Invalid("no_json")))
    assert result.clusters == ()
    assert result.baseline == 0.0


def test_leave_one_out_takes_the_own_outcome_out_of_the_own_shaping() -> None:
    # FACT is in members 1-3, success 1, 1, 0, 0. Without member 1: N=2, S=1, P=1/2, baseline 1/3.
    # Without member 3: N=2, S=2, P=5/6, baseline 2/3.
    result = credit(*WORKED[:3], usual("Rome", OTHER), counting="leave-one-out")
    assert result.clusters[0].utility == 0.125
    potentials = [record.steps[1].potential for record in result.trajectories[:3]]
    assert potentials == pytest.approx([math.tanh(1 / 6), math.tanh(1 / 6), math.tanh(5 / 6 - 2 / 3)])


def test_process_return_is_the_reward_to_go() -> None:
    plain, gone = credit(*WORKED), credit(*WORKED, process="return")
    steps = [step.process for step in plain.trajectories[0].steps]
    assert [step.process for step in gone.trajectories[0].steps] == pytest.approx(
        [sum(steps), sum(steps[1:]), sum(steps[2:])]
    )


def test_batch_scale_divides_by_the_deviation_over_all_groups() -> None:
    config = CreditConfig(encoder="exact")
    question = Question("q", "?", ("Oslo",))
    groups = [Group(question, WORKED), Group(question, (usual("Rome", OTHER, THIRD), usual("Rome", THIRD)))]
    raw = assign_credit(groups, config, load_encoder("exact"))
    scaled = assign_credit(groups, config.model_copy(update={"process_scale": "batch-std"}), load_encoder("exact"))
    steps = [
        (a.process, b.process, b.advantage - t.outcome_advantage)
        for g, h in zip(raw, scaled, strict=True)
        for t, u in zip(g.trajectories, h.trajectories, strict=True)
        for a, b in zip(t.steps, u.steps, strict=True)
    ]
    mean = sum(a for a, _, _ in steps) / len(steps)
    std = math.sqrt(sum((a - mean) ** 2 for a, _, _ in steps) / (len(steps) - 1))
    for a, b, term in steps:
        assert b == pytest.approx(a / (std + 1e-6))
        assert term == pytest.approx(0.5 * b)


def test_zero_weight_is_outcome_only_bit_for_bit() -> None:
    trajectories = (*WORKED, run(Invalid("x"), Search("s"), Search("s"), Answer("Oslo")))
    for record in credit(*trajectories, process_weight=0.0).trajectories:
        assert {step.advantage for step in record.steps} == {record.outcome_advantage}


def test_contrast_reports_the_posterior_that_it_used() -> None:
    cluster = credit(*WORKED[:3], usual("Rome", OTHER), utility="contrast").clusters[0]
    assert cluster.posterior_mean == 0.625  # (2 + .5) / (3 + 1): the centred prior of a group at one half
    assert cluster.utility == pytest.approx(0.625 - 0.25)


def test_an_empty_batch_is_an_empty_list() -> None:
    config = CreditConfig(encoder="exact", process_scale="batch-std")
    assert assign_credit([], config, load_encoder("exact")) == []


@pytest.mark.parametrize(
    "options",
    [
        {"attribution": 1.2}, {"attribution": -0.1}, {"process_weight": -1.0}, {"process_weight": math.inf},
        {"prior": "flat"}, {"prior_strength": 0.0}, {"success_threshold": 0.0}, {"parse_error_penalty": -0.1},
        {"similarity_threshold": 1.5}, {"omega": 0.5}, {"consensus": math.nan},
    ],
)  # fmt: skip
def test_configuration_refuses_what_is_out_of_range_or_unknown(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CreditConfig(**options)


def test_defaults_are_the_papers() -> None:
    config = CreditConfig()
    assert (config.attribution, config.process_weight, config.prior, config.prior_strength) == (
        0.2,
        0.5,
        "symmetric",
        0.5,
    )
    assert (config.success, config.outcome, config.utility, config.consensus) == ("em", "f1", "relative", 0.0)
    assert (config.process_scale, config.process, config.linkage, config.counting) == (
        "raw",
        "shaping",
        "leader",
        "group",
    )
    assert (config.parse_error_penalty, config.duplicate_search_penalty, config.premature_answer_penalty) == (
        0.1,
        0.01,
        0.1,
    )
