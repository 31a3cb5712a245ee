from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from factagent.episode import OVERLONG, Episode
from factagent.policies.base import GenerationRequest, seed_of
from factagent.protocols import build_protocol
from factagent.protocols.actions import render_action
from factagent.protocols.factagent import FactAgentProtocol
from factagent.protocols.react import ReActProtocol
from factagent.retrieval.base import RetrievalError
from factagent.rollout import RolloutSettings, run_episodes, sample_groups
from factagent.types import Action, Answer, Assert, Generation, Passage, Question, Search, Step, StopReason, Triple

QUESTIONS = tuple(Question(f"q{i}", f"Where was person {i} born?", (f"City {i}",)) for i in range(4))
PROTOCOL = build_protocol("factagent", "factagent-terse")


@dataclass
class Script:
    """A policy from a function of one request; keeps every batch that it was asked for."""

    write: Callable[[GenerationRequest], str]
    batches: list[list[GenerationRequest]] = field(default_factory=list)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.batches.append(list(requests))
        return [Generation(self.write(request)) for request in requests]


@dataclass
class Shelf:
    """A retriever that finds `size` passages for any query, but fails for batches that hold the query "down"."""

    size: int = 5
    calls: list[tuple[list[str], int]] = field(default_factory=list)

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        self.calls.append((list(queries), top_k))
        if "down" in queries:
            raise RetrievalError("the server refused the connection")
        return [tuple(Passage(f"{q}/{i}", q, f"text {i}") for i in range(min(self.size, top_k))) for q in queries]


def three_steps(request: GenerationRequest) -> str:
    """Search, assert, answer; how many rounds are wasted before depends on the request's own key."""
    state = request.state
    if state.observation is None:
        return render_action(Search(state.question.id)) if seed_of(request.key) % 3 else "hm"
    if not len(state.store):
        return render_action(Assert((Triple(state.question.id, "born in", state.observation.passages[0].text),)))
    return render_action(Answer(f"{state.question.id} {seed_of(request.key)}"))


def test_groups_come_in_the_order_of_questions_and_members() -> None:
    groups = sample_groups(QUESTIONS, PROTOCOL, Script(three_steps), Shelf(), RolloutSettings(group_size=3), ("run", 0))
    assert [group.question for group in groups] == list(QUESTIONS)
    for group in groups:
        assert [trajectory.member for trajectory in group.trajectories] == [0, 1, 2]
        for trajectory in group.trajectories:
            assert trajectory.stop_reason is StopReason.ANSWERED
            assert trajectory.answer is not None
            assert trajectory.answer.startswith(group.question.id)
            assert trajectory.facts[0].triple.subject == group.question.id


def test_settings_reach_the_episodes() -> None:
    settings = RolloutSettings(group_size=1, max_rounds=2, top_k=4, record_messages=True)
    shelf = Shelf()
    write = Script(lambda request: render_action(Search("x")))
    (group,) = sample_groups(QUESTIONS[:1], PROTOCOL, write, shelf, settings, ())
    (trajectory,) = group.trajectories
    assert trajectory.stop_reason is StopReason.OUT_OF_ROUNDS
    assert shelf.calls == [(["x"], 4)]
    assert [len(trajectory.messages), len(trajectory.steps)] == [2, 2]
    assert trajectory.steps[0].observation is not None
    assert len(trajectory.steps[0].observation.passages) == 4


def test_defaults_are_the_papers() -> None:
    settings = RolloutSettings()
    assert (settings.group_size, settings.max_rounds, settings.top_k, settings.record_messages) == (6, 8, 3, False)
    with pytest.raises(ValueError, match="group_size=0 must be at least 1"):
        RolloutSettings(group_size=0)


def test_no_questions_ask_nobody() -> None:
    policy, shelf = Script(three_steps), Shelf()
    assert sample_groups([], PROTOCOL, policy, shelf, RolloutSettings(), ()) == []
    assert policy.batches == []
    assert shelf.calls == []


def test_keys_name_question_member_and_round_and_never_repeat() -> None:
    policy = Script(three_steps)
    sample_groups(QUESTIONS, PROTOCOL, policy, Shelf(), RolloutSettings(group_size=2), (7, "train", 3))
    keys = [request.key for batch in policy.batches for request in batch]
    assert keys[:3] == [(7, "train", 3, "q0", 0, 1), (7, "train", 3, "q0", 1, 1), (7, "train", 3, "q1", 0, 1)]
    assert len(set(keys)) == len(keys) > 8


def test_what_is_sampled_does_not_depend_on_the_batch() -> None:
    def sample(questions: Sequence[Question]) -> dict[str, tuple[tuple[Step, ...], ...]]:
        groups = sample_groups(questions, PROTOCOL, Script(three_steps), Shelf(), RolloutSettings(group_size=3), (1,))
        return {group.question.id: tuple(t.steps for t in group.trajectories) for group in groups}

    together = sample(QUESTIONS)
    alone = {key: steps for question in QUESTIONS for key, steps in sample([question]).items()}
    assert together == alone == sample(tuple(reversed(QUESTIONS)))


def test_finished_episodes_leave_the_batch_and_each_turn_is_one_call() -> None:
    lengths = {"q0": 1, "q1": 3, "q2": 2, "q3": 3}
    policy = Script(
        lambda r: render_action(Answer("x") if r.state.round == lengths[r.state.question.id] else Search("s"))
    )
    shelf = Shelf()
    sample_groups(QUESTIONS, PROTOCOL, policy, shelf, RolloutSettings(group_size=1), ())
    assert [[r.state.question.id for r in batch] for batch in policy.batches] == [
        ["q0", "q1", "q2", "q3"],
        ["q1", "q2", "q3"],
        ["q1", "q3"],
    ]
    assert shelf.calls == [(["s"] * 3, 3), (["s"] * 2, 3)]


