from __future__ import annotations

import copy
from typing import Any

import pytest

from factagent.episode import MAX_ROUNDS, OVERLONG, TOP_K, Episode, NeedsGeneration, NeedsPassages
from factagent.protocols import build_protocol
from factagent.protocols.actions import render_action
from factagent.protocols.base import AgentProtocol
from factagent.protocols.factagent import FactAgentProtocol
from factagent.protocols.react import ReActProtocol
from factagent.protocols.state import State
from factagent.types import (
    Action,
    Answer,
    Assert,
    Fact,
    Generation,
    Invalid,
    Message,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Triple,
)

QUESTION = Question("q1", "Where was Anna born?", ("Lund",))
ANNA = Passage("p1", "Anna", "Anna was born in Lund.", 2.0)
LUND = Passage("p2", "Lund", "Lund is in Sweden.", 1.0)
BORN, IN = Triple("Anna", "born in", "Lund"), Triple("Lund", "in", "Sweden")


def episode(protocol: AgentProtocol | None = None, **options: Any) -> Episode:
    return Episode(QUESTION, protocol or FactAgentProtocol(), **options)


def act(run: Episode, action: Action) -> Generation:
    generation = Generation(render_action(action))
    run.feed_generation(generation)
    return generation


def nonsense(run: Episode) -> None:
    run.feed_generation(Generation("hm"))


def search(run: Episode, query: str, *passages: Passage) -> None:
    act(run, Search(query))
    run.feed_passages(passages)


# --- the course of an episode --------------------------------------------------------------------------------------


def test_defaults_are_the_papers() -> None:
    run = episode()
    assert (run.state.max_rounds, run.top_k, run.member) == (MAX_ROUNDS, TOP_K, 0) == (8, 3, 0)


@pytest.mark.parametrize("options", [{"max_rounds": 0}, {"top_k": 0}, {"max_rounds": -1}])
def test_budgets_below_one_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        episode(**options)


def test_a_whole_episode() -> None:
    run = episode(member=4)
    first = act(run, Search("anna"))
    assert run.request == NeedsPassages("anna", 3)
    run.feed_passages([ANNA])
    second = act(run, Assert((BORN,), "the passage says so"))
    third = act(run, Answer("Lund"))
    assert run.request is None
    trajectory = run.trajectory
    assert trajectory.steps == (
        Step(Search("anna"), first, Observation("anna", (ANNA,))),
        Step(Assert((BORN,), "the passage says so"), second),
        Step(Answer("Lund"), third),
    )
    assert (trajectory.stop_reason, trajectory.member, trajectory.answer) == (StopReason.ANSWERED, 4, "Lund")
    assert trajectory.facts == run.state.store.facts == (Fact(BORN, 1, 0, "the passage says so"),)
    assert trajectory.messages == ()


def test_a_request_shows_the_state_it_was_made_from() -> None:
    run = episode()
    search(run, "anna", ANNA)
    request = run.request
    assert isinstance(request, NeedsGeneration)
    assert request.state is run.state
    assert request.messages == FactAgentProtocol().render(run.state)
    assert run.request is request


def test_an_observation_overwrites_the_last_one() -> None:
    run = episode()
    search(run, "anna", ANNA)
    search(run, "lund", LUND)
    assert run.state.observation == Observation("lund", (LUND,))
    assert [step.observation for step in run.state.steps] == [
        Observation("anna", (ANNA,)),
        Observation("lund", (LUND,)),
    ]


def test_an_observation_stays_through_asserts_and_invalid_actions() -> None:
    run = episode()
    search(run, "anna", ANNA)
    act(run, Assert((BORN,)))
    nonsense(run)
    assert run.state.observation == Observation("anna", (ANNA,))


def test_a_search_that_finds_nothing_is_an_observation() -> None:
    run = episode()
    search(run, "anna", ANNA)
    search(run, "nobody")
    assert run.state.observation == Observation("nobody", ())


