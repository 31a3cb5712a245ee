"""Every credit rule: its conformance vector (methods.md section 14), its degenerate groups, its configuration."""

from __future__ import annotations

import math
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from factagent.configuration import dump_toml, load_config
from factagent.credit.advantages import whiten
from factagent.credit.anchors import anchors, cluster_anchors
from factagent.credit.assign import GroupCredit, assign_credit
from factagent.credit.config import CreditConfig, RuleConfig
from factagent.credit.egrpo import EgrpoConfig, entity_metrics, entity_shares
from factagent.credit.encoders import load_encoder
from factagent.credit.gae import GaeConfig, gae_advantages
from factagent.credit.gigpo import GigpoConfig, discounted_returns
from factagent.credit.igpo import IgpoConfig
from factagent.credit.measured import Measured
from factagent.credit.outcome import OutcomeConfig, ReinforceConfig
from factagent.credit.rule_choice import AnyRule, assign, rule_metrics
from factagent.credit.tree_grpo import TreeGrpoConfig
from factagent.credit.vine import VineConfig
from factagent.episode import FORCED
from factagent.errors import ConfigError, DataError, UsageError
from factagent.outcomes import OUTCOMES
from factagent.train.config import RunConfig
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

EXACT = load_encoder("exact")
QUESTION = Question("q1", "Where was Anna Berg born?", ("Oslo",), supporting_titles=("Anna Berg", "Oslo"))
OPTIONS = {"outcome": "em", "needs_facts": False}
RULES: tuple[type[RuleConfig], ...] = (
    OutcomeConfig, ReinforceConfig, GigpoConfig, EgrpoConfig, VineConfig, IgpoConfig, TreeGrpoConfig, GaeConfig,
)  # fmt: skip


def step(action: Action, text: str = "", found: str | None = None, **generation: object) -> Step:
    observation = None if found is None else Observation("q", (Passage(found, found, found),))
    return Step(action, Generation(text, **generation), observation)  # type: ignore[arg-type]


def run(*steps: Step, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    return Trajectory(steps, stop)


def answer(response: str = "Oslo", text: str = "", **generation: object) -> Step:
    return step(Answer(response), text, **generation)


def search(found: str, text: str = "") -> Step:
    return step(Search(f"about {found}"), text, found)


def group(*trajectories: Trajectory) -> Group:
    return Group(QUESTION, trajectories)


def credit(config: RuleConfig, *trajectories: Trajectory, measured: Measured | None = None) -> GroupCredit:
    return assign([group(*trajectories)], config, EXACT, measured)[0]  # type: ignore[arg-type]


def advantages(result: GroupCredit) -> list[list[float]]:
    return [[one.advantage for one in trajectory.steps] for trajectory in result.trajectories]


def measured_for(*trajectories: Trajectory) -> Measured:
    """Zeros of the right shape for every kind of measurement; failed members have none."""
    empty = [[np.zeros(0 if t.stop_reason.is_failure else len(t.steps) + 1) for t in trajectories]]
    return Measured(values=empty, gold_logprobs=empty, trees=[[0] * len(trajectories)])


RIGHT, WRONG = run(answer()), run(answer("Rome"))
FAILED = run(search("x"), stop=StopReason.RETRIEVAL_FAILED)


# -- outcome, reinforce --------------------------------------------------------------------------------------------


def test_grpo() -> None:
    result = credit(OutcomeConfig(**OPTIONS), RIGHT, WRONG, WRONG, WRONG, RIGHT)
    assert np.ravel(advantages(result)) == pytest.approx([1.0954, -0.7303, -0.7303, -0.7303, 1.0954], abs=5e-5)
    assert (result.baseline, result.clusters) == (0.4, ())


def test_outcome_is_the_factagent_rule_without_process() -> None:
    members = (run(search("a"), step(Assert((Triple("a", "b", "c"),))), answer()), WRONG, RIGHT)
    plain = credit(OutcomeConfig(), *members)
    full = assign_credit([group(*members)], CreditConfig(encoder="exact", process_weight=0.0), EXACT)[0]
    assert advantages(plain) == advantages(full)
    assert [t.outcome for t in plain.trajectories] == [1.0, 0.0, 0.0]  # answers without facts earn nothing


def test_reinforce_gives_the_raw_return_to_every_step() -> None:
    result = credit(ReinforceConfig(outcome="f1", needs_facts=False), run(search("a"), answer("Oslo Norway")), WRONG)
    assert advantages(result) == [[pytest.approx(2 / 3)] * 2, [0.0]]


def test_without_a_store_no_answer_is_premature() -> None:
    config = CreditConfig(encoder="exact", needs_facts=False)
    result = assign_credit([group(RIGHT, WRONG)], config, EXACT)[0]
    assert [t.outcome for t in result.trajectories] == [1.0, 0.0]
    assert [s.penalties for t in result.trajectories for s in t.steps] == [{}, {}]


# -- gigpo ---------------------------------------------------------------------------------------------------------

LONG = run(search("a"), search("b"), answer())


def test_gigpo_worked_numbers() -> None:
    assert discounted_returns(np.array([0.0, 0.0, 1.0]), 0.95).tolist() == pytest.approx([0.9025, 0.95, 1.0])
    config = GigpoConfig(**OPTIONS)
    total = advantages(credit(config, LONG, WRONG))
    assert np.concatenate(total) == pytest.approx([1.2071, 0.5, 0.5, -2.2071], abs=5e-5)
    episode = advantages(credit(config.model_copy(update={"omega": 0.0}), LONG, WRONG))
    assert np.concatenate(episode) == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=5e-5)
    by_trajectory = config.model_copy(update={"omega": 0.0, "cross_steps": False})
    assert np.concatenate(advantages(credit(by_trajectory, LONG, WRONG))) == pytest.approx(
        [0.7071, 0.7071, 0.7071, -0.7071], abs=5e-5
    )