def test_a_retrieval_failure_ends_those_that_waited_and_no_one_else() -> None:
    def write(request: GenerationRequest) -> str:
        scripts: dict[str, list[Action]] = {
            "q0": [Search("down")],
            "q1": [Search("fine")],
            "q2": [Answer("x")],
            "q3": [Assert((Triple("too", "early", "for"),)), Search("fine"), Answer("y")],
        }
        return render_action(scripts[request.state.question.id][request.state.round - 1])

    groups = sample_groups(QUESTIONS, PROTOCOL, Script(write), Shelf(), RolloutSettings(group_size=1), ())
    trajectories = [group.trajectories[0] for group in groups]
    assert [str(t.stop_reason) for t in trajectories] == [
        "retrieval_failed",
        "retrieval_failed",
        "answered",
        "answered",
    ]
    assert trajectories[0].steps == (Step(Search("down"), Generation(render_action(Search("down")))),)
    assert trajectories[0].answer is None
    assert trajectories[3].steps[1].observation is not None


def test_other_errors_of_retriever_and_policy_are_not_swallowed() -> None:
    class Broken(Shelf):
        def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
            raise KeyError("a defect")

    policy = Script(lambda request: render_action(Search("x")))
    with pytest.raises(KeyError, match="a defect"):
        sample_groups(QUESTIONS, PROTOCOL, policy, Broken(), RolloutSettings(), ())

    def fail(request: GenerationRequest) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sample_groups(QUESTIONS, PROTOCOL, Script(fail), Shelf(), RolloutSettings(), ())


def test_too_few_generations_or_passages_are_an_error() -> None:
    class Short(Script):
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            return super().generate(requests)[1:]

    class Lossy(Shelf):
        def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
            return super().search(queries, top_k)[1:]

    with pytest.raises(ValueError, match="zip"):
        sample_groups(QUESTIONS, PROTOCOL, Short(three_steps), Shelf(), RolloutSettings(), ())
    with pytest.raises(ValueError, match="zip"):
        sample_groups(QUESTIONS, PROTOCOL, Script(lambda r: render_action(Search("x"))), Lossy(), RolloutSettings(), ())


def test_an_overlong_prompt_ends_its_episode_only() -> None:
    class Small(Script):
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            return [
                Generation("", finish_reason=OVERLONG) if request.state.question.id == "q1" else generation
                for request, generation in zip(requests, super().generate(requests), strict=True)
            ]

    groups = sample_groups(QUESTIONS, PROTOCOL, Small(three_steps), Shelf(), RolloutSettings(group_size=1), ())
    reasons = [str(group.trajectories[0].stop_reason) for group in groups]
    assert reasons == ["answered", "prompt_too_long", "answered", "answered"]


def test_an_append_protocol_gets_its_prefix() -> None:
    policy = Script(three_steps)
    sample_groups(QUESTIONS[:1], ReActProtocol(), policy, Shelf(), RolloutSettings(group_size=1), ())
    first, *later = [batch[0] for batch in policy.batches]
    assert first.prefix is None
    assert [request.prefix for request in later] == [request.state.steps[-1].generation for request in later]


# --- run_episodes on its own ---------------------------------------------------------------------------------------


def test_episodes_are_driven_on_from_any_state() -> None:
    searching = Episode(QUESTIONS[0], FactAgentProtocol(), top_k=1)
    searching.feed_generation(Generation(render_action(Search("anna"))))
    done = Episode(QUESTIONS[1], FactAgentProtocol())
    done.feed_generation(Generation(render_action(Answer("x"))))
    record = done.trajectory
    shelf = Shelf()
    run_episodes([searching, done], [("a",), ("b",)], Script(three_steps), shelf)
    assert shelf.calls == [(["anna"], 1)]
    assert searching.trajectory.stop_reason is StopReason.ANSWERED
    assert done.trajectory == record


def test_episodes_may_differ_in_top_k() -> None:
    episodes = [Episode(question, FactAgentProtocol(), top_k=k) for k, question in enumerate(QUESTIONS, 1)]
    shelf = Shelf()
    run_episodes(episodes, [(e.top_k,) for e in episodes], Script(lambda r: _search_then_answer(r)), shelf)
    assert shelf.calls == [(["s"] * 4, 4)]
    observations = [e.trajectory.steps[0].observation for e in episodes]
    assert [len(o.passages) for o in observations if o] == [1, 2, 3, 4]


def _search_then_answer(request: GenerationRequest) -> str:
    return render_action(Search("s") if request.state.round == 1 else Answer("x"))


def test_there_must_be_a_key_for_each_episode() -> None:
    with pytest.raises(ValueError, match="1 keys for 2 episodes"):
        run_episodes([Episode(q, PROTOCOL) for q in QUESTIONS[:2]], [("a",)], Script(three_steps), Shelf())


# --- seeds ---------------------------------------------------------------------------------------------------------


def test_seeds_are_stable_and_tell_names_apart() -> None:
    assert seed_of(("run", 1)) == seed_of(["run", 1])
    assert 0 <= seed_of(()) < 2**64
    assert seed_of(("train", 3, "q0", 1, 2)) == 2037065517633259367
    names: list[tuple[str | int, ...]] = [("a", 1), ("a", "1"), ("a1",), (1, "a"), ("a",), ()]
    assert len({seed_of(name) for name in names}) == len(names)
