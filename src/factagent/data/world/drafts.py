"""What all questions share: the reader's view of the world, evidences, and the check that a draft is sound."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from factagent.data.world.generate import World
from factagent.data.world.relations import RELATIONS
from factagent.data.world.schema import LITERALS
from factagent.data.world.solver import FactTable, Program, solve, value_at
from factagent.types import Question, Triple


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact that the answer needs, by names."""

    subject: str
    relation: str
    object: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it has an id. `named` are the names that its text gives away."""

    text: str
    answer: str
    type: str
    evidences: tuple[Evidence, ...]
    program: Program
    named: tuple[str, ...]
    offered: bool = False
    """True where the answer is one of `named` (a choice); otherwise the text must not contain it."""

    @property
    def key(self) -> frozenset[Evidence]:
        """Two drafts with the same evidence set count as the same question."""
        return frozenset(self.evidences)

    def question(self, id_: str, titles: dict[str, str]) -> Question:
        """The finished question; `titles` leads from names to page titles."""
        supporting = dict.fromkeys(titles[evidence.subject] for evidence in self.evidences)
        variants = tuple(RELATIONS[e.relation].variants(e.subject, e.object) for e in self.evidences)
        gold = tuple(RELATIONS[e.relation].canonical.triple(e.subject, e.object) for e in self.evidences)
        return Question(
            id_, self.text, (self.answer,), self.type, len(self.evidences), tuple(supporting), gold, variants
        )


class Reader:
    """What a perfect reader of the corpus knows, with random access for drawing questions.

    Names that two entities bear never occur in a question, its evidences or its answer: they stay in the passages, as
    distractors.
    """

    def __init__(self, world: World, triples: Sequence[Triple]) -> None:
        self.config = world.config
        self.table = FactTable(triples)
        self.ambiguous = world.ambiguous_names()
        self.kind_of = {e.name: e.kind for e in world.entities.values() if e.name not in self.ambiguous}
        self.titles = {e.name: e.title for e in world.entities.values() if e.name not in self.ambiguous}
        self.of_kind: dict[str, list[str]] = defaultdict(list)
        for name, kind in self.kind_of.items():
            self.of_kind[kind].append(name)
        self._steps = self._steps_by_kind()

    def steps(self, kind: str) -> list[tuple[str, bool]]:
        """The (relation, inverse) that a chain may take from an entity of this kind."""
        return self._steps.get(kind, [])

    def follow(self, name: str, relation: str, inverse: bool = False) -> str | None:
        """The single answer of a step, or None where it is missing, ambiguous or double."""
        if inverse:
            found = self.table.subjects(name, relation)
            target = found[0] if len(found) == 1 else None
        else:
            target = self.table.only(name, relation)
        return None if target in self.ambiguous else target

    def value(self, name: str, *path: str) -> int | None:
        """The number at the end of a path, or None."""
        found = value_at(self.table, name, path)
        return int(found) if found is not None else None

    def sample(self, rng: random.Random, kind: str, count: int) -> list[str]:
        """Different unambiguous names of a kind."""
        return rng.sample(self.of_kind[kind], count)

    def sound(self, draft: Draft) -> bool:
        """True where the program has exactly the stated answer, no name is shared, and the text gives nothing away."""
        names = {name for e in draft.evidences for name in (e.subject, e.object)} | {draft.answer, *draft.named}
        if names & self.ambiguous or len(draft.key) < len(draft.evidences):
            return False
        if solve(draft.program, self.table) != {draft.answer}:
            return False
        if draft.offered:
            return draft.answer in draft.named
        given = set(draft.text.rstrip("?").replace(",", "").split()) - {"The", "of", "and"}
        return given.isdisjoint(draft.answer.split())

    @staticmethod
    def _steps_by_kind() -> dict[str, list[tuple[str, bool]]]:
        steps: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        for relation in RELATIONS.values():
            for kind in relation.subjects if relation.ask else ():
                steps[kind].append((relation.name, False))
            if relation.ask_in and relation.object not in LITERALS:
                steps[relation.object].append((relation.name, True))
        return dict(steps)


def listed(names: Sequence[str], word: str) -> str:
    """`A, B or C`."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def nested(steps: Sequence[tuple[str, bool]], inner: str, rng: random.Random) -> str:
    """The question that follows the steps from the noun phrase `inner`: noun phrases inside, a question outside."""
    for relation, inverse in steps[:-1]:
        phrases = RELATIONS[relation].noun_in if inverse else RELATIONS[relation].noun
        inner = rng.choice(phrases).format(x=inner)
    relation, inverse = steps[-1]
    return rng.choice(RELATIONS[relation].ask_in if inverse else RELATIONS[relation].ask).format(x=inner)


def evidence_of(name: str, relation: str, inverse: bool, target: str) -> Evidence:
    """The fact behind one step."""
    return Evidence(target, relation, name) if inverse else Evidence(name, relation, target)