def test_gigpo_without_division() -> None:
    result = advantages(credit(GigpoConfig(mode="mean_norm", **OPTIONS), LONG, WRONG))
    assert np.concatenate(result) == pytest.approx([0.25 + 0.45125, 0.25, 0.25, -0.75 - 0.45125])


def test_steps_that_saw_the_same_share_a_state_at_any_depth() -> None:
    one = run(search("a"), search("b"), answer())
    other = run(search("b"), answer("Rome"))
    result = credit(GigpoConfig(omega=1.0, mode="mean_norm", **OPTIONS), one, other)
    episode = 0.4  # mean outcome over five rows is 3 / 5
    step_part = [row[-1] - shift for row, shift in zip(advantages(result), (episode, -0.6), strict=True)]
    assert step_part == pytest.approx([0.5, -0.5])  # both answers were given after seeing b


def test_similar_observations_are_one_anchor() -> None:
    passage = "Oslo is the capital of Norway and lies on a fjord"
    texts = [passage, passage + ".", "something else", passage, "", ""]
    assert cluster_anchors(texts, 0.9) == [0, 0, 1, 0, 2, 2]
    assert cluster_anchors(texts, None) == [0, 1, 2, 0, 3, 3]
    # The representative is the first member: the third is near the second only.
    assert cluster_anchors(["aaaaaaaaaa", "aaaaaaaaab", "aaaaaaaabb"], 0.9) == [0, 0, 1]


@given(
    st.lists(
        st.text(alphabet="ab ", max_size=30) | st.sampled_from(["oslo lies in norway", "oslo lies on a fjord"]),
        max_size=8,
    ),
    st.sampled_from([0.5, 0.8, 0.9, 0.95, 1.0]),
)
def test_the_quick_way_clusters_as_difflib_does(pieces: list[str], threshold: float) -> None:
    texts = [*pieces, *(first + second for first, second in pairwise(pieces)), *(piece + "." for piece in pieces)]
    leaders: list[str] = []
    for text, label in zip(texts, cluster_anchors(texts, threshold), strict=True):
        alike = [i for i, leader in enumerate(leaders) if SequenceMatcher(None, text, leader).ratio() >= threshold]
        assert label == (alike[0] if alike else len(leaders))
        if not alike:
            leaders.append(text)


