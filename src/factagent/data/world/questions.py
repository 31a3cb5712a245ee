"""Drawing questions: one function a type, each returns a draft or None where the draw does not work out.

Chains can be followed by looking at the last observation alone. The other types need facts from several observations,
and are made so that a guess seldom pays: comparisons and selections offer three names or more, bridge comparisons are
mostly open ("who directed the oldest of ..."), shared attributes always.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from factagent.data.world.config import QuestionType
from factagent.data.world.drafts import Draft, Evidence, Reader, evidence_of, listed, nested
from factagent.data.world.relations import RELATIONS
from factagent.data.world.schema import LITERALS
from factagent.data.world.solver import Program
from factagent.data.world.templates import BRIDGES, CASTS, MEMBERS, SAME, SCALES, Scale

STARTS = (
    "film", "film", "book", "person", "company", "band", "album", "team", "museum", "university", "city", "country",
    "award", "river",
)  # fmt: skip
"""Kinds that a chain starts from; films twice, because they have the most relations."""


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
            options = [step for step in options if step[1] or RELATIONS[step[0]].object not in LITERALS]
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
    kind = rng.choice(STARTS)
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
    if len(ranked) < count or any(high - low < gap for low, high in pairwise(ranked)):
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
    drawn = reader.sample(rng, kind, 3 * reader.config.candidates)
    wrong = [name for name in drawn if name not in (like, start) and reader.follow(name, relation) not in (None, value)]
    wrong = wrong[: reader.config.candidates - 1]
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
        "both",
        ["follow", ["names", [a]], relation, False],
        ["follow", ["names", [value]], attribute, True],
    ]
    evidences = (Evidence(a, relation, who), Evidence(who, attribute, value))
    return Draft(text, who, "shared", evidences, program, (a, value))


DRAWERS: dict[QuestionType, Callable[[Reader, int, random.Random], Draft | None]] = {
    "chain": chain,
    "comparison": comparison,
    "bridge_comparison": bridge_comparison,
    "selection": selection,
    "shared": shared,
}
"""The function that draws each type; all take (reader, hops, random generator)."""
