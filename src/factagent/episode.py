"""Episode: the state machine of one rollout, without I/O.

    waiting for a generation --feed_generation--> waiting for passages --feed_passages--> waiting for a generation
            |                                            (searches only)
            +--> done: answered, out of rounds, prompt too long, or a failure reported by the driver

A search in the last round is a step without an observation: no round is left in which it could be read.

Drivers ask `request` what it needs next and feed what came back: lock-step batches (`rollout.py`), asyncio, or a
cluster's agent loop. An Episode holds immutable records only, so a `copy.deepcopy` (or `branch()`) is a branch that
shares the past and owns its future.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from factagent.protocols.base import AgentProtocol
from factagent.protocols.state import State
from factagent.types import (
    Answer,
    Assert,
    Generation,
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


@dataclass(frozen=True, slots=True)
class NeedsGeneration:
    """The episode waits for the policy.

    `prefix` is the last generation of an `append` protocol, whose tokens the policy must continue (token in, token
    out), and None where the prompt is made anew.
    """

    messages: tuple[Message, ...]
    state: State
    prefix: Generation | None = None


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
        record_messages: keep each round's prompt in the trajectory.
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
            prefix = steps[-1].generation if steps and self.protocol.context == "append" else None
            self._shown = NeedsGeneration(self.protocol.render(self.state), self.state, prefix)
        return self._shown

    def _finish_step(self, step: Step) -> None:
        state = self.state
        store = state.store
        if isinstance(step.action, Assert):
            store = store.add(step.action, len(state.steps), self._source_step())
        observation = step.observation or state.observation
        self.state = replace(state, store=store, observation=observation, steps=(*state.steps, step))
        if isinstance(step.action, Answer):
            self.stop_reason = StopReason.ANSWERED
        elif len(self.state.steps) >= state.max_rounds:
            self.stop_reason = StopReason.OUT_OF_ROUNDS

    def _source_step(self) -> int | None:
        searches = [index for index, step in enumerate(self.state.steps) if isinstance(step.action, Search)]
        return searches[-1] if searches else None
