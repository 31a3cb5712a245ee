"""IGPO's measurement: how likely the policy finds the gold answer in each state (methods.md, section 12.1).

The gold answer (the first one) is written as the protocol would have it answered, forced behind the very prompt that
the policy read before each step, and scored: the mean log-probability of the tokens that spell the answer itself, not
of the thought and the marks around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factagent.errors import DataError, UsageError
from factagent.policies.scripted_replies import Reply, write_reply
from factagent.protocols.base import AgentProtocol
from factagent.types import Answer, Group, Question, Trajectory

if TYPE_CHECKING:
    from factagent.policies.transformers import TransformersPolicy

Floats = NDArray[np.float64]

_MARK = "@answer@"
_THOUGHT = "done"


@dataclass(frozen=True)
class ForcedReply:
    """A reply that gives the gold answer: its tokens, and which of them spell the answer."""

    ids: tuple[int, ...]
    answer: tuple[int, ...]


def answer_span(protocol: AgentProtocol, answer: str) -> tuple[str, int, int]:
    """A reply in the protocol's format that gives this answer, and where in it the answer stands: text, start, end.

    Raises:
        UsageError: replies of the protocol cannot be written here.
    """

    def write(response: str) -> str:
        return write_reply(Reply(_THOUGHT, Answer(response)), protocol.prompt.style, protocol.name)

    try:
        text, form = write(answer), write(_MARK)
    except KeyError as error:
        raise UsageError(f"protocol '{protocol.name}' has no reply format, which rule 'igpo' needs") from error
    before, _, after = form.partition(_MARK)
    return text, len(before), len(text) - len(after)


def forced_reply(policy: TransformersPolicy, protocol: AgentProtocol, question: Question) -> ForcedReply:
    """The first gold answer as a reply in tokens.

    Raises:
        DataError: the question has no gold answer, or one without any token.
    """
    if not question.answers:
        raise DataError(f"question '{question.id}' has no gold answer, which rule 'igpo' measures")
    text, start, end = answer_span(protocol, policy.codec.neutralise(question.answers[0]))
    encoded = policy.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = encoded["offset_mapping"]
    answer = tuple(i for i, (first, last) in enumerate(spans) if first < end and last > start)
    if not answer:
        raise DataError(f"question '{question.id}': the gold answer {question.answers[0]!r} has no token")
    return ForcedReply(tuple(encoded["input_ids"]), answer)


def gold_logprobs(
    groups: Sequence[Group], protocol: AgentProtocol, policy: TransformersPolicy
) -> tuple[list[list[Floats]], int]:
    """The mean log-probability (nats a token) of the gold answer in each state, and the tokens that were scored.

    States that members share are scored once, all states of the batch together. The step that ends an episode leaves
    no state in which an answer could be written; the entry behind it repeats the one before, so that it gains nothing.
    So does a step that the policy did not write.

    Returns:
        (groups)(members)(S + 1,), and the tokens of all forced replies.

    Raises:
        UsageError: trajectories hold no tokens.
        DataError: a question without gold answer.
    """
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    answers: list[ForcedReply] = []
    places: list[list[list[int | None]]] = []
    for group in groups:
        forced = forced_reply(policy, protocol, group.question)
        places.append([])
        for trajectory in group.trajectories:
            row: list[int | None] = []
            for prompt in _prompts(trajectory):
                if prompt and (prompt, forced.ids) not in rows:
                    rows[prompt, forced.ids] = len(rows)
                    answers.append(forced)
                row.append(rows[prompt, forced.ids] if prompt else None)
            places[-1].append(row)
    scored = policy.logprobs([prompt for prompt, _ in rows], [ids for _, ids in rows])
    means = [float(np.mean(found[list(forced.answer)])) for found, forced in zip(scored, answers, strict=True)]
    values = [[_filled([None if i is None else means[i] for i in row]) for row in member] for member in places]
    return values, sum(len(forced.ids) for forced in answers)


def _prompts(trajectory: Trajectory) -> list[tuple[int, ...]]:
    """What the policy read before each step; empty before a step that it did not write."""
    if trajectory.stop_reason.is_failure:
        return []
    prompts = [step.generation.prompt_ids for step in trajectory.steps]
    written = any(step.generation.text for step in trajectory.steps)
    if written and not any(prompts):
        raise UsageError("rule 'igpo' needs a policy with tokens: train a local model")
    return prompts


def _filled(known: Sequence[float | None]) -> Floats:
    """One entry a state, the last included; a missing one takes the next that is known, else the last."""
    filled = np.zeros(len(known) + 1)
    following: float | None = None
    for index in reversed(range(len(known))):
        value = known[index]
        following = following if value is None else value
        filled[index] = np.nan if following is None else following
    present = [value for value in known if value is not None]
    last = present[-1] if present else 0.0
    filled[-1] = last
    filled[np.isnan(filled)] = last
    return filled
