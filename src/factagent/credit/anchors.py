"""Anchor states: which steps of a group started from the same place, as GiGPO compares them (methods.md 4.4).

Two kinds. "observation" is the original's: the question at step 0, afterwards what the previous action returned. It
fits protocols whose prompts hold a history. "state" is what a protocol with a fact store shows: the last observation,
which stays in sight until the next search, with the facts and the memory held so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from factagent.protocols.fact_store import fact_key
from factagent.types import Assert, Observation, Question, Step

AnchorKind = Literal["observation", "state"]


def anchors(question: Question, steps: Sequence[Step], kind: AnchorKind) -> list[str]:
    """The state in which each step was taken, as text."""
    return _observed(question, steps) if kind == "observation" else _states(question, steps)


def cluster_anchors(texts: Sequence[str], threshold: float | None) -> list[int]:
    """The cluster of each anchor: equal texts where there is no threshold, else similar ones.

    Similar means that the ratio of `difflib.SequenceMatcher(None, text, representative)` is at least `threshold`.
    Texts are taken in order; one joins the first cluster whose representative, its first member, it resembles, else
    opens one. Hence the order of the texts matters, as in the original.
    """
    known: dict[str, int] = {}
    leaders: list[SequenceMatcher[str]] = []
    for text in texts:
        if text not in known:
            known[text] = _join(text, leaders, threshold)
    return [known[text] for text in texts]


def _join(text: str, leaders: list[SequenceMatcher[str]], threshold: float | None) -> int:
    for number, leader in enumerate(leaders) if threshold is not None else ():
        leader.set_seq1(text)
        # Both are upper bounds of the ratio, and much cheaper.
        if leader.real_quick_ratio() >= threshold and leader.quick_ratio() >= threshold and leader.ratio() >= threshold:
            return number
    leader = SequenceMatcher(None)
    leader.set_seq2(text)
    leaders.append(leader)
    return len(leaders) - 1


def _observed(question: Question, steps: Sequence[Step]) -> list[str]:
    return [question.text, *(_shown(step.observation) for step in steps[:-1])] if steps else []


def _states(question: Question, steps: Sequence[Step]) -> list[str]:
    """Question, last observation, facts (a set: their order does not matter), memory."""
    texts = []
    observation, memory = "", ""
    facts: set[tuple[str, ...]] = set()
    for step in steps:
        texts.append("\n\n".join([question.text, observation, *map(" ".join, sorted(facts)), memory]))
        if isinstance(step.action, Assert):
            facts |= set(map(fact_key, step.action.triples))
            memory = memory if step.action.triples else step.action.summary
        observation = _shown(step.observation) or observation
    return texts


def _shown(observation: Observation | None) -> str:
    """The passages as one text; empty where nothing was returned."""
    passages = observation.passages if observation else ()
    return "\n".join(f'Doc {rank}: "{passage.title}"\n{passage.text}' for rank, passage in enumerate(passages, 1))
