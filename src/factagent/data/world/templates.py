"""How questions are phrased: the tables of comparisons, bridges, selections and shared attributes.

Alternatives are separated by `;`. `{any}` lists names with "or", `{all}` with "and"; `{x}` is the other name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """A comparable attribute of a kind. `first` and `last` hold (questions, noun phrases) for smallest and largest."""

    kind: str
    relation: str
    first: tuple[tuple[str, ...], tuple[str, ...]]
    last: tuple[tuple[str, ...], tuple[str, ...]]


def _scale(kind: str, relation: str, first: str, last: str) -> Scale:
    """Alternatives by `;`, questions and noun phrases by `|`; `{any}` lists with "or", `{all}` with "and"."""

    def parse(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        asks, nouns = ([part.strip() for part in half.split(";")] for half in text.split("|"))
        return tuple(asks), tuple(nouns)

    return Scale(kind, relation, parse(first), parse(last))


# fmt: off
SCALES = (
    _scale(
        "film", "released_in",
        "Which film was released first, {any}?; "
        "Which film came out first, {any}? | the oldest of the films {all}; the film that came out first, {any},",
        "Which film was released last, {any}?; "
        "Which film came out last, {any}? | the newest of the films {all}; the film that came out last, {any},",
    ),
    _scale(
        "book", "published_in",
        "Which book was published first, {any}?; "
        "Which book appeared first, {any}? | the oldest of the books {all}; the book that appeared first, {any},",
        "Which book was published last, {any}?; "
        "Which book appeared last, {any}? | the newest of the books {all}; the book that appeared last, {any},",
    ),
    _scale(
        "album", "released_in",
        "Which album was released first, {any}?; "
        "Which album came out first, {any}? | the oldest of the albums {all}",
        "Which album was released last, {any}?; Which album came out last, {any}? | the newest of the albums {all}",
    ),
    _scale(
        "person", "born_year",
        "Who was born first, {any}?; Who is the oldest, {any}? | the oldest of {all}; "
        "the one who was born first, {any},",
        "Who was born last, {any}?; Who is the youngest, {any}? | the youngest of {all}; "
        "the one who was born last, {any},",
    ),
    _scale(
        "company", "founded_year",
        "Which company was founded first, {any}?; "
        "Which company is the oldest, {any}? | the oldest of the companies {all}; the company founded first, {any},",
        "Which company was founded last, {any}?; "
        "Which company is the newest, {any}? | the newest of the companies {all}; the company founded last, {any},",
    ),
    _scale(
        "team", "founded_year",
        "Which team was founded first, {any}?; Which team is the oldest, {any}? | the oldest of the teams {all}",
        "Which team was founded last, {any}?; Which team is the newest, {any}? | the newest of the teams {all}",
    ),
    _scale(
        "city", "population",
        "Which city has the smallest population, {any}?; "
        "Which city is the smallest, {any}? | the smallest of the cities {all}",
        "Which city has the largest population, {any}?; "
        "Which city is the largest, {any}? | the largest of the cities {all}; the city with the most people, {any},",
    ),
)


@dataclass(frozen=True, slots=True)
class Bridge:
    """A closed comparison over a hidden entity: `kind` -`link`-> someone or somewhere -`value`-> a number."""

    kind: str
    link: str
    value: str
    first: tuple[str, ...]
    last: tuple[str, ...]


BRIDGES = (
    Bridge("film", "directed_by", "born_year",
           ("Which film has the director who was born first, {any}?", "Which film has the oldest director, {any}?"),
           ("Which film has the director who was born last, {any}?",
           "Which film has the youngest director, {any}?")),
    Bridge("book", "written_by", "born_year",
           ("Which book has the author who was born first, {any}?", "Which book has the oldest author, {any}?"),
           ("Which book has the author who was born last, {any}?", "Which book has the youngest author, {any}?")),
    Bridge("company", "founded_by", "born_year",
           ("Which company has the founder who was born first, {any}?",),
           ("Which company has the founder who was born last, {any}?",)),
    Bridge("team", "based_in", "population",
           ("Which team plays in the smallest city, {any}?",), ("Which team plays in the largest city, {any}?",)),
)

SAME: dict[tuple[str, str], tuple[str, ...]] = {
    ("film", "directed_by"): ("Which of {all} has the same director as {x}?",
    "Of the films {all}, which shares its director with {x}?"),
    ("film", "released_in"): ("Which of {all} came out in the same year as {x}?",
    "Of the films {all}, which was released in the same year as {x}?"),
    ("film", "produced_by"): ("Which of {all} has the same producer as {x}?",),
    ("book", "published_in"): ("Which of {all} was published in the same year as {x}?",),
    ("book", "written_by"): ("Which of {all} has the same author as {x}?",
    "Of the books {all}, which shares its author with {x}?"),
    ("book", "published_by"): ("Which of {all} has the same publisher as {x}?",),
    ("person", "born_in"): ("Which of {all} was born in the same city as {x}?",
    "Of {all}, who shares a birthplace with {x}?"),
    ("person", "born_year"): ("Which of {all} was born in the same year as {x}?",
    "Of {all}, who shares a birth year with {x}?"),
    ("person", "educated_at"): ("Which of {all} studied at the same school as {x}?",
    "Of {all}, who shares a school with {x}?"),
    ("company", "headquartered_in"): ("Which of {all} has its head office in the same city as {x}?",),
    ("company", "founded_year"): ("Which of {all} was founded in the same year as {x}?",),
    ("band", "formed_in"): ("Which of {all} was formed in the same city as {x}?",),
    ("band", "signed_to"): ("Which of {all} has the same label as {x}?",),
    ("city", "country"): ("Which of {all} lies in the same country as {x}?",
    "Of the cities {all}, which shares its country with {x}?"),
    ("city", "river"): ("Which of {all} lies on the same river as {x}?",),
}
"""Selections: which of the names agrees with `{x}` in this attribute."""

CASTS = {
    "starring": ("film", "Which actor starred in both {a} and {b}?; Who had a role in both {a} and {b}?",
    "the actor who starred in both {a} and {b}"),
    "member": ("band", "Who played in both {a} and {b}?; Who was a member of both {a} and {b}?",
    "the musician who played in both {a} and {b}"),
}
"""Relations with several objects: what two of their subjects share."""

MEMBERS = {
    ("starring", "born_in"): "Which actor of {a} was born in {v}?; Who starred in {a} and was born in {v}?",
    ("starring", "educated_at"): "Which actor of {a} studied at {v}?; Who starred in {a} and studied at {v}?",
    ("starring", "born_year"): "Which actor of {a} was born in the year {v}?",
    ("member", "born_in"): "Which member of {a} was born in {v}?; Who played in {a} and was born in {v}?",
    ("member", "educated_at"): "Which member of {a} studied at {v}?",
    ("member", "born_year"): "Which member of {a} was born in the year {v}?",
}
"""One of several objects, told by an attribute of its own."""
# fmt: on
