"""Drawing questions: one function a type, each returns a draft or None where the draw does not work out.

Chains can be followed by looking at the last observation alone. The other types need facts from several observations,
and are made so that a guess seldom pays: comparisons and selections offer three names or more, bridge comparisons are
mostly open ("who directed the oldest of ..."), shared attributes always.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from factagent.data.world.config import QuestionType
from factagent.data.world.drafts import Draft, Evidence, Reader, evidence_of, listed, nested
from factagent.data.world.schema import LITERALS, RELATIONS
from factagent.data.world.solver import Program


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


SCALES = (
    _scale(
        "film", "released_in",
        "Which film was released first, {any}?; Which film came out first, {any}? | the oldest of the films {all}; the film that came out first, {any},",
        "Which film was released last, {any}?; Which film came out last, {any}? | the newest of the films {all}; the film that came out last, {any},",
    ),
    _scale(
        "book", "published_in",
        "Which book was published first, {any}?; Which book appeared first, {any}? | the oldest of the books {all}; the book that appeared first, {any},",
        "Which book was published last, {any}?; Which book appeared last, {any}? | the newest of the books {all}; the book that appeared last, {any},",
    ),
    _scale(
        "album", "released_in",
        "Which album was released first, {any}?; Which album came out first, {any}? | the oldest of the albums {all}",
        "Which album was released last, {any}?; Which album came out last, {any}? | the newest of the albums {all}",
    ),
    _scale(
        "person", "born_year",
        "Who was born first, {any}?; Who is the oldest, {any}? | the oldest of {all}; the one who was born first, {any},",
        "Who was born last, {any}?; Who is the youngest, {any}? | the youngest of {all}; the one who was born last, {any},",
    ),
    _scale(
        "company", "founded_year",
        "Which company was founded first, {any}?; Which company is the oldest, {any}? | the oldest of the companies {all}; the company founded first, {any},",
        "Which company was founded last, {any}?; Which company is the newest, {any}? | the newest of the companies {all}; the company founded last, {any},",
    ),
    _scale(
        "team", "founded_year",
        "Which team was founded first, {any}?; Which team is the oldest, {any}? | the oldest of the teams {all}",
        "Which team was founded last, {any}?; Which team is the newest, {any}? | the newest of the teams {all}",
    ),
    _scale(
        "city", "population",
        "Which city has the smallest population, {any}?; Which city is the smallest, {any}? | the smallest of the cities {all}",
        "Which city has the largest population, {any}?; Which city is the largest, {any}? | the largest of the cities {all}; the city with the most people, {any},",
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
           ("Which film has the director who was born last, {any}?", "Which film has the youngest director, {any}?")),
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
    ("film", "directed_by"): ("Which of {all} has the same director as {x}?", "Of the films {all}, which shares its director with {x}?"),
    ("film", "released_in"): ("Which of {all} came out in the same year as {x}?", "Of the films {all}, which was released in the same year as {x}?"),
    ("film", "produced_by"): ("Which of {all} has the same producer as {x}?",),
    ("book", "published_in"): ("Which of {all} was published in the same year as {x}?",),
    ("book", "written_by"): ("Which of {all} has the same author as {x}?", "Of the books {all}, which shares its author with {x}?"),
    ("book", "published_by"): ("Which of {all} has the same publisher as {x}?",),
    ("person", "born_in"): ("Which of {all} was born in the same city as {x}?", "Of {all}, who shares a birthplace with {x}?"),
    ("person", "born_year"): ("Which of {all} was born in the same year as {x}?", "Of {all}, who shares a birth year with {x}?"),
    ("person", "educated_at"): ("Which of {all} studied at the same school as {x}?", "Of {all}, who shares a school with {x}?"),
    ("company", "headquartered_in"): ("Which of {all} has its head office in the same city as {x}?",),
    ("company", "founded_year"): ("Which of {all} was founded in the same year as {x}?",),
    ("band", "formed_in"): ("Which of {all} was formed in the same city as {x}?",),
    ("band", "signed_to"): ("Which of {all} has the same label as {x}?",),
    ("city", "country"): ("Which of {all} lies in the same country as {x}?", "Of the cities {all}, which shares its country with {x}?"),
    ("city", "river"): ("Which of {all} lies on the same river as {x}?",),
}
"""Selections: which of the names agrees with `{x}` in this attribute."""

CASTS = {
    "starring": ("film", "Which actor starred in both {a} and {b}?; Who had a role in both {a} and {b}?", "the actor who starred in both {a} and {b}"),
    "member": ("band", "Who played in both {a} and {b}?; Who was a member of both {a} and {b}?", "the musician who played in both {a} and {b}"),
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


def _choice(text: str, rng: random.Random) -> str:
    return rng.choice([part.strip() for part in text.split(";")])


def _walk(
    reader: Reader, start: str, hops: int, rng: random.Random
) -> tuple[list[tuple[str, bool]], list[Evidence], str] | None:
    """A random walk of single-answer steps that meets no name twice: its steps, evidences and end."""
    steps: list[tuple[str, bool]] = []
    evidences: list[Evidence] = []
    here, met = start, {start}
    for index in range(hops):
        options = list(reader.steps(reader.kind_of[here]))
        if index < hops - 1:  # a year ends every walk
            options = [(name, inverse) for name, inverse in options if inverse or RELATIONS[name].object not in LITERALS]
        if not options:
            return None
        relation, inverse = rng.choice(options)
        target = reader.follow(here, relation, inverse)
        if target is None or target in met:
            return None
        steps.append((relation, inverse))
        evidences.append(evidence_of(here, relation, inverse, target))
        met.add(target)
        here = target
    return steps, evidences, here


def _program(inner: Program, steps: list[tuple[str, bool]]) -> Program:
    for relation, inverse in steps:
        inner = ["follow", inner, relation, inverse]
    return inner


def chain(reader: Reader, hops: int, rng: random.Random) -> Draft | None:
    """`hops` steps from one name, each with a single answer."""
    kind = rng.choice(("film", "film", "book", "person", "company", "band", "album", "team", "museum", "university", "city", "country", "award", "river"))
    start = rng.choice(reader.of_kind[kind])
    walk = _walk(reader, start, hops, rng)
    if walk is None:
        return None
    steps, evidences, end = walk
    return Draft(
        nested(steps, start, rng), end, "chain", tuple(evidences), _program(["names", [start]], steps), (start,)
    )


def _contest(reader: Reader, scale: Scale, count: int, end: str, rng: random.Random) -> tuple[list[str], str] | None:
    """Names whose values lie at least the gap apart, and the one at the asked end of the scale."""
    names = reader.sample(rng, scale.kind, count)
    values = [reader.value(name, scale.relation) for name in names]
    ranked = sorted(value for value in values if value is not None)
    gap = 20_000 if scale.relation == "population" else reader.config.year_gap
    if len(ranked) < count or any(high - low < gap for low, high in zip(ranked, ranked[1:], strict=False)):
        return None
    return names, names[values.index(ranked[0] if end == "first" else ranked[-1])]


def _facts(reader: Reader, names: list[str], relation: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(name, relation, str(reader.value(name, relation))) for name in names)


def comparison(reader: Reader, hops: int, rng: random.Random) -> Draft | None:
    """Which of `hops` names has the smallest or largest value."""
    scale, end = rng.choice(SCALES), rng.choice(("first", "last"))
    contest = _contest(reader, scale, hops, end, rng)
    if contest is None:
        return None
    names, winner = contest
    asks, _ = scale.first if end == "first" else scale.last
    text = rng.choice(asks).format(any=listed(names, "or"), all=listed(names, "and"))
    program: Program = ["extreme", end, names, [scale.relation]]
    return Draft(text, winner, "comparison", _facts(reader, names, scale.relation), program, tuple(names), True)


def bridge_comparison(reader: Reader, hops: int, rng: random.Random) -> Draft | None:
    """A comparison on the way to an open answer; seldom a closed one over a hidden entity."""
    if hops == 4 and rng.random() < reader.config.closed_share:
        return _closed_bridge(reader, rng)
    count = 2 if hops == 3 else rng.choice((2, 3, 3))
    scale, end = rng.choice(SCALES), rng.choice(("first", "last"))
    contest = _contest(reader, scale, count, end, rng)
    walk = None if contest is None else _walk(reader, contest[1], hops - count, rng)
    if contest is None or walk is None:
        return None
    names, _ = contest
    steps, evidences, answer = walk
    if steps[0][0] == scale.relation:
        return None  # the comparison would state the answer
    _, nouns = scale.first if end == "first" else scale.last
    inner = rng.choice(nouns).format(any=listed(names, "or"), all=listed(names, "and"))
    program = _program(["extreme", end, names, [scale.relation]], steps)
    facts = (*_facts(reader, names, scale.relation), *evidences)
    text = nested(steps, inner, rng).replace(",?", "?")
    return Draft(text, answer, "bridge_comparison", facts, program, tuple(names))


def _closed_bridge(reader: Reader, rng: random.Random) -> Draft | None:
    bridge, end = rng.choice(BRIDGES), rng.choice(("first", "last"))
    names = reader.sample(rng, bridge.kind, 2)
    links = [reader.follow(name, bridge.link) for name in names]
    if None in links or links[0] == links[1]:
        return None
    middle = [str(link) for link in links]
    values = [reader.value(link, bridge.value) for link in middle]
    gap = 20_000 if bridge.value == "population" else reader.config.year_gap
    if values[0] is None or values[1] is None or abs(values[0] - values[1]) < gap:
        return None
    winner = names[0] if (values[0] < values[1]) == (end == "first") else names[1]
    evidences = tuple(
        evidence
        for name, link, value in zip(names, middle, values, strict=True)
        for evidence in (Evidence(name, bridge.link, link), Evidence(link, bridge.value, str(value)))
    )
    text = rng.choice(bridge.first if end == "first" else bridge.last).format(any=listed(names, "or"))
    program: Program = ["extreme", end, names, [bridge.link, bridge.value]]
    return Draft(text, winner, "bridge_comparison", evidences, program, tuple(names), True)


def selection(reader: Reader, hops: int, rng: random.Random) -> Draft | None:
    """Which of several names agrees with another one (given by name, or from 3 hops by a chain) in an attribute."""
    (kind, relation), templates = rng.choice(list(SAME.items()))
    walk = None
    if hops == 2:
        start = like = rng.choice(reader.of_kind[kind])
    else:
        start = rng.choice(reader.of_kind[rng.choice(("film", "book", "company", "album", "person", "city", "team"))])
        walk = _walk(reader, start, hops - 2, rng)
        if walk is None or reader.kind_of.get(walk[2]) != kind:
            return None
        like = walk[2]
    value = reader.follow(like, relation)
    right = [] if value is None else [name for name in reader.table.subjects(value, relation) if name in reader.kind_of]
    right = [name for name in right if reader.kind_of[name] == kind and name not in (like, start)]
    if value is None or not right:
        return None
    answer = rng.choice(right)
    wrong = [name for name in reader.sample(rng, kind, 3 * reader.config.candidates) if name not in (like, start, answer)]
    wrong = [name for name in wrong if reader.follow(name, relation) not in (None, value)][: reader.config.candidates - 1]
    if len(wrong) < reader.config.candidates - 1:
        return None
    names = rng.sample([answer, *wrong], reader.config.candidates)
    steps, before = ([], []) if walk is None else (walk[0], walk[1])
    x = start
    for name, inverse in steps:
        x = rng.choice(RELATIONS[name].noun_in if inverse else RELATIONS[name].noun).format(x=x)
    same: Program = ["follow", ["follow", _program(["names", [start]], steps), relation, False], relation, True]
    text = rng.choice(templates).format(x=x, any=listed(names, "or"), all=listed(names, "and"))
    evidences = (*before, Evidence(like, relation, value), Evidence(answer, relation, value))
    return Draft(text, answer, "selection", evidences, ["both", ["names", names], same], (start, *names), True)


def shared(reader: Reader, hops: int, rng: random.Random) -> Draft | None:
    """Who belongs to two casts, or to one cast and an attribute; further hops lead on from there or to the cast."""
    relation = rng.choice(("starring", "starring", "member"))
    kind, asks, noun = CASTS[relation]
    a = rng.choice(reader.of_kind[kind])
    who = rng.choice(reader.table.objects(a, relation))
    if who in reader.ambiguous:
        return None
    if hops == 2 and rng.random() < 0.4:
        return _cast_and_attribute(reader, relation, a, who, rng)
    others = [name for name in reader.table.subjects(who, relation) if name != a and name in reader.kind_of]
    if not others:
        return None
    b = rng.choice(others)
    both: Program = ["both", ["follow", ["names", [a]], relation, False], ["follow", ["names", [b]], relation, False]]
    evidences = (Evidence(a, relation, who), Evidence(b, relation, who))
    if hops == 2:
        return Draft(_choice(asks, rng).format(a=a, b=b), who, "shared", evidences, both, (a, b))
    walk = _walk(reader, who, hops - 2, rng)
    if walk is None:
        return None
    text = nested(walk[0], noun.format(a=a, b=b), rng)
    return Draft(text, walk[2], "shared", (*evidences, *walk[1]), _program(both, walk[0]), (a, b))


def _cast_and_attribute(reader: Reader, relation: str, a: str, who: str, rng: random.Random) -> Draft | None:
    attribute = rng.choice(("born_in", "educated_at", "born_year"))
    value = reader.follow(who, attribute)
    if value is None:
        return None
    text = _choice(MEMBERS[relation, attribute], rng).format(a=a, v=value)
    program: Program = [
        "both", ["follow", ["names", [a]], relation, False], ["follow", ["names", [value]], attribute, True]
    ]
    return Draft(text, who, "shared", (Evidence(a, relation, who), Evidence(who, attribute, value)), program, (a, value))


DRAWERS: dict[QuestionType, Callable[[Reader, int, random.Random], Draft | None]] = {
    "chain": chain,
    "comparison": comparison,
    "bridge_comparison": bridge_comparison,
    "selection": selection,
    "shared": shared,
}
"""The function that draws each type; all take (reader, hops, random generator)."""