def test_anchors_of_observations_and_of_states() -> None:
    fact = Triple("Anna", "born in", "Oslo")
    steps = (search("a"), step(Assert((fact,))), step(Invalid("no_json")), search("b"), answer())
    seen = anchors(QUESTION, steps, "observation")
    assert seen[0] == QUESTION.text
    assert "a" in seen[1]
    assert seen[2:4] == ["", ""]
    states = anchors(QUESTION, steps, "state")
    assert states[1] != states[2] == states[3] != states[4]
    assert "anna born in oslo" in states[2]
    assert 'Doc 1: "a"' in states[3]
    swapped = (search("a"), step(Assert((Triple("x", "y", "z"), fact))), answer())
    assert (
        anchors(QUESTION, swapped, "state")[2]
        == anchors(
            QUESTION, (search("a"), step(Assert((fact,))), step(Assert((Triple("x", "y", "z"),))), answer()), "state"
        )[3]
    )
    memory = (search("a"), step(Assert((), "what I know")), answer())
    assert anchors(QUESTION, memory, "state")[2].endswith("what I know")
    assert anchors(QUESTION, (), "observation") == anchors(QUESTION, (), "state") == []


def test_invalid_steps_are_charged() -> None:
    config = GigpoConfig(omega=0.0, mode="mean_norm", **OPTIONS)
    bad = run(step(Invalid("no_tags")), answer())
    result = credit(config, bad, RIGHT, WRONG)
    mean = (0.99 + 1 + 1 + 0) / 4
    assert np.concatenate(advantages(result)) == pytest.approx([0.99 - mean, 1 - mean, 1 - mean, -mean])
    assert result.trajectories[0].steps[0].penalties == {"invalid_action": -0.01}
    assert result.trajectories[0].steps[1].penalties == {}


def test_invalid_steps_lower_the_return_of_those_before() -> None:
    config = GigpoConfig(mode="mean_norm", **OPTIONS)
    late = run(search("a"), step(Invalid("no_tags")), answer("Rome"))
    result = credit(config, late, run(search("a"), search("z"), answer("Rome")))
    first, second = (t.steps[0] for t in result.trajectories)
    assert first.advantage - second.advantage == pytest.approx(-0.01 * 0.95)


def test_a_reply_can_be_acted_on_and_still_be_invalid() -> None:
    both = run(step(Search("q"), "<search>q</search><answer>x</answer>", "a"), answer("Oslo", "<answer>Oslo</answer>"))
    config = GigpoConfig(omega=0.0, **OPTIONS)
    assert [s.penalties for s in credit(config, both, WRONG).trajectories[0].steps] == [{}, {}]
    strict = config.model_copy(update={"validity": "reply"})
    assert [bool(s.penalties) for s in credit(strict, both, WRONG).trajectories[0].steps] == [True, False]


def test_forced_steps_are_no_rows() -> None:
    forced = step(Search("q"), found="a", finish_reason=FORCED)
    result = credit(GigpoConfig(**OPTIONS), run(forced, answer()), run(forced, answer("Rome")))
    rows = [row[1] for row in advantages(result)]
    assert rows == pytest.approx([2 * 0.7071, -2 * 0.7071], abs=1e-4)
    assert [row[0] for row in advantages(result)] == pytest.approx([0.7071, -0.7071], abs=1e-4)


def test_penalties_alone_are_normalised_like_any_spread() -> None:
    bad = run(step(Invalid("no_tags")), answer("Rome"))
    result = np.concatenate(advantages(credit(GigpoConfig(omega=0.0, **OPTIONS), bad, WRONG)))
    assert result == pytest.approx([-1.1547, 0.5774, 0.5774], abs=1e-3)
    quiet = GigpoConfig(omega=0.0, cross_steps=False, **OPTIONS)
    assert np.concatenate(advantages(credit(quiet, bad, WRONG))) == pytest.approx([-0.01, 0.0, 0.0])


# -- e-grpo --------------------------------------------------------------------------------------------------------

FOUR = Question("q1", "?", ("Oslo",), supporting_titles=("Ann", "Bob", "Cid", "Dan"))


def thinker(names: str, response: str = "Rome", **generation: object) -> Trajectory:
    return run(answer(response, f"<think>{names}</think> <answer>Ann Bob Cid Dan</answer>", **generation))


def four(*trajectories: Trajectory, **options: object) -> GroupCredit:
    return assign([Group(FOUR, trajectories)], EgrpoConfig(needs_facts=False, **options), EXACT)[0]  # type: ignore[arg-type]


MALFORMED = run(step(Invalid("no_tags"), "<think>Ann Bob Cid</think>"), stop=StopReason.OUT_OF_ROUNDS)


