"""VinePPO's values in a world small enough to value by hand, and Tree-GRPO's groups in the same world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from factagent.errors import ConfigError
from factagent.methods.tree import TreeSettings, sample_trees
from factagent.methods.vine import VineSettings, fill_backwards, vine_values
from factagent.policies.base import GenerationRequest, seed_of
from factagent.protocols import build_protocol
from factagent.protocols.actions import render_action
from factagent.retrieval.base import Found, RetrievalError, SearchRequest
from factagent.rollout import RolloutSettings, sample_groups
from factagent.types import Answer, Generation, Group, Passage, Question, Search, StopReason, Trajectory

PROTOCOL = build_protocol("factagent", "factagent-terse")
QUESTION = Question("q", "left or right?", ("gold",))
VALUES = {(): 0.5, ("left",): 0.75, ("right",): 0.25}
"""Search left or right, each with probability 1/2; the answer is then right with probability 3/4 or 1/4."""


def reward(question: Question, trajectory: Trajectory) -> float:
    return float(trajectory.answer in question.answers)


@dataclass
class World:
    """The policy of that world. `draw` gives each generation its number in [0, 1)."""

    draw: Callable[[GenerationRequest], float]
    keys: list[tuple[str | int, ...]] = field(default_factory=list)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.keys += [request.key for request in requests]
        return [self.reply(request) for request in requests]

    def reply(self, request: GenerationRequest) -> Generation:
        queries = request.state.queries
        low = self.draw(request) < (VALUES[queries] if queries else 0.5)
        action = Answer("gold" if low else "wrong") if queries else Search("left" if low else "right")
        text = render_action(action)
        return Generation(text, (1,), tuple(range(len(text))), (0.0,) * len(text))


@dataclass
class Shelf:
    """Finds a passage that repeats the query; fails where the key of the search says so."""

    fails: Callable[[SearchRequest], bool] = lambda request: False

    def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        return [RetrievalError("down") if self.fails(r) else (Passage(r.query, "", r.query),) for r in requests]


def chance(request: GenerationRequest) -> float:
    return Random(seed_of((*request.key, "world"))).random()


def stratified(request: GenerationRequest) -> float:
    """Continuation i of 16 draws i mod 4 first and i div 4 then, so that 16 continuations give the exact mean."""
    twin = request.key[-2]
    assert isinstance(twin, int)
    return (twin % 4) / 4 if not request.state.queries else (twin // 4 % 4) / 4


def sample(size: int = 6, rounds: int = 8, questions: Sequence[Question] = (QUESTION,)) -> list[Group]:
    settings = RolloutSettings(size, rounds)
    return sample_groups(questions, PROTOCOL, World(chance), Shelf(), settings, ("train", 1))


def value(groups: Sequence[Group], policy: World, vine: VineSettings, shelf: Shelf | None = None, rounds: int = 8):
    settings = RolloutSettings(6, rounds)
    return vine_values(groups, reward, PROTOCOL, policy, shelf or Shelf(), settings, ("measure", 1), vine)


# --- values --------------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_world() -> None:
    groups = sample()
    found = value(groups, World(stratified), VineSettings(16, reuse_group=False))
    assert {t.steps[0].observation.query for t in groups[0].trajectories if t.steps[0].observation} == {"left", "right"}
    for trajectory, row in zip(groups[0].trajectories, found.values[0], strict=True):
        assert trajectory.steps[0].observation is not None
        assert row.tolist() == [0.5, VALUES[trajectory.steps[0].observation.query,], 0.0]


def test_random_continuations_come_near_the_values() -> None:
    found = value(sample(), World(chance), VineSettings(1500, reuse_group=False))
    for trajectory, row in zip(sample()[0].trajectories, found.values[0], strict=True):
        assert trajectory.steps[0].observation is not None
        expected = [0.5, VALUES[trajectory.steps[0].observation.query,], 0.0]
        assert np.abs(row - expected).max() < 4 * 0.5 / np.sqrt(1500)


def test_shared_states_are_estimated_once() -> None:
    policy = World(stratified)
    found = value(sample(), policy, VineSettings(16, reuse_group=False))
    # Six members in two states each; distinct are the first state, left and right.
    assert (found.visits, found.states) == (12, 3)
    assert len(policy.keys) == 16 * (2 + 1 + 1)
    assert len(set(policy.keys)) == len(policy.keys)


def test_the_group_s_own_returns_may_value_the_first_state() -> None:
    groups = sample()
    policy = World(stratified)
    found = value(groups, policy, VineSettings(16))
    mean = np.mean([reward(QUESTION, trajectory) for trajectory in groups[0].trajectories])
    assert [row[0] for row in found.values[0]] == [mean] * 6
    assert (found.visits, found.states, len(policy.keys)) == (6, 2, 32)


def test_a_lone_member_is_not_its_own_baseline() -> None:
    found = value(sample(1), World(stratified), VineSettings(16))
    assert found.values[0][0][0] == 0.5


def test_tokens_of_the_continuations_are_counted_without_their_prefix() -> None:
    groups = sample(1)
    found = value(groups, World(stratified), VineSettings(16))
    answer = {True: len(render_action(Answer("gold"))), False: len(render_action(Answer("wrong")))}
    search = {True: len(render_action(Search("left"))), False: len(render_action(Search("right")))}
    (trajectory,) = groups[0].trajectories
    assert trajectory.steps[0].observation is not None
    gold = int(16 * VALUES[trajectory.steps[0].observation.query,])
    second = gold * answer[True] + (16 - gold) * answer[False]
    first = 8 * search[True] + 8 * search[False] + 8 * answer[True] + 8 * answer[False]
    assert found.tokens == first + second


def test_the_same_key_gives_the_same_values_whatever_the_batch() -> None:
    questions = [QUESTION, Question("p", "up or down?", ("gold",))]
    groups = sample(questions=questions)
    together = value(groups, World(chance), VineSettings(4))
    alone = [value([group], World(chance), VineSettings(4)) for group in groups]
    assert [[row.tolist() for row in group] for group in together.values] == [
        [row.tolist() for row in each.values[0]] for each in alone
    ]
    other = vine_values(
        groups, reward, PROTOCOL, World(chance), Shelf(), RolloutSettings(6), ("measure", 2), VineSettings(4)
    )
    assert [row.tolist() for row in other.values[0]] != [row.tolist() for row in together.values[0]]


def test_continuations_have_the_rounds_that_are_left() -> None:
    """With one round left after the search, an answer is still possible; with none, the search was the last action."""
    one = sample(2, rounds=1)
    assert {str(t.stop_reason) for t in one[0].trajectories} == {"out_of_rounds"}
    found = value(one, World(stratified), VineSettings(16, reuse_group=False), rounds=1)
    assert [row.tolist() for row in found.values[0]] == [[0.0, 0.0], [0.0, 0.0]]
    two = value(sample(2, rounds=2), World(stratified), VineSettings(16, reuse_group=False), rounds=2)
    assert two.values[0][0][0] == 0.5


def test_failed_continuations_are_left_out_and_failed_members_get_zeros() -> None:
    groups = sample()
    # Only continuations that go left fail: what remains went right and is right in one of four cases.
    shelf = Shelf(lambda request: request.query == "left")
    found = value(groups, World(stratified), VineSettings(16, reuse_group=False), shelf)
    assert {row[0] for row in found.values[0]} == {0.25}
    settings = RolloutSettings(2)
    failed = sample_groups([QUESTION], PROTOCOL, World(chance), Shelf(lambda request: True), settings, ("train", 1))
    assert {t.stop_reason for t in failed[0].trajectories} == {StopReason.RETRIEVAL_FAILED}
    policy = World(stratified)
    found = value(failed, policy, VineSettings(4))
    assert [row.tolist() for row in found.values[0]] == [[0.0, 0.0], [0.0, 0.0]]
    assert policy.keys == []


def test_a_state_whose_continuations_all_fail_is_filled_from_behind() -> None:
    found = value(sample(), World(stratified), VineSettings(16, reuse_group=False), Shelf(lambda request: True))
    for row in found.values[0]:
        assert row[0] == row[1] > 0


def test_states_beyond_the_limit_take_the_return_of_their_own_trajectory() -> None:
    groups = sample()
    policy = World(stratified)
    found = value(groups, policy, VineSettings(16, max_states=0))
    assert policy.keys == []
    for trajectory, row in zip(groups[0].trajectories, found.values[0], strict=True):
        assert row[1:].tolist() == [reward(QUESTION, trajectory), 0.0]


@pytest.mark.parametrize(
    ("known", "outcome", "values"),
    [
        ([0.4, 0.6, 0.9], 1.0, [0.4, 0.6, 0.9, 0.0]),
        ([0.4, None, None], 0.5, [0.4, 0.5, 0.5, 0.0]),
        ([None, 0.3], 1.0, [0.3, 0.3, 0.0]),
        ([None], 0.0, [0.0, 0.0]),
        ([], 0.0, [0.0]),
    ],
)
def test_missing_values_are_filled_from_behind(known, outcome: float, values: list[float]) -> None:
    assert fill_backwards(known, outcome).tolist() == values


def test_the_vector_of_the_specification() -> None:
    """V = [.4, .6, .9], R = 1 at step 3: advantages [.2, .3, .1]."""
    values = fill_backwards([0.4, 0.6, 0.9], 1.0)
    rewards = np.array([0.0, 0.0, 1.0])
    assert (rewards + values[1:] - values[:-1]) == pytest.approx([0.2, 0.3, 0.1])


# --- trees ---------------------------------------------------------------------------------------------------------


def grow(shape: TreeSettings, policy: World | None = None, questions: Sequence[Question] = (QUESTION,)):
    settings = RolloutSettings(shape.group_size)
    return sample_trees(questions, PROTOCOL, policy or World(chance), Shelf(), settings, ("train", 1), shape)


def test_groups_are_the_leaves_of_trees() -> None:
    questions = [Question(f"q{i}", "left or right?", ("gold",)) for i in range(20)]
    groups, trees, _ = grow(TreeSettings(), questions=questions)
    assert trees == [(0, 0, 0, 1, 1, 1)] * 20
    assert [group.question for group in groups] == questions
    for group in groups:
        assert [trajectory.member for trajectory in group.trajectories] == list(range(6))
        for trajectory in group.trajectories:
            assert trajectory.stop_reason is StopReason.ANSWERED
            assert len(trajectory.steps) == 2
    # An expansion starts at the root or behind the search, with the same chance where a trunk has two inner states.
    shared = Counter(
        group.trajectories[first].steps[0].generation is group.trajectories[second].steps[0].generation
        for group in groups
        for first, second in ((0, 1), (0, 2), (3, 4), (3, 5))
    )
    assert 20 < shared[True] < 60
    assert all(g.trajectories[0].steps[0].generation is not g.trajectories[3].steps[0].generation for g in groups)


def test_shared_prefixes_are_sampled_once() -> None:
    policy = World(chance)
    groups, _, tokens = grow(TreeSettings(), policy)
    assert len(set(policy.keys)) == len(policy.keys)
    steps = {id(step.generation): step for t in groups[0].trajectories for step in t.steps}
    assert len(policy.keys) == len(steps)
    assert tokens == sum(len(step.generation.response_ids) for step in steps.values())


def test_rounds_may_expand_what_earlier_rounds_grew_and_leaves_are_drawn() -> None:
    shape = TreeSettings(trees=1, expansions=2, rounds=3, leaves=4)
    groups, trees, _ = grow(shape)
    assert trees == [(0,) * 4]
    assert len(groups[0].trajectories) == 4
    again, _, _ = grow(shape)
    assert again == groups


def test_a_tree_without_expansions_is_a_chain() -> None:
    groups, trees, _ = grow(TreeSettings(trees=3, expansions=0, rounds=0, leaves=1))
    assert trees == [(0, 1, 2)]
    assert len({id(trajectory.steps[0].generation) for trajectory in groups[0].trajectories}) == 3


def test_the_group_size_must_be_the_number_of_leaves() -> None:
    with pytest.raises(ConfigError, match=r"set rollout\.group_size=6"):
        sample_trees([QUESTION], PROTOCOL, World(chance), Shelf(), RolloutSettings(5), (), TreeSettings())
    with pytest.raises(ValueError, match="fewer than leaves=4"):
        TreeSettings(leaves=4)
    with pytest.raises(ValueError, match="continuations must be at least 1"):
        VineSettings(0)
