"""From facts to pages: every fact is one sentence, every page one or two short passages.

A page states all facts of its subject, some facts in which it is the object (in a wording of their own), and now and
then a negated sentence. Sentences name their entity; there are no pronouns to resolve.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

from factagent.data.world.generate import Entity, Fact, World, random_of
from factagent.data.world.relations import RELATIONS
from factagent.types import Passage, Triple

SENTENCES = 4
"""Most sentences of a passage. A page has at most two passages; only settings with several distractors per page bring
more than eight facts of its own, and then both passages grow."""


@dataclass(frozen=True, slots=True)
class Page:
    """A passage with the statements it makes, sentence by sentence (negated ones included)."""

    passage: Passage
    triples: tuple[Triple, ...]


def write_pages(world: World) -> list[Page]:
    """The passages of every entity, in the order of the entities; ids are `world-000000` and so on."""
    own: dict[str, list[Fact]] = defaultdict(list)
    incoming: dict[str, list[Fact]] = defaultdict(list)
    for fact in world.facts:
        own[fact.subject].append(fact)
        incoming[fact.object].append(fact)
    pages: list[Page] = []
    for entity in world.entities.values():
        rng = random_of(world.config, "page", entity.id)
        triples = _statements(world, entity, own[entity.id], incoming[entity.id], rng)
        for part in _parts(triples):
            passage = Passage(f"world-{len(pages):06d}", entity.title, " ".join(f"{triple.text}." for triple in part))
            pages.append(Page(passage, part))
    return pages


def _statements(
    world: World, entity: Entity, own: list[Fact], incoming: list[Fact], rng: random.Random
) -> tuple[Triple, ...]:
    """What the page of an entity says, shuffled; its own facts always, the rest while there is room."""
    # What holds both ways and is asked for (spouses) belongs to both pages.
    stated = own + [fact for fact in incoming if _both_ways(fact)]
    mirrored = [fact for fact in incoming if not _both_ways(fact) and rng.random() < world.config.mirrored]
    room = max(0, 2 * SENTENCES - len(stated))
    chosen = stated + rng.sample(mirrored, min(len(mirrored), room))
    triples = [_worded(world, fact, entity, rng) for fact in chosen]
    denied = _denial(world, own, rng) if rng.random() < world.config.negated else None
    if denied is not None and len(triples) < 2 * SENTENCES:
        triples.append(denied)
    rng.shuffle(triples)
    return tuple(triples)


def _both_ways(fact: Fact) -> bool:
    return RELATIONS[fact.relation].symmetric and not RELATIONS[fact.relation].distractor


def _worded(world: World, fact: Fact, entity: Entity, rng: random.Random) -> Triple:
    """The fact as one sentence states it. A symmetric fact starts from the page's own entity."""
    relation = RELATIONS[fact.relation]
    canonical = rng.random() < world.config.canonical_share
    wording = relation.canonical if canonical else rng.choice(relation.wordings)
    subject, object_ = fact.subject, fact.object
    if relation.symmetric and object_ == entity.id:
        subject, object_ = object_, subject
    return wording.triple(world.name(subject), world.name(object_))


def _denial(world: World, own: list[Fact], rng: random.Random) -> Triple | None:
    """A true negated statement: one of the page's relations with an object that it does not have."""
    deniable = [fact for fact in own if RELATIONS[fact.relation].negation]
    if not deniable:
        return None
    fact = rng.choice(deniable)
    # By name, so that a denial about a namesake never contradicts a fact on paper.
    true = {world.name(f.object) for f in own if f.relation == fact.relation} | {world.name(fact.subject)}
    others = sorted({world.name(f.object) for f in world.facts if f.relation == fact.relation} - true)
    return Triple(world.name(fact.subject), RELATIONS[fact.relation].negation, rng.choice(others))


def _parts(triples: tuple[Triple, ...]) -> list[tuple[Triple, ...]]:
    """One passage for up to four statements, otherwise two that differ by one statement at most."""
    if len(triples) <= SENTENCES:
        return [triples]
    half = (len(triples) + 1) // 2
    return [triples[:half], triples[half:]]
