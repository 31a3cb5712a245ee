"""Episode: the state machine of one rollout, without I/O.

    waiting for a generation --feed_generation--> waiting for passages --feed_passages--> waiting for a generation
            |                                            (searches only)
            +--> done: answered, out of rounds, prompt too long, or a failure reported by the driver

A search in the last round is a step without an observation: no round is left in which it could be read. Under a
protocol that opens with a search, an episode starts out waiting for the passages of its question.

Drivers ask `request` what it needs next and feed what came back: lock-step batches (`rollout.py`), asyncio, or a
cluster's agent loop. An Episode holds immutable records only, so a `copy.deepcopy` (or `branch()`) is a branch that
shares the past and owns its future.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from factagent.errors import ConfigError
from factagent.protocols.base import AgentProtocol
from factagent.protocols.questions import normalised_question
from factagent.protocols.state import State
from factagent.protocols.untrusted import plain_line
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
    StopReason,
    Trajectory,
)

MAX_ROUNDS = 8
"""Rounds of an episode, the answer included (section 5.1)."""

TOP_K = 3
"""Passages of an observation."""

OVERLONG = "overlong"
"""The `finish_reason` with which a policy says that the prompt does not fit its context."""

FORCED = "forced"
"""The `finish_reason` of a step that no policy wrote (the opening search of RAG): it has no tokens, hence no loss."""


@dataclass(frozen=True, slots=True)
class NeedsGeneration:
    """The episode waits for the policy.

    `prefix` is the last generation of an `append` protocol, whose tokens the policy must continue (token in, token
    out), and None where the prompt is made anew. `continuation` is the text that follows it inside the assistant's
    turn, cut to `continuation_tokens`; None where new messages follow it. `stop` are strings that end the reply.
    """

    messages: tuple[Message, ...]
    state: State
    prefix: Generation | None = None
    continuation: str | None = None
    continuation_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NeedsPassages:
    """The episode waits for the retriever."""

    query: str
    top_k: int


class Episode:
    """One rollout of one question.

    Args:
        question: what is asked.
        protocol: how states are shown and replies are read.
        member: index in its group.
        max_rounds: actions allowed, the answer included; an invalid action costs a round like any other.
        top_k: passages an observation holds.
        record_messages: keep each round's prompt in the trajectory (an empty one for a forced step).

    Raises:
        ConfigError: the protocol opens with a search, and `max_rounds` leaves no round to answer in.
    """

    def __init__(
        self,
        question: Question,
        protocol: AgentProtocol,
        *,
        member: int = 0,
        max_rounds: int = MAX_ROUNDS,
        top_k: int = TOP_K,
        record_messages: bool = False,
    ) -> None:
        if max_rounds < 1 or top_k < 1:
            raise ValueError(f"max_rounds={max_rounds} and top_k={top_k} must be at least 1")
        self.protocol = protocol
        self.member = member
        self.top_k = top_k
        self.state = State(question, max_rounds)
        self.stop_reason: StopReason | None = None
        self._searching: tuple[Search, Generation] | None = None
        self._shown: NeedsGeneration | None = None
        self._record_messages = record_messages
        self._messages: tuple[tuple[Message, ...], ...] = ()
        if protocol.opens_with_search:
            self._open()

    @property
    def request(self) -> NeedsGeneration | NeedsPassages | None:
        """What the episode needs next; None when it is done."""
        if self.stop_reason is not None:
            return None
        if self._searching is not None:
            return NeedsPassages(self._searching[0].query, self.top_k)
        return self._show()

    def feed_generation(self, generation: Generation) -> None:
        """Take what the policy produced, act on it.

        Raises:
            RuntimeError: the episode was not waiting for a generation.
        """
        if self.stop_reason is not None or self._searching is not None:
            raise RuntimeError(f"the episode {self._status}; it cannot take a generation")
        if generation.finish_reason == OVERLONG:
            self.stop_reason = StopReason.PROMPT_TOO_LONG
            return
        if self._record_messages:
            self._messages += (self._show().messages,)
        action = self.protocol.parse(generation.text, self.state)
        if isinstance(action, Search) and self.state.round < self.state.max_rounds:
            self._searching = action, generation
        else:
            self._finish_step(Step(action, generation))

    def feed_passages(self, passages: Sequence[Passage]) -> None:
        """Take what the retriever returned; it overwrites the last observation.

        Raises:
            RuntimeError: the episode was not waiting for passages.
        """
        if self._searching is None:
            raise RuntimeError(f"the episode {self._status}; it cannot take passages")
        action, generation = self._searching
        self._searching = None
        self._finish_step(Step(action, generation, Observation(action.query, tuple(passages))))

    def fail(self, reason: StopReason) -> None:
        """End the episode because a server failed; the trajectory leaves its group's statistics.

        A search that still waits for its passages stays in the record, without an observation.

        Raises:
            RuntimeError: the episode is done already.
            ValueError: `reason` is no failure; such ends come about by feeding generations.
        """
        if self.stop_reason is not None:
            raise RuntimeError(f"the episode {self._status}; it cannot fail")
        if not reason.is_failure:
            raise ValueError(f"'{reason}' is not a failure of infrastructure")
        if self._searching is not None:
            self.state = replace(self.state, steps=(*self.state.steps, Step(*self._searching)))
            self._searching = None
        self.stop_reason = reason

    def branch(self) -> Episode:
        """An independent continuation from here (VinePPO, tree search)."""
        twin = object.__new__(Episode)
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, object]) -> Episode:
        return self.branch()

    @property
    def trajectory(self) -> Trajectory:
        """The record of a finished episode.

        Raises:
            RuntimeError: the episode is not done.
        """
        if self.stop_reason is None:
            raise RuntimeError(f"the episode {self._status}; it has no trajectory yet")
        return Trajectory(self.state.steps, self.stop_reason, self.member, self._messages)

    @property
    def _status(self) -> str:
        if self.stop_reason is not None:
            return f"is done ({self.stop_reason})"
        return "waits for a generation" if self._searching is None else "waits for passages"

    def _show(self) -> NeedsGeneration:
        """The request for a generation in this state, rendered once a state however often it is asked for."""
        if self._shown is None or self._shown.state is not self.state:
            steps = self.state.steps
            last = steps[-1].generation if steps and self.protocol.context == "append" else None
            self._shown = self._request_after(None if last is None or last.finish_reason == FORCED else last)
        return self._shown

    def _request_after(self, prefix: Generation | None) -> NeedsGeneration:
        protocol, state = self.protocol, self.state
        text = protocol.continuation(state) if prefix is not None else None
        limit = protocol.observation_tokens if text is not None else None
        return NeedsGeneration(protocol.render(state), state, prefix, text, limit, protocol.stop)

    def _open(self) -> None:
        """Search the question itself, in the place of a first reply."""
        if self.state.max_rounds < 2:
            raise ConfigError(f"protocol '{self.protocol.name}' searches first; set rollout.max_rounds to 2 or more")
        query = plain_line(normalised_question(self.state.question.text))
        self._searching = Search(query), Generation("", finish_reason=FORCED)
        if self._record_messages:
            self._messages = ((),)

    def _finish_step(self, step: Step) -> None:
        state = self.state
        store = state.store
        if isinstance(step.action, Assert):
            store = store.add(step.action, len(state.steps), self._source_step())
        observation = step.observation or state.observation
        self.state = replace(state, store=store, observation=observation, steps=(*state.steps, step))
        if isinstance(step.action, Answer):
            self.stop_reason = StopReason.ANSWERED
        elif isinstance(step.action, Invalid) and self.protocol.invalid_ends:
            self.stop_reason = StopReason.NO_ANSWER
        elif len(self.state.steps) >= state.max_rounds:
            self.stop_reason = StopReason.OUT_OF_ROUNDS

    def _source_step(self) -> int | None:
        searches = [index for index, step in enumerate(self.state.steps) if isinstance(step.action, Search)]
        return searches[-1] if searches else None
