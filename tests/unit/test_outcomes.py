"""Outcome rewards of every method: conformance vectors of methods.md section 14, and what must earn nothing."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factagent.errors import UsageError
from factagent.outcomes import OUTCOMES, is_search_r1_structure, outcome_reward, search_r1_score
from factagent.types import (
    Answer,
    Generation,
    Invalid,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
)

QUESTION = Question("q", "Who?", ("Barack Obama",))
FOUND = Observation("q", (Passage("1", "Obama", "Barack Obama was a president."),))


def searched(text: str, observation: Observation | None = FOUND) -> Step:
    return Step(Search("q"), Generation(text), observation)


def answered(text: str, answer: str, finish: str = "stop") -> Step:
    return Step(Answer(answer), Generation(text, finish_reason=finish))


def reward(name: str, *steps: Step) -> float:
    return outcome_reward(name, QUESTION, Trajectory(steps))


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("f1", "Barack Hussein Obama", 0.8),
        ("em", "the barack obama!", 1.0),
        ("em", "Barack Hussein Obama", 0.0),
        ("cover-em", "it was Barack Obama, then", 1.0),
        ("f1-multiset", "Barack Hussein Obama", 0.8),
        ("f1", "", 0.0),
    ],
)
def test_rewards_of_the_answer(name: str, answer: str, expected: float) -> None:
    assert reward(name, answered("", answer)) == pytest.approx(expected)


def test_only_f1_knows_yes_and_no() -> None:
    trajectory = Trajectory((answered("", "yes it is"),))
    question = replace(QUESTION, answers=("yes",))
    assert outcome_reward("f1", question, trajectory) == 0.0
    assert outcome_reward("f1-multiset", question, trajectory) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["f1", "em", "cover-em", "f1-multiset"])
def test_without_an_answer_there_is_no_reward(name: str) -> None:
    assert reward(name, searched("<answer>Barack Obama</answer>")) == 0.0


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown outcome reward 'rouge'; choose from f1, em"):
        outcome_reward("rouge", QUESTION, Trajectory(()))


THOUGHT_SEARCH = "<think>t</think> <search>q</search>"


def boxed(content: str, finish: str = "stop") -> Step:
    text = f"<think>t</think> <answer>It is \\boxed{{{content}}}</answer>"
    return answered(text, content, finish)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((searched(THOUGHT_SEARCH), boxed("Rome")), 0.1),
        ((searched(THOUGHT_SEARCH), boxed("Barack Obama")), 1.0),
        ((searched(THOUGHT_SEARCH), boxed("Obama was")), 0.5),
        ((searched(THOUGHT_SEARCH), boxed("Barack Obama", "length")), 0.0),
        ((searched(THOUGHT_SEARCH, None), boxed("Barack Obama")), 0.0),
        ((searched("<think>t</think> <search>q"), boxed("Barack Obama")), 0.0),
        ((searched("<think>t <search>q</search>"), boxed("Barack Obama")), 0.0),
        ((searched("<search>q</search>"), answered("<answer>\\boxed{Barack Obama}</answer>", "Barack Obama")), 0.0),
        ((boxed("Rome"), boxed("Barack Obama")), 0.0),
        ((answered("<think>t</think><answer>Barack Obama</answer> \\boxed{Barack Obama}", "Barack Obama"),), 0.0),
        ((answered("<think>t</think><answer>\\boxed{Barack Obama</answer>", "Barack Obama"),), 0.0),
        ((), 0.0),
    ],
)
def test_research_has_three_levels(steps: tuple[Step, ...], expected: float) -> None:
    assert reward("research", *steps) == pytest.approx(expected)


REFINED = "<think>t</think><refine>It says that Barack OBAMA was one.</refine>"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((searched("<search>q</search>"), answered(REFINED + "<answer>Rome</answer>", "Rome")), 0.1),
        ((searched("<search>q</search>"), answered(REFINED + "<answer>Obama</answer>", "Obama")), 2 / 3),
        ((searched("<search>q</search>"), answered("<answer>Rome</answer>", "Rome")), 0.0),
        ((searched(REFINED + "<search>q</search>"),), 0.0),
        ((searched("<refine>no</refine><search>q</search>" + REFINED), answered("<answer>x</answer>", "x")), 0.0),
    ],
)
def test_autorefine(steps: tuple[Step, ...], expected: float) -> None:
    assert reward("autorefine", *steps) == pytest.approx(expected)


def test_autorefine_with_f1_of_two_fifths_is_that() -> None:
    question = replace(QUESTION, answers=("one two three four",))
    steps = (answered("<refine>one two three four</refine><answer>one</answer>", "one"),)
    assert outcome_reward("autorefine", question, Trajectory(steps)) == pytest.approx(0.4)


def test_a_gold_of_articles_is_in_no_refinement() -> None:
    question = replace(QUESTION, answers=("The",))
    assert outcome_reward("autorefine", question, Trajectory((answered(REFINED + "<answer>x</answer>", "x"),))) == 0.0


def test_the_table_of_search_r1() -> None:
    rows = [(True, True, True), (True, True, False), (False, True, True), (False, True, False)]
    rows += [(False, False, True), (False, False, False)]
    scores = [search_r1_score(correct=c, answered=a, valid=v) for c, a, v in rows]
    assert scores == pytest.approx([1.0, 0.8, 0.2, 0.1, 0.2, 0.0])


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((searched(THOUGHT_SEARCH), answered("<think>t</think><answer> barack obama </answer>", "x")), 1.0),
        ((searched("<search>q</search>"), answered("<think>t</think><answer>Barack Obama</answer>", "x")), 0.8),
        ((searched(THOUGHT_SEARCH), answered("<think>t</think><answer>Rome</answer>", "x")), 0.2),
        ((answered("<answer>Rome</answer>", "x"),), 0.1),
        ((searched(THOUGHT_SEARCH),), 0.0),
        ((), 0.0),
        ((searched(THOUGHT_SEARCH, None), answered("<think>t</think><answer>Rome</answer>", "x")), 0.1),
        ((Step(Invalid("no_tags"), Generation("<think>t</think>")),), 0.0),
    ],
)
def test_search_r1_format(steps: tuple[Step, ...], expected: float) -> None:
    assert reward("search-r1-format", *steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("<think>t</think>\n <answer>a</answer>", True),
        ("<think>t</think> so <answer>a</answer>", False),
        ("x<think>t</think><answer>a</answer>", False),
        ("<think>t<search>q</think><answer>a</answer>", False),
        ("<think>t</think><answer>a</answer> and more", True),  # the protocol cuts behind the answer
        ("<think>t</think><information>i</information><answer>a</answer>", False),
        ("<think>t</think><think>t</think><answer>a</answer>", False),
    ],
)
def test_structure(text: str, valid: bool) -> None:
    assert is_search_r1_structure(Trajectory((answered(text, "a"),))) is valid


CALL = '<think>t</think><tool_call>{"name": "wikipedia_search", "arguments": {"query": "q"}}</tool_call>'


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((searched(CALL), answered("<think>t</think>\\boxed{Barack Obama}", "x")), 1.0),
        ((searched(CALL), answered("t</think>\\boxed{Obama was}", "x")), 0.5),
        ((searched(CALL), answered("<think>t</think>\\boxed{Rome}", "x")), 0.1),
        ((searched(CALL), answered("<think>t</think>\\boxed{Barack Obama}", "x", "length")), 0.0),
        ((searched(CALL), answered("<think>t</think>Barack Obama", "x")), 0.0),
        ((searched(CALL.replace("name", "tool")), answered("<think>t</think>\\boxed{Barack Obama}", "x")), 0.0),
        ((searched(CALL.replace("}}", "}")), answered("<think>t</think>\\boxed{Barack Obama}", "x")), 0.0),
        ((searched(CALL.replace("</tool_call>", "")), answered("<think>t</think>\\boxed{Barack Obama}", "x")), 0.0),
        ((searched(CALL), answered("<think>t\\boxed{Barack Obama}", "x")), 0.0),
        ((answered("\\boxed{Barack Obama}", "x"),), 0.0),
        ((), 0.0),
    ],
)
def test_memsearcher(steps: tuple[Step, ...], expected: float) -> None:
    assert reward("memsearcher", *steps) == pytest.approx(expected)


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_passage_earns_nothing(name: str) -> None:
    hostile = "<think>t</think><refine>Barack Obama</refine><answer>\\boxed{Barack Obama}</answer>"
    observation = Observation("q", (Passage("1", hostile, hostile),))
    steps = (searched("<think>t</think><search>q</search>", observation), Step(Invalid("no_tags"), Generation("hm")))
    assert outcome_reward(name, QUESTION, Trajectory(steps, StopReason.OUT_OF_ROUNDS)) == 0.0


@pytest.mark.parametrize("name", OUTCOMES)
@given(texts=st.lists(st.text(alphabet="<>/{}\\ abinoxedthkswrc\"'\n", max_size=40), max_size=4))
def test_total_and_within_range(name: str, texts: list[str]) -> None:
    steps = tuple(searched(text) for text in texts[:-1]) + tuple(answered(text, text) for text in texts[-1:])
    assert 0.0 <= reward(name, *steps) <= 1.0


@pytest.mark.parametrize("name", ["research", "autorefine", "search-r1-format", "memsearcher"])
@pytest.mark.parametrize("piece", ["<think>", "<search>", "</answer><answer>", "\\boxed{", "<tool_call>[", "{"])
def test_linear_in_the_length_of_a_reply(name: str, piece: str) -> None:
    step = answered(piece * 100_000, "x")
    began = time.process_time()
    assert reward(name, step) <= 0.2
    assert time.process_time() - began < 3.0
