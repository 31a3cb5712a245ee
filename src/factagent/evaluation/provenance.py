"""Where an answer's facts come from: the observation that the policy had read, and whether its words are there.

A fact stands in the store because the policy asserted it; nothing checked it. `found` says one simple thing: the words
of its subject and of its object, without regard to case and blanks, occur in the passage named. It does not say that
the passage states the relation.
"""

from __future__ import annotations

from dataclasses import dataclass

from factagent.types import Fact, Passage, Trajectory


@dataclass(frozen=True, slots=True)
class SourcedFact:
    """A fact of the final store with the passage that it may come from.

    `candidates` are the passages of the observation that the policy had read last before it asserted the fact, best
    first; `passage` is the first of them that holds its subject and its object, None where none does.
    """

    fact: Fact
    passage: Passage | None
    candidates: tuple[Passage, ...]

    @property
    def found(self) -> bool:
        """Whether one passage holds the words of both subject and object."""
        return self.passage is not None


def sourced_facts(trajectory: Trajectory) -> list[SourcedFact]:
    """The facts of the final store, in the order of assertion, each with its passage."""
    sourced = []
    for fact in trajectory.facts:
        step = None if fact.source_step is None else trajectory.steps[fact.source_step]
        candidates = step.observation.passages if step is not None and step.observation is not None else ()
        passage = next((each for each in candidates if _holds(each, fact)), None)
        sourced.append(SourcedFact(fact, passage, candidates))
    return sourced


def _holds(passage: Passage, fact: Fact) -> bool:
    text = _folded(f"{passage.title} {passage.text}")
    parts = (_folded(fact.triple.subject), _folded(fact.triple.object))
    return all(part and part in text for part in parts)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
