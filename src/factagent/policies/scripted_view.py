"""What the scripted expert sees: the state as its protocol shows it, with the gold annotations laid over it.

Which facts it holds depends on what a policy would find in its prompt: those of the fact store, those of the memory,
or, where the whole transcript is shown, every gold fact that any observation stated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from factagent.policies.scripted_replies import memory_triples
from factagent.protocols.fact_store import fact_key
from factagent.protocols.memsearcher import memory_of
from factagent.protocols.state import State
from factagent.types import Passage, Question, Triple

STORING = ("factagent", "react")
"""Protocols whose facts are those that the policy asserted."""

REMEMBERING = "memsearcher"
"""The protocol whose facts are those of its memory."""


class View:
    """A state as the expert reads it.

    Args:
        state: of an episode under `protocol`.
        passage_facts: the triples that each passage states, by passage id.
        protocol: its name.
    """

    def __init__(
        self, state: State, passage_facts: Mapping[str, Sequence[Triple]], protocol: str = "factagent"
    ) -> None:
        self.state = state
        self.protocol = protocol
        self.question: Question = state.question
        self.passage_facts = passage_facts
        self.passages: tuple[Passage, ...] = state.observation.passages if state.observation else ()
        """Those of the last observation."""
        self.golds = [_wordings(self.question, i) for i in range(len(self.question.evidences))]
        self.triples = self._held()
        """The facts that it holds, oldest first."""
        self.held = {fact_key(triple) for triple in self.triples}
        self.missing = [i for i, gold in enumerate(self.golds) if not self.held & gold.keys()]

    @property
    def shown(self) -> tuple[Passage, ...]:
        """The passages that the policy sees: the last observation's, or all where the transcript is shown."""
        if self.protocol in (*STORING, REMEMBERING):
            return self.passages
        return tuple(p for step in self.state.steps if step.observation for p in step.observation.passages)

    def found(self, indices: Iterable[int]) -> tuple[Triple, ...]:
        """What the last observation states of these gold triples, each fact once."""
        return tuple(dict.fromkeys(t for i in indices for t in self.stated(self.golds[i], self.passages)))

    def stated(self, gold: Mapping[tuple[str, ...], Triple], passages: Sequence[Passage]) -> list[Triple]:
        """A gold triple as the passages word it, with what the same passage says of its subject in the same words.

        These siblings are what a reader who does not know the answer would keep too (the whole cast of a film, not
        only the actor who turns out to matter). Empty where no passage states the gold triple.
        """
        for passage in passages:
            if passage.id in self.passage_facts:
                facts = self.passage_facts[passage.id]
                for found in facts:
                    if fact_key(found) in gold:
                        return [t for t in facts if t.subject == found.subject and t.relation == found.relation]
                continue
            text = f"{passage.title} {passage.text}".casefold()
            canonical = next(iter(gold.values()))
            if canonical.subject.casefold() in text and canonical.object.casefold() in text:
                return [canonical]
        return []

    def other_facts(self) -> list[Triple]:
        """What the last observation states besides the gold triples and what is held."""
        known = set(self.held).union(*(gold.keys() for gold in self.golds))
        facts = [triple for passage in self.passages for triple in self.passage_facts.get(passage.id, ())]
        return [triple for triple in facts if fact_key(triple) not in known]

    def query_for(self, index: int, rng: Random) -> tuple[str, str]:
        """(entity, relation) to ask for: the side of the gold triple that the policy can know by now.

        Where it can know both sides, either is drawn: which of several candidates is the right one, it cannot know.
        """
        triple = self.question.evidences[index]
        known = self.question.text + "\n" + "\n".join(triple.text for triple in self.triples)
        from_object = triple.object in known and (triple.subject not in known or rng.random() < 0.5)
        if not from_object:
            return triple.subject, triple.relation
        inverse = next((t for t in self.golds[index].values() if t.subject == triple.object), None)
        return triple.object, inverse.relation if inverse else triple.relation

    def _held(self) -> list[Triple]:
        if self.protocol in STORING:
            return [fact.triple for fact in self.state.store.facts]
        if self.protocol == REMEMBERING:
            return memory_triples(memory_of(self.state))
        seen = [step.observation.passages for step in self.state.steps if step.observation]
        stated = (triple for passages in seen for gold in self.golds for triple in self.stated(gold, passages))
        return list(dict.fromkeys(stated))


def _wordings(question: Question, index: int) -> dict[tuple[str, ...], Triple]:
    """Every wording of one gold triple, by key; the canonical one first."""
    variants = question.evidence_variants[index] if index < len(question.evidence_variants) else ()
    return {fact_key(triple): triple for triple in (question.evidences[index], *variants)}
