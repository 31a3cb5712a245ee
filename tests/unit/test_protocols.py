from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from factagent.errors import ConfigError
from factagent.protocols import PROTOCOLS, build_protocol
from factagent.protocols.fact_store import FactStore
from factagent.protocols.factagent import ASSERT_BEFORE_OBSERVATION, FactAgentProtocol
from factagent.protocols.prompts import PromptSpec
from factagent.protocols.react import ReActProtocol
from factagent.protocols.state import State
from factagent.types import (
    Answer,
    Assert,
    Generation,
    Invalid,
    Message,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    Triple,
)

QUESTION = Question("q1", "Where was Anna born?", ("Lund",))
FACT = Triple("Anna", "born in", "Lund")
SEEN = Observation("anna", (Passage("p1", "Anna", "Anna was born in Lund."),))
ASSERT_TEXT = json.dumps(
    {
        "action": "assert",
        "parameters": {
            "triples": [dict(zip(("subject", "relation", "object"), FACT, strict=True))],
            "evidence_summary": "s",
        },
    }
)


def after_search() -> State:
    step = Step(Search("anna"), Generation("I search"), SEEN)
    return State(QUESTION, 8, FactStore(), SEEN, (step,))


def after_assert() -> State:
    state = after_search()
    action = Assert((FACT,), "the passage says so")
    return replace(state, store=state.store.add(action, 1, 0), steps=(*state.steps, Step(action, Generation("I keep"))))


# --- state ---------------------------------------------------------------------------------------------------------


def test_state_counts_rounds_and_lists_queries() -> None:
    assert State(QUESTION, 8).round == 1
    assert State(QUESTION, 8).queries == ()
    steps = (Step(Search("b")), Step(Invalid("no_json")), Step(Search("a")), Step(Search("b")))
    state = State(QUESTION, 8, steps=steps)
    assert state.round == 5
    assert state.queries == ("b", "a", "b")


# --- FactAgent -----------------------------------------------------------------------------------------------------


def test_factagent_shows_a_fresh_state() -> None:
    system, user = FactAgentProtocol().render(State(QUESTION, 8))
    assert (system.role, user.role) == ("system", "user")
    assert user.content == (
        "Question: Where was Anna born?\n\n<fact_store>\n(empty)\n</fact_store>\n\nPast queries:\n(none yet)\n\n"
        "<observation>\n(nothing yet: search first)\n</observation>\n\n"
        "Round 1 of 8. Reply with <think>...</think> and one action."
    )


def test_factagent_shows_store_queries_and_last_observation() -> None:
    assert FactAgentProtocol().render(after_assert())[-1].content == (
        "Question: Where was Anna born?\n\n<fact_store>\n1. (Anna; born in; Lund) Evidence: the passage says so\n"
        "</fact_store>\n\nPast queries:\n1. anna\n\n"
        "<observation>\n[1] Anna\nAnna was born in Lund.\n</observation>\n\n"
        "Round 3 of 8. Reply with <think>...</think> and one action."
    )


def test_factagent_terse() -> None:
    protocol = build_protocol("factagent", "factagent-terse")
    assert protocol.render(State(QUESTION, 8)) == (Message("user", "Q Where was Anna born?\n-\n?\n*\nR 1"),)
    assert protocol.render(after_assert()) == (
        Message(
            "user", "Q Where was Anna born?\n- Anna | born in | Lund\n? anna\n* Anna : Anna was born in Lund.\nR 3"
        ),
    )


def test_a_new_observation_overwrites_the_last_one() -> None:
    other = Observation("lund", (Passage("p2", "Lund", "Lund is a city."),))
    state = replace(after_search(), observation=other)
    content = FactAgentProtocol().render(state)[-1].content
    assert "Lund is a city." in content
    assert "Anna was born" not in content


def test_replies_of_the_policy_are_never_shown_again_by_factagent() -> None:
    assert "I search" not in "".join(message.content for message in FactAgentProtocol().render(after_search()))


@pytest.mark.parametrize("name", ["factagent", "react"])
def test_an_assert_needs_an_observation(name: str) -> None:
    protocol = build_protocol(name, f"{name}-full")
    refused = protocol.parse(ASSERT_TEXT, State(QUESTION, 8))
    assert isinstance(refused, Invalid)
    assert refused.reason == ASSERT_BEFORE_OBSERVATION == "assert_before_observation"
    assert protocol.parse(ASSERT_TEXT, after_search()) == Assert((FACT,), "s")


