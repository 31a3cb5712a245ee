"""The relations of the world: between what they hold, how passages word them, how questions ask for them.

A wording is a relation phrase and an orientation; the sentence is always `first phrase second.`. The wording
`>was directed by` gives "Silent Bay was directed by Alden Moor." and the triple (Silent Bay, was directed by, Alden
Moor); `<directed` gives "Alden Moor directed Silent Bay." and (Alden Moor, directed, Silent Bay). So what a sentence
states can be read off its words, and `relations.RELATION_OF_PHRASE` leads from any wording back to the relation. The
first wording is the canonical one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from factagent.types import Triple

PERSON = "person"
YEAR = "year"
NUMBER = "number"
FIELD = "field"
LITERALS = (YEAR, NUMBER, FIELD)
"""Kinds of value that have no page of their own."""


class Wording(NamedTuple):
    """A relation phrase; `inverse` where the fact's object stands first."""

    phrase: str
    inverse: bool

    def triple(self, subject: str, object_: str) -> Triple:
        """The triple that a sentence in this wording states about a fact (subject, relation, object)."""
        first, second = (object_, subject) if self.inverse else (subject, object_)
        return Triple(first, self.phrase, second)


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation with its wordings.

    `ask` are questions for the object and `noun` are noun phrases for it, both with `{x}` for the subject; `ask_in` and
    `noun_in` go the other way. A relation without `ask` is a distractor: passages state it, no question asks for it.
    """

    name: str
    subjects: tuple[str, ...]
    object: str
    wordings: tuple[Wording, ...]
    negation: str = ""
    """The negated phrase (subject first), or empty where passages never deny this relation."""
    ask: tuple[str, ...] = ()
    noun: tuple[str, ...] = ()
    ask_in: tuple[str, ...] = ()
    noun_in: tuple[str, ...] = ()
    symmetric: bool = False
    many: bool = False
    """True where a subject has several objects."""

    @property
    def canonical(self) -> Wording:
        """The wording of the gold triples."""
        return self.wordings[0]

    @property
    def distractor(self) -> bool:
        """True where no question asks for this relation."""
        return not self.ask and not self.many

    def variants(self, subject: str, object_: str) -> tuple[Triple, ...]:
        """The fact in every wording, canonical first."""
        pairs = [(subject, object_), (object_, subject)] if self.symmetric else [(subject, object_)]
        return tuple(wording.triple(*pair) for wording in self.wordings for pair in pairs)


def relation(
    name: str,
    subjects: str,
    object_: str,
    wordings: str,
    ask: str = "",
    noun: str = "",
    *,
    negation: str = "",
    ask_in: str = "",
    noun_in: str = "",
    symmetric: bool = False,
    many: bool = False,
) -> Relation:
    """A relation from compact text: alternatives are separated by `;`, an inverse wording starts with `<`."""

    def split(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(";") if part.strip())

    return Relation(
        name,
        tuple(subjects.split()),
        object_,
        tuple(Wording(text[1:], text[0] == "<") for text in split(wordings)),
        negation,
        split(ask),
        split(noun),
        split(ask_in),
        split(noun_in),
        symmetric,
        many,
    )
