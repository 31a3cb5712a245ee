"""What the corpus says, as a table of names, and the small programs that a question stands for.

The table is built from the passages' triples alone (as a perfect reader would know the world), and every question is
kept only where its program has exactly one answer on it. Programs are written beside the questions, as nested lists,
so that anybody can check an answer again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from factagent.data.world.relations import RELATION_OF_PHRASE
from factagent.types import Triple

Program = list[Any]
"""`["names", [..]]` · `["follow", program, relation, inverse]` · `["both", program, program]` ·
`["extreme", "first"|"last", [names], [relation, ..]]`: the name with the least or greatest value at the path's end."""


class FactTable:
    """All facts by (subject, relation) and (object, relation), by name; negated statements are left out."""

    def __init__(self, triples: Iterable[Triple]) -> None:
        self._objects: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        self._subjects: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for triple in triples:
            if triple.relation not in RELATION_OF_PHRASE:
                continue
            relation, wording = RELATION_OF_PHRASE[triple.relation]
            subject, object_ = (triple.object, triple.subject) if wording.inverse else (triple.subject, triple.object)
            self._add(subject, relation.name, object_)
            if relation.symmetric:
                self._add(object_, relation.name, subject)

    def _add(self, subject: str, relation: str, object_: str) -> None:
        self._objects[subject, relation][object_] = None
        self._subjects[object_, relation][subject] = None

    def objects(self, subject: str, relation: str) -> list[str]:
        """The objects of a subject, in order of appearance."""
        return list(self._objects.get((subject, relation), ()))

    def subjects(self, object_: str, relation: str) -> list[str]:
        """The subjects that have this object."""
        return list(self._subjects.get((object_, relation), ()))

    def only(self, subject: str, relation: str) -> str | None:
        """The single object of a subject, or None where there is none or more than one."""
        objects = self._objects.get((subject, relation), {})
        return next(iter(objects)) if len(objects) == 1 else None

    def pairs(self, relation: str) -> list[tuple[str, str]]:
        """All (subject, object) of a relation."""
        return [(s, o) for (s, name), objects in self._objects.items() if name == relation for o in objects]


def solve(program: Program, table: FactTable) -> set[str]:
    """Every answer of a program. An `extreme` with a missing, double or tied value has none.

    Raises:
        ValueError: the program has an unknown operation.
    """
    match program:
        case ["names", list() as names]:
            return set(names)
        case ["follow", list() as inner, str() as relation, bool() as inverse]:
            step = table.subjects if inverse else table.objects
            return {found for name in solve(inner, table) for found in step(name, relation)}
        case ["both", list() as left, list() as right]:
            return solve(left, table) & solve(right, table)
        case ["extreme", ("first" | "last") as end, list() as names, list() as path]:
            return _extreme(table, names, path, largest=end == "last")
        case _:
            raise ValueError(f"unknown program {program!r}")


def chance_of(program: Program) -> float:
    """The share of blind guesses that are right: 1/n where the question offers n names to choose from, otherwise 0."""
    match program:
        case ["extreme", str(), list() as names, list()]:
            return 1 / len(names)
        case ["both", ["names", list() as names], list()]:
            return 1 / len(names)
        case _:
            return 0.0


def value_at(table: FactTable, name: str, path: Sequence[str]) -> str | None:
    """The value at the end of a path of relations with one object each, or None."""
    found: str | None = name
    for relation in path:
        found = table.only(found, relation) if found is not None else None
    return found


def _extreme(table: FactTable, names: Sequence[str], path: Sequence[str], *, largest: bool) -> set[str]:
    values = {name: value_at(table, name, path) for name in names}
    numbers = {name: int(value) for name, value in values.items() if value is not None}
    if len(numbers) < len(names):
        return set()
    best = max(numbers.values()) if largest else min(numbers.values())
    winners = {name for name, number in numbers.items() if number == best}
    return winners if len(winners) == 1 else set()