@pytest.mark.parametrize("name", ["factagent", "react"])
def test_an_observation_without_passages_is_still_an_observation(name: str) -> None:
    state = replace(after_search(), observation=Observation("anna", ()))
    assert isinstance(build_protocol(name, f"{name}-full").parse(ASSERT_TEXT, state), Assert)


@pytest.mark.parametrize("name", ["factagent", "react"])
def test_other_actions_parse_in_any_state(name: str) -> None:
    protocol = build_protocol(name, f"{name}-terse")
    state = State(QUESTION, 8)
    assert protocol.parse('{"action": "search", "parameters": {"query": "anna"}}', state) == Search("anna")
    assert protocol.parse('{"action": "answer", "parameters": {"response": "Lund"}}', state) == Answer("Lund")
    assert isinstance(protocol.parse("", state), Invalid)


# --- ReAct ---------------------------------------------------------------------------------------------------------


def test_react_is_a_conversation() -> None:
    state = after_assert()
    state = replace(state, steps=(*state.steps, Step(Invalid("no_json", "nothing\nto read ```"), Generation("hm"))))
    system, *rest = ReActProtocol().render(state)
    assert system.role == "system"
    assert rest == [
        Message(
            "user", "Question: Where was Anna born?\n\nYou have 8 rounds. Reply with <think>...</think> and one action."
        ),
        Message("assistant", "I search"),
        Message("user", "<observation>\n[1] Anna\nAnna was born in Lund.\n</observation>\n\nRound 2 of 8."),
        Message("assistant", "I keep"),
        Message("user", "Noted: 1 facts. Round 3 of 8."),
        Message("assistant", "hm"),
        Message("user", "That was no valid action (no_json: nothing to read ` ``). Round 4 of 8."),
    ]


def test_react_terse() -> None:
    messages = build_protocol("react", "react-terse").render(after_assert())
    assert [message.content for message in messages] == [
        "Q Where was Anna born?",
        "I search",
        "* Anna : Anna was born in Lund.\nR 2",
        "I keep",
        "R 3",
    ]


@pytest.mark.parametrize("prompt", ["react-full", "react-terse"])
def test_react_extends_its_conversation(prompt: str) -> None:
    protocol = build_protocol("react", prompt)
    earlier = [protocol.render(state) for state in (State(QUESTION, 8), after_search(), after_assert())]
    for before, after in pairwise(earlier):
        assert after[: len(before)] == before
        assert [message.role for message in after[len(before) :]] == ["assistant", "user"]


# --- building ------------------------------------------------------------------------------------------------------


def test_kinds_of_context() -> None:
    assert {name: build_protocol(name, f"{name}-full").context for name in PROTOCOLS} == {
        "factagent": "rebuild",
        "react": "append",
        "search-r1": "append",
        "research": "append",
        "autorefine": "append",
        "zerosearch": "append",
        "gigpo": "rebuild",
        "rag": "rebuild",
        "memsearcher": "rebuild",
    }
    assert build_protocol("react", "react-terse").name == "react"


def test_defaults_are_the_full_prompts() -> None:
    assert FactAgentProtocol().prompt.name == "factagent-full"
    assert ReActProtocol().prompt.name == "react-full"


def test_an_unknown_protocol_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="protocol 'reakt' is unknown; choose one of factagent, react, search-r1"):
        build_protocol("reakt", "react-full")


@pytest.mark.parametrize(
    ("protocol", "prompt", "message"),
    [
        ("factagent", "react-full", r"prompt 'react-full': user must contain \$facts"),
        ("factagent", "react-terse", r"prompt 'react-terse': user must contain \$facts"),
        ("react", "factagent-full", r"prompt 'factagent-full': user contains \$facts"),
        ("react", "factagent-terse", r"prompt 'factagent-terse': user contains \$facts"),
    ],
)
def test_a_prompt_of_the_other_protocol_is_refused(protocol: str, prompt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_protocol(protocol, prompt)


def test_a_react_prompt_must_show_observations() -> None:
    with pytest.raises(ConfigError, match=r"observed must contain \$observation"):
        ReActProtocol(PromptSpec(name="blind", user="$question", observed="Round $round"))
