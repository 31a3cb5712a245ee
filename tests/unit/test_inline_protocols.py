"""AutoRefine, ZeroSearch, ReSearch and naive RAG: what they show, what they read, where they end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from factagent.episode import FORCED, Episode, NeedsGeneration, NeedsPassages
from factagent.errors import ConfigError
from factagent.protocols import PROTOCOLS, build_protocol
from factagent.protocols.autorefine import AutoRefineProtocol
from factagent.protocols.rag import RagProtocol
from factagent.protocols.research import ReSearchProtocol, parse_boxed
from factagent.protocols.search_r1 import SearchR1Protocol
from factagent.protocols.state import State
from factagent.protocols.zerosearch import ZeroSearchProtocol
from factagent.types import (
    Answer,
    Generation,
    Invalid,
    Message,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
)

QUESTION = Question("q1", " where was Anna born ", ("Lund",))
SEEN = Observation("anna", (Passage("1", "Anna", "Anna was born in Lund."), Passage("2", "Lund", "Lund is\na city.")))
INLINE = ("search-r1", "autorefine", "zerosearch", "research")


def after_search(*more: Step) -> State:
    return State(QUESTION, 8, steps=(Step(Search("anna"), Generation("<search>anna</search>"), SEEN), *more))


# --- every protocol ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("style", ["full", "terse"])
def test_the_traits_of_every_protocol(name: str, style: str) -> None:
    protocol = build_protocol(name, f"{name}-{style}")
    assert protocol.name == name
    assert protocol.asserts == (name in ("factagent", "react"))
    assert protocol.context == ("append" if name in (*INLINE, "react") else "rebuild")
    assert protocol.opens_with_search == (name == "rag")
    assert protocol.invalid_ends == (name in ("rag", "research"))
    assert protocol.observation_tokens == {"search-r1": 500, "autorefine": 512, "zerosearch": 2048}.get(name)
    both = ("</search>", "</answer>")
    stops = {"search-r1": both, "autorefine": both, "zerosearch": both, "research": both[:1], "rag": both[1:]}
    assert protocol.stop == stops.get(name, ())
    assert protocol.continuation(State(QUESTION, 8)) is None
    assert (protocol.continuation(after_search()) is not None) == (name in INLINE)


# --- what the policy reads -----------------------------------------------------------------------------------------


def test_the_observation_of_each_original() -> None:
    blank = "\n\n"
    quoted = 'Doc 1(Title: "Anna") Anna was born in Lund.\nDoc 2(Title: "Lund") Lund is a city.'
    plain = "Doc 1: Anna was born in Lund.\nDoc 2: Lund is a city."
    contents = '"Anna"\nAnna was born in Lund.\n\n"Lund"\nLund is a city.'
    found = {name: build_protocol(name, f"{name}-full").continuation(after_search()) for name in INLINE}
    assert found == {
        "search-r1": f"{blank}<information>{quoted}</information>{blank}",
        "autorefine": f"{blank}<documents>{quoted}</documents>{blank}",
        "zerosearch": f"{blank}<information>{plain}</information>{blank}",
        "research": f" <result>\n{contents}\n</result>",
    }


@pytest.mark.parametrize("name", INLINE[:3])
def test_an_invalid_reply_is_told_so(name: str) -> None:
    state = after_search(Step(Invalid("no_tags"), Generation("hm")))
    told = build_protocol(name, f"{name}-full").continuation(state)
    assert told is not None
    assert told.startswith("\nMy last action was not valid.")
    assert told.endswith("I try again.\n")
    assert all(tag in told for tag in ("<search>", "</search>", "<answer>", "</answer>"))


@pytest.mark.parametrize("name", INLINE)
@pytest.mark.parametrize("style", ["full", "terse"])
def test_messages_grow_by_the_cut_reply_and_the_continuation(name: str, style: str) -> None:
    protocol = build_protocol(name, f"{name}-{style}")
    steps = after_search().steps * 3
    states = [State(QUESTION, 8, steps=steps[:count]) for count in range(4)]
    for before, after in pairwise(states):
        old, new = protocol.render(before), protocol.render(after)
        assert new[: len(old)] == old
        continuation = protocol.continuation(after)
        assert new[len(old) :] == (Message("assistant", "<search>anna</search>"), Message("user", continuation))


def test_the_questions_and_examples_of_the_full_prompts() -> None:
    for name, example in [
        ("search-r1", "<answer> Beijing </answer>"),
        ("zerosearch", "<answer> Beijing </answer>"),
        ("autorefine", "<answer> Donald Trump </answer>"),
    ]:
        (message,) = build_protocol(name, f"{name}-full").render(State(QUESTION, 8))
        assert message.role == "user"
        assert message.content.endswith("Question: where was Anna born?\n")
        assert example in message.content
    system, user = ReSearchProtocol().render(State(QUESTION, 8))
    assert user == Message("user", "where was Anna born?")
    assert "\\[ \\boxed{answer here} \\]" in system.content


def test_a_prompt_must_name_what_its_protocol_reads() -> None:
    with pytest.raises(ConfigError, match="'search-r1-full': does not name <refine>, which protocol autorefine reads"):
        build_protocol("autorefine", "search-r1-full")
    with pytest.raises(ConfigError, match=r"'search-r1-full': does not name \\boxed\{, which protocol research reads"):
        build_protocol("research", "search-r1-full")
    with pytest.raises(ConfigError, match=r"prompt 'search-r1-full': user must contain \$observation"):
        build_protocol("rag", "search-r1-full")


# --- ReSearch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>a</think> <search> who\n is </search>", Search("who is")),
        # What stands between the last opening tag and the first closing one, whatever else is there.
        ("<search>a <search>b</search> c</search>", Search("b")),
        ("<answer>\\boxed{x}</answer><search>q</search>", Search("q")),
        ("<think>a</think><answer> The final answer is \\[ \\boxed{Lund} \\] </answer>", Answer("Lund")),
        ("<answer>\\boxed{a} or \\boxed{ b{c} }</answer><answer>\\boxed{d}</answer>", Answer("b{c}")),
        ("\\boxed{out}<answer>\\boxed{in}</answer>", Answer("in")),
        ("<answer>\\boxed{}</answer>", Answer("")),
    ],
)
def test_what_research_reads(text: str, action: object) -> None:
    assert parse_boxed(text) == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_tags"),
        ("\\boxed{Lund}", "no_tags"),
        ("<answer>Lund", "no_tags"),
        ("q</search>", "no_tags"),
        ("</search><search>q</search>", "no_tags"),
        ("<answer>Lund</answer>", "no_box"),
        ("<answer>\\boxed{Lund</answer>", "no_box"),
        ("<search> </search>", "empty_field"),
        (f"<search>{'x' * 513}</search>", "field_too_long"),
    ],
)
def test_what_research_refuses(text: str, reason: str) -> None:
    action = parse_boxed(text)
    assert isinstance(action, Invalid)
    assert action.reason == reason


def test_an_invalid_reply_ends_a_research_episode() -> None:
    episode = Episode(QUESTION, ReSearchProtocol())
    episode.feed_generation(Generation("<search>anna</search>"))
    episode.feed_passages(SEEN.passages)
    episode.feed_generation(Generation("I do not know.", finish_reason="length"))
    assert (episode.request, episode.stop_reason) == (None, StopReason.NO_ANSWER)
    assert not StopReason.NO_ANSWER.is_failure
    assert episode.trajectory.answer is None


# --- AutoRefine ----------------------------------------------------------------------------------------------------


def test_refinements_are_no_actions() -> None:
    protocol = AutoRefineProtocol()
    text = "<refine>Anna was born in Lund. <answer>x</answer></refine>\n<think>so</think><answer>Lund</answer>"
    assert protocol.parse("<refine>Lund</refine><think>so</think><search>q</search>", after_search()) == Search("q")
    assert protocol.parse("<refine>Lund</refine>", after_search()) == Invalid(
        "no_tags", "neither <search>...</search> nor <answer>...</answer>"
    )
    # Tags are tags wherever the policy writes them, as in the original.
    assert protocol.parse(text, after_search()) == Answer("x")


@pytest.mark.parametrize("protocol", [SearchR1Protocol(), AutoRefineProtocol(), ZeroSearchProtocol()])
def test_the_cut_vector_of_search_r1(protocol: SearchR1Protocol) -> None:
    text = "a<answer>x</answer>b<search>q</search>c"
    assert protocol.cut(text) == "a<answer>x</answer>b<search>q</search>"
    assert protocol.parse(text, after_search()) == Answer("x")
    assert isinstance(protocol.parse("<search>q", after_search()), Invalid)


# --- naive RAG -----------------------------------------------------------------------------------------------------


def test_rag_searches_its_question_and_answers_once() -> None:
    episode = Episode(QUESTION, RagProtocol(), max_rounds=2, record_messages=True)
    assert episode.request == NeedsPassages("where was Anna born?", 3)
    with pytest.raises(RuntimeError, match="waits for passages"):
        episode.feed_generation(Generation("<answer>Lund</answer>"))
    episode.feed_passages(SEEN.passages)
    request = episode.request
    assert isinstance(request, NeedsGeneration)
    assert (request.prefix, request.continuation, request.stop) == (None, None, ("</answer>",))
    (message,) = request.messages
    assert '<information>Doc 1(Title: "Anna") Anna was born in Lund.\nDoc 2' in message.content
    assert message.content.endswith("Question: where was Anna born?\n")
    wrong, right = episode.branch(), episode
    right.feed_generation(Generation("<think>so</think> <answer> Lund </answer>"))
    trajectory = right.trajectory
    assert (trajectory.answer, trajectory.stop_reason) == ("Lund", StopReason.ANSWERED)
    assert trajectory.steps[0] == Step(
        Search("where was Anna born?"),
        Generation("", finish_reason=FORCED),
        Observation("where was Anna born?", SEEN.passages),
    )
    assert trajectory.messages == ((), (message,))
    wrong.feed_generation(Generation("<search>anna</search>"))
    assert wrong.trajectory.stop_reason is StopReason.NO_ANSWER
    assert [type(step.action) for step in wrong.trajectory.steps] == [Search, Invalid]


def test_rag_answers_even_where_nothing_is_found() -> None:
    episode = Episode(QUESTION, build_protocol("rag", "rag-terse"), max_rounds=2)
    episode.feed_passages([])
    assert isinstance(episode.request, NeedsGeneration)
    assert episode.request.messages == (Message("user", "Q where was Anna born?\n* none"),)


def test_a_failed_opening_search_is_a_failure() -> None:
    episode = Episode(QUESTION, RagProtocol(), max_rounds=2)
    episode.fail(StopReason.RETRIEVAL_FAILED)
    assert [step.generation.finish_reason for step in episode.trajectory.steps] == [FORCED]


def test_rag_needs_a_round_to_answer_in() -> None:
    with pytest.raises(ConfigError, match=r"protocol 'rag' searches first; set rollout\.max_rounds to 2 or more"):
        Episode(QUESTION, RagProtocol(), max_rounds=1)