def test_egrpo_worked_numbers() -> None:
    result = four(thinker("Ann Bob Cid", "Oslo"), thinker("Ann and Bob"), thinker("Ann"), MALFORMED)
    assert [t.outcome for t in result.trajectories] == pytest.approx([1.0, 0.2, 0.1, 0.0])
    assert np.ravel(advantages(result)) == pytest.approx([1.4759, -0.2733, -0.4920, -0.7106], abs=5e-5)
    assert result.trajectories[1].steps[0].potential == 0.5
    assert [t.success for t in result.trajectories] == [1.0, 0.0, 0.0, 0.0]


def test_only_thoughts_count_and_verbatim() -> None:
    config = EgrpoConfig()
    quoted = run(step(Search("q"), "<search>Ann</search>", "Bob"), answer("Rome", "<think>cid</think>"))
    assert entity_shares(FOUR, quoted, config).tolist() == [0.0, 0.0]
    assert entity_shares(FOUR, quoted, EgrpoConfig(matching="normalised")).tolist() == [0.0, 0.25]
    spread = run(step(Search("q"), "Ann, so</think>", "x"), answer("Rome", "<think>Ann</think><think>Dan</think>"))
    assert entity_shares(FOUR, spread, config).tolist() == [0.25, 0.5]
    assert entity_shares(FOUR, run(answer("Rome", "<think>Ann and no end")), config).tolist() == [0.0]


def test_overlong_stays_in_the_statistics_without_credit() -> None:
    result = four(thinker("Ann", "Oslo"), thinker("Ann", finish_reason="length"), thinker("Ann Bob"), thinker(""))
    assert [t.outcome for t in result.trajectories] == pytest.approx([1.0, 0.0, 0.3, 0.0])
    assert advantages(result)[1] == [0.0]
    assert advantages(result)[3][0] < 0.0
    assert not any(t.excluded for t in result.trajectories)
    too_long = run(search("x"), stop=StopReason.PROMPT_TOO_LONG)
    assert advantages(four(thinker("Ann", "Oslo"), too_long))[1] == [0.0]


def test_a_right_answer_behind_an_invalid_reply_counts() -> None:
    stumble = step(Invalid("no_tags"), "<think>Ann Bob</think>")
    right, wrong = run(stumble, answer("Oslo")), run(stumble, answer("Rome"))
    assert [t.outcome for t in four(right, wrong, thinker("Ann")).trajectories] == pytest.approx([1.0, 0.0, 0.15])


def test_without_entities_the_plain_outcome_counts() -> None:
    question = Question("q1", "?", ("Oslo",))
    members = (thinker("Oslo", "Rome"), thinker("Oslo", "Oslo"))
    config = EgrpoConfig(needs_facts=False)
    (plain,) = assign([Group(question, members)], config, EXACT)
    assert [t.outcome for t in plain.trajectories] == [0.0, 1.0]
    (answers,) = assign([Group(question, members)], config.model_copy(update={"entities": "titles-or-answers"}), EXACT)
    assert [t.outcome for t in answers.trajectories] == pytest.approx([0.3, 1.0])


def test_the_answer_entity_is_reported() -> None:
    config = EgrpoConfig(needs_facts=False, entities="titles-and-answers")
    groups = [Group(FOUR, (thinker("Oslo Ann"), thinker("Ann"), thinker("Oslo", "Oslo"), MALFORMED))]
    assert rule_metrics(groups, config) == pytest.approx(
        {"entity_rate": (0.4 + 0.2 + 0.2 + 0.6) / 4, "entity_answer_named": 0.5}
    )
    assert entity_metrics([], config) == {"entity_rate": 0.0, "entity_answer_named": 0.0}
    assert rule_metrics(groups, OutcomeConfig()) == {}


# -- vine, igpo, tree-grpo, gae ------------------------------------------------------------------------------------

THREE = run(search("a"), search("b"), answer())


def test_vine_worked_numbers() -> None:
    measured = Measured(values=[[np.array([0.4, 0.6, 0.9, 0.0])]])
    result = credit(VineConfig(whiten="none", **OPTIONS), THREE, measured=measured)
    assert advantages(result)[0] == pytest.approx([0.2, 0.3, 0.1])
    assert [s.potential for s in result.trajectories[0].steps] == [0.6, 0.9, 0.0]
    white = advantages(credit(VineConfig(**OPTIONS), THREE, measured=measured))[0]
    assert np.mean(white) == pytest.approx(0.0)
    assert np.std(white, ddof=1) == pytest.approx(1.0, abs=1e-4)