def test_facts_come_from_the_latest_search_before_them() -> None:
    run = episode()
    search(run, "anna", ANNA)
    nonsense(run)
    act(run, Assert((BORN,)))
    search(run, "lund", LUND)
    act(run, Assert((BORN, IN), "again"))
    assert run.state.store.facts == (Fact(BORN, 2, 0), Fact(IN, 4, 3, "again"))


def test_an_assert_before_any_observation_is_invalid_and_adds_nothing() -> None:
    run = episode()
    act(run, Assert((BORN,)))
    assert isinstance(run.state.steps[0].action, Invalid)
    assert len(run.state.store) == 0
    assert run.state.round == 2


# --- ends ----------------------------------------------------------------------------------------------------------


def test_an_invalid_action_costs_a_round() -> None:
    run = episode(max_rounds=3)
    for expected in (2, 3, 4):
        nonsense(run)
        assert run.state.round == expected
    assert run.request is None
    assert run.trajectory.stop_reason is StopReason.OUT_OF_ROUNDS
    assert [type(step.action) for step in run.trajectory.steps] == [Invalid] * 3


def test_the_answer_may_be_the_last_round() -> None:
    run = episode(max_rounds=2)
    nonsense(run)
    act(run, Answer("Lund"))
    assert run.trajectory.stop_reason is StopReason.ANSWERED


def test_a_search_in_the_last_round_is_recorded_but_not_sent() -> None:
    run = episode(max_rounds=2)
    search(run, "anna", ANNA)
    act(run, Search("lund"))
    assert run.request is None
    assert run.trajectory.stop_reason is StopReason.OUT_OF_ROUNDS
    assert run.trajectory.steps[-1].action == Search("lund")
    assert run.trajectory.steps[-1].observation is None
    assert run.trajectory.answer is None


def test_an_overlong_prompt_ends_the_episode_without_a_step() -> None:
    run = episode()
    search(run, "anna", ANNA)
    run.feed_generation(Generation(render_action(Answer("Lund")), finish_reason=OVERLONG))
    assert run.trajectory.stop_reason is StopReason.PROMPT_TOO_LONG
    assert len(run.trajectory.steps) == 1
    assert run.trajectory.answer is None
    assert not run.trajectory.stop_reason.is_failure


def test_a_generation_cut_by_length_is_parsed_like_any_other() -> None:
    run = episode()
    run.feed_generation(Generation('{"action": "answer", "parameters": {"resp', finish_reason="length"))
    assert isinstance(run.state.steps[0].action, Invalid)


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason.is_failure])
def test_a_failure_while_waiting_for_a_generation(reason: StopReason) -> None:
    run = episode()
    search(run, "anna", ANNA)
    run.fail(reason)
    assert run.request is None
    assert run.trajectory.stop_reason is reason
    assert len(run.trajectory.steps) == 1


def test_a_failure_while_waiting_for_passages_keeps_the_search() -> None:
    run = episode(record_messages=True)
    generation = act(run, Search("anna"))
    run.fail(StopReason.RETRIEVAL_FAILED)
    assert run.trajectory.steps == (Step(Search("anna"), generation, None),)
    assert len(run.trajectory.messages) == 1


# --- wrong use -----------------------------------------------------------------------------------------------------


def test_passages_are_refused_where_a_generation_is_due() -> None:
    run = episode()
    with pytest.raises(RuntimeError, match="waits for a generation; it cannot take passages"):
        run.feed_passages([ANNA])
    assert run.state == State(QUESTION, 8)


def test_a_generation_is_refused_where_passages_are_due() -> None:
    run = episode()
    act(run, Search("anna"))
    with pytest.raises(RuntimeError, match="waits for passages; it cannot take a generation"):
        nonsense(run)
    assert run.request == NeedsPassages("anna", 3)


def test_nothing_is_taken_by_a_done_episode() -> None:
    run = episode()
    act(run, Answer("Lund"))
    with pytest.raises(RuntimeError, match=r"is done \(answered\); it cannot take a generation"):
        nonsense(run)
    with pytest.raises(RuntimeError, match=r"is done \(answered\); it cannot take passages"):
        run.feed_passages([ANNA])
    with pytest.raises(RuntimeError, match=r"is done \(answered\); it cannot fail"):
        run.fail(StopReason.TIMEOUT)
    assert run.trajectory.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize("reason", [reason for reason in StopReason if not reason.is_failure])
