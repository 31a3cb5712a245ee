"""A trajectory replayed from its record is the trajectory, under every protocol and for every end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factagent.episode import OVERLONG, NeedsGeneration
from factagent.errors import DataError
from factagent.methods.replay import replay
from factagent.policies.base import GenerationRequest, seed_of
from factagent.policies.scripted import ScriptedExpert
from factagent.protocols import PROTOCOLS, build_protocol
from factagent.retrieval.base import Found, RetrievalError, SearchRequest
from factagent.rollout import RolloutSettings, run_episodes, sample_groups
from factagent.types import Generation, Group, Passage, Question, Trajectory, Triple

QUESTIONS = tuple(
    Question(
        f"q{i}",
        f"Where was the author of book {i} born?",
        (f"City {i}",),
        evidences=(
            Triple(f"book {i}", "author", f"person {i}"),
            Triple(f"person {i}", "born in", f"City {i}"),
        ),
    )
    for i in range(2)
)


@dataclass(frozen=True)
class Noisy:
    """The scripted expert, whose replies are now and then garbled or too long; every reply has tokens of its own."""

    protocol: str
    garbled: float
    overlong: float

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        expert = ScriptedExpert("full", noise=0.5, haste=0.1, protocol=self.protocol)
        return [self.disturb(g, r) for g, r in zip(expert.generate(requests), requests, strict=True)]

    def disturb(self, generation: Generation, request: GenerationRequest) -> Generation:
        draw = Random(seed_of((*request.key, "disturb"))).random()
        if draw < self.overlong:
            return Generation("", finish_reason=OVERLONG)
        text = "no <search> action" if draw > 1 - self.garbled else generation.text
        prompt = () if request.prefix is None else request.prefix.prompt_ids + request.prefix.response_ids
        return Generation(text, (*prompt, 1), tuple(map(ord, text)), (-0.5,) * len(text))


@dataclass(frozen=True)
class Library:
    """Finds what both facts of a question say, or fails by the key of the search."""

    failing: float

    def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        return [
            self.found(request)[:top_k] if self.answers(request) else RetrievalError("down") for request in requests
        ]

    def answers(self, request: SearchRequest) -> bool:
        return Random(seed_of((*request.key, "fail"))).random() >= self.failing

    def found(self, request: SearchRequest) -> tuple[Passage, ...]:
        return tuple(Passage(t.text, t.subject, f"{t.text}.") for t in request.question.evidences)


def play(name: str, settings: RolloutSettings, seed: int, chances: tuple[float, float, float]) -> list[Group]:
    garbled, overlong, failing = chances
    protocol = build_protocol(name, f"{name}-full")
    return sample_groups(QUESTIONS, protocol, Noisy(name, garbled, overlong), Library(failing), settings, (seed,))


CHANCES = st.sampled_from([(0.0, 0.0, 0.0), (0.2, 0.0, 0.0), (0.1, 0.2, 0.0), (0.0, 0.0, 0.4), (0.2, 0.1, 0.2)])


@given(
    name=st.sampled_from(sorted(PROTOCOLS)),
    rounds=st.integers(2, 7),
    recorded=st.booleans(),
    seed=st.integers(0, 10_000),
    chances=CHANCES,
)
def test_a_replay_is_the_trajectory(
    name: str, rounds: int, recorded: bool, seed: int, chances: tuple[float, float, float]
) -> None:
    settings = RolloutSettings(group_size=2, max_rounds=rounds, record_messages=recorded)
    protocol = build_protocol(name, f"{name}-full")
    for group in play(name, settings, seed, chances):
        for trajectory in group.trajectories:
            states = replay(group.question, trajectory, protocol, settings)
            assert len(states) == len(trajectory.steps) + 1
            assert states[-1].trajectory == trajectory
            for index, episode in enumerate(states[:-1]):
                assert episode.state.steps == trajectory.steps[:index]
                assert episode.request is not None


@given(name=st.sampled_from(sorted(PROTOCOLS)), seed=st.integers(0, 10_000), chances=CHANCES)
def test_a_branch_of_a_replayed_state_plays_on_as_the_episode_did(
    name: str, seed: int, chances: tuple[float, float, float]
) -> None:
    """Driven on under the same names, each state comes to the recorded end; the other states stay as they were."""
    garbled, overlong, failing = chances
    settings = RolloutSettings(group_size=1, max_rounds=6)
    protocol = build_protocol(name, f"{name}-full")
    for group in play(name, settings, seed, chances):
        (trajectory,) = group.trajectories
        states = replay(group.question, trajectory, protocol, settings)
        branches = [episode.branch() for episode in states]
        keys = [(seed, group.question.id, 0)] * len(branches)
        run_episodes(branches, keys, Noisy(name, garbled, overlong), Library(failing))
        assert [branch.trajectory for branch in branches] == [trajectory] * len(branches)
        assert [len(episode.state.steps) for episode in states] == [
            *range(len(trajectory.steps)),
            len(trajectory.steps),
        ]


def test_a_branch_shares_the_prompt_that_was_rendered_once() -> None:
    settings = RolloutSettings(group_size=1)
    (group, _) = play("factagent", settings, 0, (0.0, 0.0, 0.0))
    states = replay(group.question, group.trajectories[0], build_protocol("factagent", "factagent-full"), settings)
    for episode in states[:-1]:
        request = episode.request
        assert isinstance(request, NeedsGeneration)
        assert episode.branch().request is request


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: replace(t, steps=t.steps[:-1]),
        lambda t: replace(t, steps=(*t.steps, t.steps[-1])),
        lambda t: replace(t, steps=(replace(t.steps[0], observation=None), *t.steps[1:])),
        lambda t: replace(t, steps=(replace(t.steps[0], action=t.steps[-1].action), *t.steps[1:])),
    ],
)
def test_an_edited_record_is_refused(edit) -> None:
    settings = RolloutSettings(group_size=1)
    (group, _) = play("factagent", settings, 0, (0.0, 0.0, 0.0))
    edited: Trajectory = edit(group.trajectories[0])
    with pytest.raises(DataError, match="does not follow from protocol 'factagent'"):
        replay(group.question, edited, build_protocol("factagent", "factagent-full"), settings)


def test_other_budgets_are_refused() -> None:
    (group, _) = play("search-r1", RolloutSettings(group_size=1), 3, (0.0, 0.0, 0.0))
    with pytest.raises(DataError, match="max_rounds=1"):
        replay(
            group.question,
            group.trajectories[0],
            build_protocol("search-r1", "search-r1-full"),
            RolloutSettings(max_rounds=1),
        )