def test_vine_whitens_over_the_tokens_of_the_batch() -> None:
    two = run(step(Search("a"), found="a", response_tokens=3), answer(response_tokens=1))
    groups = [group(two), group(WRONG)]
    measured = Measured(values=[[np.array([0.5, 0.75, 0.0])], [np.array([0.25, 0.0])]])
    config = VineConfig(**OPTIONS)
    first, second = assign(groups, config, EXACT, measured)
    expected = whiten(np.array([0.25, 0.25, -0.25]), np.array([3.0, 1.0, 0.0]))
    assert [*advantages(first)[0], *advantages(second)[0]] == pytest.approx(expected.tolist())
    by_step = assign(groups, config.model_copy(update={"whiten": "steps"}), EXACT, measured)
    plain = whiten(np.array([0.25, 0.25, -0.25]), np.ones(3))
    assert [*advantages(by_step[0])[0], *advantages(by_step[1])[0]] == pytest.approx(plain.tolist())


def test_igpo_worked_numbers() -> None:
    logprobs = [[np.log([0.1, 0.3, 0.7, 0.9]), np.log([0.1, 0.2])]]
    result = credit(IgpoConfig(**OPTIONS), THREE, WRONG, measured=Measured(gold_logprobs=logprobs))
    # Returns: [.2 + .4 + 1, .4 + 1, 1] and [0]; turn 0 has two members, later turns one.
    assert advantages(result) == [pytest.approx([0.8, 0.0, 0.0]), pytest.approx([-0.8])]
    assert [s.shaping for s in result.trajectories[0].steps] == pytest.approx([0.2, 0.4, 1.0])
    assert [s.potential for s in result.trajectories[0].steps] == pytest.approx([0.3, 0.7, 0.9])


def test_igpo_charges_a_missing_answer() -> None:
    silent = run(step(Invalid("x")), stop=StopReason.OUT_OF_ROUNDS)
    measured = Measured(gold_logprobs=[[np.log([0.1, 0.1])] * 2])
    result = credit(IgpoConfig(**OPTIONS), silent, WRONG, measured=measured)
    assert advantages(result) == [[-1.0], [1.0]]
    assert result.trajectories[0].outcome == 0.0


def test_tree_grpo_adds_two_levels() -> None:
    members = (RIGHT, WRONG, RIGHT, RIGHT)
    measured = Measured(trees=[[0, 0, 1, 1]])
    both = credit(TreeGrpoConfig(**OPTIONS), *members, measured=measured)
    across = [t.outcome_advantage for t in both.trajectories]
    assert across == pytest.approx([0.5, -1.5, 0.5, 0.5], abs=1e-5)
    inner = credit(TreeGrpoConfig(levels="tree", **OPTIONS), *members, measured=measured)
    assert np.ravel(advantages(inner)) == pytest.approx([0.7071, -0.7071, 0.0, 0.0], abs=1e-4)
    assert np.ravel(advantages(both)) == pytest.approx([1.2071, -2.2071, 0.5, 0.5], abs=1e-4)


def test_gae_over_steps() -> None:
    rewards_S, values_S = np.array([0.0, 0.0, 1.0]), np.array([0.4, 0.6, 0.9, 5.0])
    assert gae_advantages(rewards_S, values_S).tolist() == pytest.approx([0.6, 0.4, 0.1])
    assert gae_advantages(rewards_S, values_S, lam=0.0).tolist() == pytest.approx([0.2, 0.3, 0.1])
    gamma, lam = 0.9, 0.5
    deltas = [0.9 * 0.6 - 0.4, 0.9 * 0.9 - 0.6, 1 - 0.9]
    expected = [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(3)]
    assert gae_advantages(rewards_S, values_S, gamma, lam).tolist() == pytest.approx(expected)
    assert gae_advantages(np.zeros(0), np.zeros(1)).tolist() == []
    assert gae_advantages(np.ones(1), np.array([0.25, 0.0])).tolist() == [0.75]