def test_only_failures_can_be_reported(reason: StopReason) -> None:
    run = episode()
    with pytest.raises(ValueError, match=f"'{reason}' is not a failure"):
        run.fail(reason)
    assert run.stop_reason is None


def test_there_is_no_trajectory_before_the_end() -> None:
    run = episode()
    with pytest.raises(RuntimeError, match="waits for a generation; it has no trajectory yet"):
        _ = run.trajectory
    act(run, Search("anna"))
    with pytest.raises(RuntimeError, match="waits for passages; it has no trajectory yet"):
        _ = run.trajectory


# --- branches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", [Episode.branch, copy.deepcopy, copy.copy])
def test_a_branch_shares_the_past_and_owns_its_future(branch: object) -> None:
    assert callable(branch)
    run = episode(record_messages=True)
    search(run, "anna", ANNA)
    before = run.state
    twin = branch(run)
    act(run, Assert((BORN,)))
    act(run, Answer("Lund"))
    assert twin.state is before
    assert isinstance(twin.request, NeedsGeneration)
    act(twin, Answer("Malmö"))
    assert (run.trajectory.answer, twin.trajectory.answer) == ("Lund", "Malmö")
    assert (len(run.trajectory.steps), len(twin.trajectory.steps)) == (3, 2)
    assert (len(run.trajectory.messages), len(twin.trajectory.messages)) == (3, 2)
    assert run.trajectory.steps[0] is twin.trajectory.steps[0]


def test_a_branch_in_the_middle_of_a_search() -> None:
    run = episode()
    act(run, Search("anna"))
    twin = copy.deepcopy(run)
    run.fail(StopReason.TIMEOUT)
    twin.feed_passages([ANNA])
    assert run.request is None
    assert twin.state.observation == Observation("anna", (ANNA,))


def test_deepcopy_of_a_list_keeps_shared_episodes_shared() -> None:
    run = episode()
    first, second = copy.deepcopy([run, run])
    assert first is second
    assert first is not run


# --- kinds of context ----------------------------------------------------------------------------------------------


def test_a_rebuild_protocol_has_no_prefix() -> None:
    run = episode()
    search(run, "anna", ANNA)
    assert isinstance(run.request, NeedsGeneration)
    assert run.request.prefix is None


def test_an_append_protocol_continues_the_last_generation() -> None:
    run = episode(ReActProtocol())
    first = run.request
    assert isinstance(first, NeedsGeneration)
    assert first.prefix is None
    generation = act(run, Search("anna"))
    run.feed_passages([ANNA])
    second = run.request
    assert isinstance(second, NeedsGeneration)
    assert second.prefix is generation
    assert second.messages[:-2] == first.messages
    assert second.messages[-2] == Message("assistant", generation.text)
    assert "Anna was born in Lund." in second.messages[-1].content


def test_recorded_messages_are_those_that_were_asked_with() -> None:
    run = episode(build_protocol("factagent", "factagent-terse"), record_messages=True)
    asked = []
    for action in (Search("anna"), Assert((BORN,)), Answer("Lund")):
        request = run.request
        assert isinstance(request, NeedsGeneration)
        asked.append(request.messages)
        act(run, action)
        if isinstance(run.request, NeedsPassages):
            run.feed_passages([ANNA])
    assert run.trajectory.messages == tuple(asked)
    assert len(set(asked)) == 3


def test_a_prompt_is_rendered_once_a_round() -> None:
    class Counting(FactAgentProtocol):
        rendered = 0

        def render(self, state: State) -> tuple[Message, ...]:
            type(self).rendered += 1
            return super().render(state)

    run = episode(Counting(), record_messages=True)
    for _ in range(3):
        assert run.request is run.request
        nonsense(run)
    assert Counting.rendered == 3
