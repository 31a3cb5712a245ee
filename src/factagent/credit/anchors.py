"""Anchor states: which steps of a group started from the same place, as GiGPO compares them (methods.md 4.4).

Two kinds. "observation" is the original's: the question at step 0, afterwards what the previous action returned. It
fits protocols whose prompts hold a history. "state" is what a protocol with a fact store shows: the last observation,
which stays in sight until the next search, with the facts and the memory held so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from factagent.protocols.fact_store import fact_key
from factagent.types import Assert, Observation, Question, Step

AnchorKind = Literal["observation", "state"]

GRAM = 4
"""Length of the n-grams by which unlike texts are told apart quickly: two passages of English share few of four."""

_ROUNDING = 1e-6


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
    leaders: list[_Leader] = []
    for text in texts:
        if text not in known:
            known[text] = _join(text, leaders, threshold)
    return [known[text] for text in texts]


class _Leader:
    """A representative, ready to be compared with many texts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.grams = _grams(text)
        self.matcher = SequenceMatcher(None, "", text)

    def resembles(self, text: str, grams: frozenset[str], threshold: float) -> bool:
        """Whether the ratio reaches the threshold. Most texts are turned away before difflib sees them.

        With M matched characters of T, 2 M / T >= threshold, at most (1 - threshold) T characters are unmatched. An
        unmatched one of this text spoils at most GRAM of its n-grams, one of the other text GRAM - 1; all others stand
        in both texts.
        """
        own, other = len(text), len(self.text)
        slack = (1.0 - threshold) * (own + other)
        if abs(own - other) > slack + _ROUNDING:
            return False
        spoilt = GRAM * (slack + own - other) / 2 + (GRAM - 1) * (slack + other - own) / 2
        if len(grams & self.grams) < own - GRAM + 1 - spoilt - _ROUNDING:
            return False
        self.matcher.set_seq1(text)
        return self.matcher.ratio() >= threshold


def _join(text: str, leaders: list[_Leader], threshold: float | None) -> int:
    if threshold is not None:
        grams = _grams(text)
        for number, leader in enumerate(leaders):
            if leader.resembles(text, grams, threshold):
                return number
    leaders.append(_Leader(text))
    return len(leaders) - 1


def _grams(text: str) -> frozenset[str]:
    """The n-grams of a text, repeats told apart by their number, so that common members are common occurrences."""
    seen: Counter[str] = Counter()
    grams = []
    for start in range(len(text) - GRAM + 1):
        gram = text[start : start + GRAM]
        grams.append(f"{gram}{seen[gram]}")
        seen[gram] += 1
    return frozenset(grams)


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