def test_gae_with_and_without_values() -> None:
    config = GaeConfig(**OPTIONS)
    assert advantages(credit(config, THREE, WRONG)) == [[1.0] * 3, [0.0]]
    values = [[np.array([0.4, 0.6, 0.9, 0.0]), np.array([0.5, 0.0])]]
    result = credit(config, THREE, WRONG, measured=Measured(values=values))
    assert advantages(result) == [pytest.approx([0.6, 0.4, 0.1]), [-0.5]]


# -- degenerate groups ---------------------------------------------------------------------------------------------

COMPARING = [rule for rule in RULES if rule.compares_members]


def flat(config: RuleConfig, *trajectories: Trajectory) -> list[float]:
    result = credit(config, *trajectories, measured=measured_for(*trajectories))
    return [value for row in advantages(result) for value in row]


@pytest.mark.parametrize("rule", COMPARING, ids=lambda rule: rule.__name__)
def test_a_lone_member_learns_nothing(rule: type[RuleConfig]) -> None:
    config = rule(**OPTIONS)
    for lone in (RIGHT, WRONG, LONG, run(step(Invalid("x")), answer())):
        assert set(flat(config, lone)) == {0.0}
        assert set(flat(config, lone, FAILED)) == {0.0}


@pytest.mark.parametrize("rule", COMPARING, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("member", [RIGHT, WRONG, LONG])
def test_equal_members_learn_nothing(rule: type[RuleConfig], member: Trajectory) -> None:
    assert set(flat(rule(**OPTIONS), member, member, member)) == {0.0}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_failed_throughout_gives_zero(rule: type[RuleConfig]) -> None:
    assert set(flat(rule(**OPTIONS), WRONG, WRONG)) == {0.0}


@pytest.mark.parametrize("rule", [ReinforceConfig, VineConfig, GaeConfig], ids=lambda rule: rule.__name__)
def test_a_lone_member_keeps_its_return_where_none_is_compared(rule: type[RuleConfig]) -> None:
    options = OPTIONS | ({"whiten": "none"} if rule is VineConfig else {})
    assert flat(rule(**options), RIGHT) == [1.0]
    assert flat(rule(**options), RIGHT, RIGHT) == [1.0, 1.0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_failures_leave_all_statistics(rule: type[RuleConfig]) -> None:
    config = rule(**OPTIONS)
    with_failure = credit(config, LONG, FAILED, WRONG, measured=measured_for(LONG, FAILED, WRONG))
    without = credit(config, LONG, WRONG, measured=measured_for(LONG, WRONG))
    assert [with_failure.trajectories[i] for i in (0, 2)] == list(without.trajectories)
    failed = with_failure.trajectories[1]
    assert (failed.excluded, failed.outcome, failed.steps[0].advantage) == (True, 0.0, 0.0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_groups_without_anything_to_credit(rule: type[RuleConfig]) -> None:
    config = rule(**OPTIONS)
    excluded = credit(config, FAILED, FAILED, measured=measured_for(FAILED, FAILED))
    assert excluded.baseline == 0.0
    assert all(t.excluded for t in excluded.trajectories)
    stepless = run(stop=StopReason.PROMPT_TOO_LONG)
    result = credit(config, stepless, stepless, measured=measured_for(stepless, stepless))
    assert [t.steps for t in result.trajectories] == [(), ()]
    assert assign([], config, EXACT, Measured(values=[], gold_logprobs=[], trees=[])) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_ledger_adds_up(rule: type[RuleConfig]) -> None:
    members = (LONG, WRONG, run(step(Invalid("x")), answer("Rome")))
    for trajectory in credit(rule(**OPTIONS), *members, measured=measured_for(*members)).trajectories:
        for one in trajectory.steps:
            assert math.isfinite(one.advantage)
            assert one.advantage == trajectory.outcome_advantage + one.process


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (VineConfig(), "rule 'vine' needs the values"),
        (IgpoConfig(), "rule 'igpo' needs log-probabilities of the gold"),
        (TreeGrpoConfig(), "rule 'tree-grpo' needs the tree"),
    ],
)
def test_measurements_must_be_there(config: RuleConfig, missing: str) -> None:
    for measured in (None, Measured()):
        with pytest.raises(UsageError, match=missing):
            credit(config, RIGHT, measured=measured)


@pytest.mark.parametrize("values", [np.zeros(1), np.zeros(3), np.array([math.nan, 0.0])])
def test_measurements_must_fit(values: object) -> None:
    for config in (VineConfig(), IgpoConfig(), GaeConfig()):
        with pytest.raises(DataError, match=r"group 'q1', member 0: .* must be 2 numbers for 1 steps"):
            credit(config, RIGHT, measured=Measured(values=[[values]], gold_logprobs=[[values]]))  # type: ignore[list-item]
    with pytest.raises(DataError, match="2 trees given for 1 members"):
        credit(TreeGrpoConfig(), RIGHT, measured=Measured(trees=[[0, 0]]))


# -- configuration -------------------------------------------------------------------------------------------------


def test_every_rule_has_a_name_and_survives_toml(tmp_path) -> None:
    for rule in (*RULES, CreditConfig):
        config = load_config(RunConfig, None, [f"credit.rule={rule().rule}"])  # type: ignore[call-arg]
        assert type(config.credit) is rule
        (tmp_path / "config.toml").write_text(dump_toml(config))
        assert load_config(RunConfig, tmp_path / "config.toml") == config


def test_without_a_rule_it_is_factagents() -> None:
    assert TypeAdapter(AnyRule).validate_python({"process_weight": 2.0}) == CreditConfig(process_weight=2.0)


def test_a_written_configuration_without_rule_still_loads(tmp_path) -> None:
    old = [line for line in dump_toml(RunConfig()).splitlines() if not line.startswith(("rule =", "needs_facts ="))]
    (tmp_path / "config.toml").write_text("\n".join(old))
    assert load_config(RunConfig, tmp_path / "config.toml") == RunConfig()


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["credit.rule=gigop"], r"key 'credit\.rule' = 'gigop' is refused: did you mean 'gigpo'\? known are fact-ut"),
        (["credit.rule=3"], r"key 'credit\.rule' = 3 is refused: known are"),
        (["credit=3"], r"key 'credit' = 3 is refused: input should be a valid dictionary"),
        (["credit.omega=1"], r"unknown key 'credit\.omega'; it is one of gigpo"),
        (["credit.rule=gigpo", "credit.omgea=1"], r"unknown key 'credit\.omgea' of rule = 'gigpo'; did you mean 'cre"),
        (["credit.rule=gigpo", "credit.prior=centred"], r"'credit\.prior' of rule = 'gigpo'; it is one of fact-ut"),
        (["credit.rule=gigpo", "credit.omega=-1"], r"key 'credit\.omega' = -1 is refused: input should be greater"),
        (["credit.rule=vine", "credit.outcome=rouge"], r"key 'credit\.outcome' = 'rouge' is refused"),
    ],
)
def test_errors_name_key_and_rule(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(RunConfig, None, overrides)


def test_another_rule_drops_what_the_layers_below_said_to_the_old_one(tmp_path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[credit]\nrule = "gigpo"\nomega = 2.0\noutcome = "em"\n')
    assert load_config(RunConfig, path).credit == GigpoConfig(omega=2.0, outcome="em")
    assert load_config(RunConfig, path, ["credit.omega=3"]).credit == GigpoConfig(omega=3.0, outcome="em")
    assert load_config(RunConfig, path, ["credit.rule=outcome"]).credit == OutcomeConfig(outcome="em")
    based = load_config(RunConfig, None, ["credit.rule=outcome"], base=load_config(RunConfig, path))
    assert based.credit == OutcomeConfig(outcome="em")


def test_the_reference_names_every_key_of_every_rule(repository) -> None:
    page = (repository / "docs/reference/config.md").read_text(encoding="utf-8")
    general, special = page.split("## Credit rules")[1].split("| `rule` |")
    for name in set(RuleConfig.model_fields) - {"rule"}:
        assert f"| `{name}` |" in general
    for rule in (*RULES, CreditConfig):
        (row,) = [line for line in special.splitlines() if line.startswith(f"| `{rule().rule}` |")]  # type: ignore[call-arg]
        missing = [name for name in set(rule.model_fields) - set(RuleConfig.model_fields) if f"`{name}`" not in row]
        assert missing == []
    for name in OUTCOMES:
        assert f"`{name}`" in special.split("| outcome reward |")[1]
