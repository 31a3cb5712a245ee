"""Any sequence of generations, passages and failures, fed to an Episode and to a small model of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from factagent.episode import OVERLONG, Episode, NeedsGeneration, NeedsPassages
from factagent.protocols import build_protocol
from factagent.protocols.actions import render_action
from factagent.types import (
    Action,
    Answer,
    Assert,
    Fact,
    Generation,
    Message,
    Observation,
    Passage,
    Question,
    Search,
    StopReason,
    Triple,
)

WORDS = st.sampled_from(["anna", "Anna", "lund", "born in", "x", "$question", "</observation>", "<|im_end|>"])
TRIPLES = st.builds(Triple, WORDS, WORDS, WORDS)
PASSAGES = st.lists(st.builds(Passage, WORDS, WORDS, st.text(max_size=20)), max_size=3)
ACTIONS = st.one_of(
    st.builds(Search, WORDS),
    st.builds(Assert, st.lists(TRIPLES, min_size=1, max_size=4).map(tuple), st.sampled_from(["", "seen"])),
    st.builds(Answer, WORDS),
)
FAILURES = st.sampled_from([reason for reason in StopReason if reason.is_failure])
PROMPTS = st.sampled_from(["factagent-full", "factagent-terse", "react-full", "react-terse"])


@dataclass
class Expected:
    """What an Episode must hold, kept by the plainest means."""

    max_rounds: int
    kinds: list[str] = field(default_factory=list)
    facts: dict[tuple[str, ...], Fact] = field(default_factory=dict)
    observation: Observation | None = None
    source: int | None = None
    query: str | None = None
    stop: StopReason | None = None
    prompts: list[tuple[Message, ...]] = field(default_factory=list)

    def close(self, kind: str) -> None:
        self.kinds.append(kind)
        if kind == "answer":
            self.stop = StopReason.ANSWERED
        elif len(self.kinds) == self.max_rounds:
            self.stop = StopReason.OUT_OF_ROUNDS


class Machine(RuleBasedStateMachine):
    """Holds several episodes at once: branches that share a past and must not disturb each other."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.known: list[tuple[Episode, Expected]] = []

    @initialize(target=runs, prompt=PROMPTS, max_rounds=st.integers(1, 6), top_k=st.integers(1, 3))
    def start(self, prompt: str, max_rounds: int, top_k: int) -> tuple[Episode, Expected]:
        protocol = build_protocol(prompt.rpartition("-")[0], prompt)
        question = Question("q", "who is $facts </observation>?", ("x",))
        run = Episode(question, protocol, max_rounds=max_rounds, top_k=top_k, record_messages=True)
        self.known.append((run, Expected(max_rounds)))
        return self.known[-1]

    @rule(target=runs, run=runs, deep=st.booleans())
    def branch(self, run: tuple[Episode, Expected], deep: bool) -> tuple[Episode, Expected]:
        episode, expected = run
        twin = copy.deepcopy(episode) if deep else episode.branch()
        self.known.append((twin, copy.deepcopy(expected)))
        return self.known[-1]

    @rule(run=runs, action=ACTIONS, thought=st.booleans())
    def act(self, run: tuple[Episode, Expected], action: Action, thought: bool) -> None:
        text = f"<think>{{</think>\n```json\n{render_action(action)}\n```" if thought else render_action(action)
        if not self._feed(run, text):
            return
        _, expected = run
        match action:
            case Search(query) if len(expected.kinds) + 1 < expected.max_rounds:
                expected.query = query
            case Search():
                expected.close("search")
            case Assert(triples, summary) if expected.observation is not None:
                step = len(expected.kinds)
                for triple in triples:
                    key = tuple(part.casefold() for part in triple)
                    expected.facts.setdefault(key, Fact(triple, step, expected.source, summary))
                expected.close("assert")
            case Assert():
                expected.close("invalid")
            case Answer():
                expected.close("answer")

    @rule(run=runs, text=st.one_of(st.text(max_size=30), st.sampled_from(['{"action": "answer"}', "Lund", "{", "[]"])))
    def write_nonsense(self, run: tuple[Episode, Expected], text: str) -> None:
        if self._feed(run, text):
            run[1].close("invalid")

    @rule(run=runs, passages=PASSAGES)
    def retrieve(self, run: tuple[Episode, Expected], passages: list[Passage]) -> None:
        episode, expected = run
        if expected.query is None or expected.stop is not None:
            with pytest.raises(RuntimeError):
                episode.feed_passages(passages)
            return
        episode.feed_passages(passages)
        expected.observation = Observation(expected.query, tuple(passages))
        expected.source = len(expected.kinds)
        expected.query = None
        expected.close("search")

    @rule(run=runs)
    def overlong(self, run: tuple[Episode, Expected]) -> None:
        if self._feed(run, render_action(Answer("x")), OVERLONG):
            run[1].stop = StopReason.PROMPT_TOO_LONG
            run[1].prompts.pop()

    @rule(run=runs, reason=FAILURES)
    def fail(self, run: tuple[Episode, Expected], reason: StopReason) -> None:
        episode, expected = run
        if expected.stop is not None:
            with pytest.raises(RuntimeError):
                episode.fail(reason)
            return
        episode.fail(reason)
        if expected.query is not None:
            expected.kinds.append("search")
            expected.query = None
        expected.stop = reason

    def _feed(self, run: tuple[Episode, Expected], text: str, finish_reason: str = "stop") -> bool:
        episode, expected = run
        generation = Generation(text, finish_reason=finish_reason)
        if expected.stop is not None or expected.query is not None:
            with pytest.raises(RuntimeError):
                episode.feed_generation(generation)
            return False
        request = episode.request
        assert isinstance(request, NeedsGeneration)
        if expected.prompts and episode.protocol.context == "append":
            last = expected.prompts[-1]
            assert len(request.messages) == len(last) + 2
            assert request.messages[: len(last)] == last
            assert request.prefix is episode.state.steps[-1].generation
        else:
            assert request.prefix is None
        expected.prompts.append(request.messages)
        episode.feed_generation(generation)
        return True

    @invariant()
    def episodes_are_as_expected(self) -> None:
        for episode, expected in self.known:
            state = episode.state
            assert [type(step.action).__name__.lower() for step in state.steps] == expected.kinds
            assert len(state.steps) <= state.max_rounds == expected.max_rounds
            assert state.store.facts == tuple(expected.facts.values())
            assert state.observation == expected.observation
            assert episode.stop_reason == expected.stop

    @invariant()
    def requests_follow_from_the_state(self) -> None:
        for episode, expected in self.known:
            if expected.stop is not None:
                assert episode.request is None
                trajectory = episode.trajectory
                assert (trajectory.stop_reason, trajectory.steps) == (expected.stop, episode.state.steps)
                assert trajectory.messages == tuple(expected.prompts)
                assert (trajectory.answer is not None) == (expected.stop is StopReason.ANSWERED)
                assert {fact.triple for fact in trajectory.facts} >= {fact.triple for fact in episode.state.store.facts}
            elif expected.query is not None:
                assert episode.request == NeedsPassages(expected.query, episode.top_k)
            else:
                assert isinstance(episode.request, NeedsGeneration)
                assert episode.request.state is episode.state


Machine.TestCase.settings = settings(max_examples=1000, stateful_step_count=16)
TestEpisodeMachine = Machine.TestCase
