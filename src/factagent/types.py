"""The nouns: questions, passages, actions, steps, trajectories, groups.

Everything here is an immutable record without behaviour beyond plain look-ups. Credit, evaluation, run files and the
offline tools all read these; nothing here imports anything heavier than the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

LATER = {"later": True}
"""Metadata of a field that a released record lacks: `records` writes it only where it differs from its default."""


class Triple(NamedTuple):
    """One statement: subject, relation, object (strings as the policy wrote them, outer blanks stripped)."""

    subject: str
    relation: str
    object: str

    @property
    def text(self) -> str:
        """`"{subject} {relation} {object}"`, the verbalisation that encoders see."""
        return f"{self.subject} {self.relation} {self.object}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answers; the optional fields exist where the data set has them."""

    id: str
    text: str
    answers: tuple[str, ...]
    type: str | None = None
    hops: int | None = None
    supporting_titles: tuple[str, ...] = ()
    evidences: tuple[Triple, ...] = ()
    """Gold triples, in reasoning order."""
    evidence_variants: tuple[tuple[Triple, ...], ...] = ()
    """Other wordings of each gold triple, aligned with `evidences` (empty where the data set has none)."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrieved (or indexed) passage. `score` is the retriever's, higher is better; 0 outside a search."""

    id: str
    title: str
    text: str
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Search:
    """Ask the retriever; the new observation overwrites the last one."""

    query: str


@dataclass(frozen=True, slots=True)
class Assert:
    """Add triples, distilled from the last observation, to the fact store."""

    triples: tuple[Triple, ...]
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """End the episode with a response."""

    response: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """What the policy wrote is no action. `reason` is a stable code, `detail` says where and why."""

    reason: str
    detail: str = ""


Action = Search | Assert | Answer | Invalid


@dataclass(frozen=True, slots=True)
class Observation:
    """What a search returned, best passage first."""

    query: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A triple in the fact store with its provenance.

    `assert_step` is the index of the step that asserted it; `source_step` the index of the latest valid search before
    that step (the text the policy read), or None where no search came before.
    """

    triple: Triple
    assert_step: int
    source_step: int | None = None
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. Roles: system, user, assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Generation:
    """What a policy produced for one request: token in, token out.

    `prompt_ids` are the tokens the policy read, `response_ids` those it sampled and `logprobs` (nats, same length as
    `response_ids`) their log-probabilities under the sampling distribution (logits / temperature). They are empty for
    policies without tokens (scripted, endpoints). `finish_reason` is "stop" (the reply ended by itself), "length" (it
    was cut), "content_filter" (an endpoint's provider cut it), `episode.OVERLONG` or `episode.FORCED`.
    """

    text: str
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    """Length of the prompt in the policy's tokens (kept where the ids are not). No prompt is empty, so 0 says that the
    counts are unknown: nobody guesses them."""
    response_tokens: int = field(default=0, metadata=LATER)
    """Length of the reply in the policy's tokens, where the ids are not kept; see `sampled_tokens`."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens of the reply: its ids where there are any, else the count that came with it (0 where unknown)."""
        return len(self.response_ids) or self.response_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One action: what was generated, how it parsed, what came back (searches only)."""

    action: Action
    generation: Generation = Generation("")
    observation: Observation | None = None


class StopReason(StrEnum):
    """Why a trajectory ended. The failures leave the group's statistics; they are never a low reward."""

    ANSWERED = "answered"
    OUT_OF_ROUNDS = "out_of_rounds"
    PROMPT_TOO_LONG = "prompt_too_long"
    NO_ANSWER = "no_answer"
    """A reply held no valid action, under a protocol that ends there."""
    RETRIEVAL_FAILED = "retrieval_failed"
    POLICY_FAILED = "policy_failed"
    TIMEOUT = "timeout"

    @property
    def is_failure(self) -> bool:
        """True for a failure of infrastructure, as opposed to an end that the policy brought about."""
        return self in (StopReason.RETRIEVAL_FAILED, StopReason.POLICY_FAILED, StopReason.TIMEOUT)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one rollout: its steps in order and why it stopped. `member` is its index in the group."""

    steps: tuple[Step, ...]
    stop_reason: StopReason = StopReason.ANSWERED
    member: int = 0
    messages: tuple[tuple[Message, ...], ...] = field(default=(), repr=False)
    """The prompt of each step, as messages (empty where it was not recorded)."""

    @property
    def answer(self) -> str | None:
        """The response of the answer action, or None where the trajectory ended without one."""
        last = self.steps[-1].action if self.steps else None
        return last.response if isinstance(last, Answer) else None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The final fact store, with provenance, in the order of assertion (repeats kept)."""
        facts: list[Fact] = []
        source: int | None = None
        for index, step in enumerate(self.steps):
            if isinstance(step.action, Search):
                source = index
            elif isinstance(step.action, Assert):
                facts += (Fact(triple, index, source, step.action.summary) for triple in step.action.triples)
        return tuple(facts)


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories sampled for one question."""

    question: Question
    trajectories: tuple[Trajectory, ...]
