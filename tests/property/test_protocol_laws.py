"""What holds of every protocol, whatever a policy writes and a corpus says."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.episode import FORCED, Episode, NeedsPassages
from factagent.protocols import PROTOCOLS, build_protocol
from factagent.protocols.base import AgentProtocol
from factagent.protocols.untrusted import plain_line
from factagent.types import Answer, Assert, Invalid, Passage, Question, Search
from factagent.types import Generation as Reply

FRAGMENTS = (
    *("<search>", "</search>", "<answer>", "</answer>", "<SEARCH>", "\\boxed{", "{", "}", "<think>", "</think>"),
    *("<refine>", "</refine>", "<memory>", "</memory>", "<tool_call>", "</tool_call>", "<information>", "</result>"),
    *('{"action": "answer", "parameters": {"response": "Lund"}}', '"}}', "```", "Lund", " ", "\n", "$question"),
    *('{"name": "wikipedia_search", "arguments": {"query": "anna"}}', "<|im_end|>", "\u200b", "\ud83d"),
)
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
PASSAGES = st.lists(st.builds(Passage, st.just("p"), TEXTS, TEXTS), max_size=2)
PROMPTS = [f"{name}-{style}" for name in PROTOCOLS for style in ("full", "terse")]


@cache
def protocol_of(prompt: str) -> AgentProtocol:
    return build_protocol(prompt.rpartition("-")[0], prompt)


@pytest.mark.parametrize("prompt", PROMPTS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6), passages=PASSAGES, question=TEXTS)
@settings(max_examples=60, deadline=None)
def test_an_episode_of_any_texts(prompt: str, texts: list[str], passages: list[Passage], question: str) -> None:
    protocol = protocol_of(prompt)
    episode = Episode(Question("q", question, ("Lund",)), protocol, max_rounds=5)
    before = None
    for text in texts:
        while isinstance(episode.request, NeedsPassages):
            episode.feed_passages(passages)
        request = episode.request
        if request is None:
            break
        if protocol.context == "append" and before is not None:
            assert request.messages[: len(before.messages)] == before.messages
            assert len(request.messages) == len(before.messages) + 2
            assert request.prefix is episode.state.steps[-1].generation
            assert request.continuation in (None, request.messages[-1].content)
        else:
            assert (request.prefix, request.continuation) == (None, None)
        assert request.continuation_tokens in (None, protocol.observation_tokens)
        assert request.stop == protocol.stop
        before = request
        # The reply as a local policy gives it: it ends behind the first stop string.
        cuts = [text.index(stop) + len(stop) for stop in protocol.stop if stop in text]
        episode.feed_generation(Reply(text[: min(cuts, default=len(text))]))
    check_own_words(episode)


def squeezed(text: str) -> str:
    """What a reader sees of a text, without blanks and case (GiGPO reads tags in any case)."""
    return re.sub(r"\s+", "", plain_line(text)).casefold()


def check_own_words(episode: Episode) -> None:
    """Every action is written in the reply that it was read from, whatever the passages held."""
    for step in episode.state.steps:
        written = squeezed(step.generation.text)
        match step.action:
            case Search(query) if step.generation.finish_reason != FORCED:
                assert squeezed(query) in written
            case Answer(response):
                assert squeezed(response) in written
            case Invalid(reason):
                assert reason
    if episode.stop_reason is not None and episode.trajectory.answer is not None:
        assert isinstance(episode.trajectory.steps[-1].action, Answer)
    assert not any(isinstance(step.action, Assert) and step.action.triples for step in episode.state.steps) or (
        episode.protocol.asserts
    )


@pytest.mark.parametrize("name", PROTOCOLS)
@given(text=st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)))
@settings(max_examples=100, deadline=None)
def test_any_text_is_read(name: str, text: str) -> None:
    protocol = protocol_of(f"{name}-full")
    fresh = Episode(Question("q", "?", ("x",)), protocol)
    assert isinstance(protocol.parse(text, fresh.state), Search | Answer | Assert | Invalid)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_reading_takes_time_linear_in_the_text(name: str) -> None:
    # With a search for every opening tag these would take minutes.
    protocol = protocol_of(f"{name}-full")
    state = Episode(Question("q", "?", ("x",)), protocol).state
    for text in (
        "<search>" * 100_000 + "</answer>" * 100_000,
        "<answer>\\boxed{" * 50_000 + "</answer>",
        "<" * 400_000,
    ):
        assert isinstance(protocol.parse(text, state), Invalid | Answer)
