from __future__ import annotations

import string
from itertools import chain

import pytest

from factagent.data.world import names
from factagent.data.world.relations import RELATION_OF_PHRASE, RELATIONS
from factagent.data.world.schema import LITERALS
from factagent.data.world.templates import BRIDGES, CASTS, MEMBERS, SAME, SCALES
from factagent.types import Triple

ASKED = [relation for relation in RELATIONS.values() if not relation.distractor]


def test_a_wording_puts_the_triple_the_way_its_sentence_says() -> None:
    variants = RELATIONS["directed_by"].variants("Silent Bay", "Alden Moor")
    assert variants[:3] == (
        Triple("Silent Bay", "was directed by", "Alden Moor"),
        Triple("Alden Moor", "directed", "Silent Bay"),
        Triple("Alden Moor", "is the director of", "Silent Bay"),
    )


def test_a_symmetric_relation_reads_both_ways() -> None:
    variants = RELATIONS["spouse"].variants("Ann", "Bob")
    assert variants[:2] == (Triple("Ann", "was married to", "Bob"), Triple("Bob", "was married to", "Ann"))


def test_at_least_22_relations_are_asked_and_some_are_not() -> None:
    assert len(ASKED) >= 22
    assert len(RELATIONS) - len(ASKED) >= 5


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=lambda relation: relation.name)
def test_wordings(relation) -> None:
    assert len(relation.wordings) >= 3
    assert not relation.canonical.inverse
    if relation in ASKED and not relation.symmetric:
        assert {wording.inverse for wording in relation.wordings} == {True, False}
    assert relation.negation not in RELATION_OF_PHRASE


def test_phrases_are_unique_over_the_schema() -> None:
    assert len(RELATION_OF_PHRASE) == sum(len(relation.wordings) for relation in RELATIONS.values())
    negations = [relation.negation for relation in RELATIONS.values() if relation.negation]
    assert len(set(negations)) == len(negations) >= 20


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=lambda relation: relation.name)
def test_templates_ask_with_one_slot(relation) -> None:
    for text in relation.ask + relation.ask_in:
        assert text.endswith("?")
    for text in relation.ask + relation.ask_in + relation.noun + relation.noun_in:
        assert [field for _, field, _, _ in string.Formatter().parse(text) if field] == ["x"]
    if relation.ask:
        assert relation.noun
    assert bool(relation.ask_in) == bool(relation.noun_in)


def test_the_tables_of_questions_name_relations_that_fit_their_kinds() -> None:
    for scale in SCALES:
        assert scale.kind in RELATIONS[scale.relation].subjects
        assert RELATIONS[scale.relation].object in ("year", "number")
    for bridge in BRIDGES:
        assert bridge.kind in RELATIONS[bridge.link].subjects
        assert RELATIONS[bridge.link].object in RELATIONS[bridge.value].subjects
    for kind, relation in SAME:
        assert kind in RELATIONS[relation].subjects
    for cast, (kind, *_) in CASTS.items():
        assert RELATIONS[cast].many
        assert kind in RELATIONS[cast].subjects
    for cast, attribute in MEMBERS:
        assert RELATIONS[cast].object in RELATIONS[attribute].subjects


def test_word_lists_hold_no_word_twice_and_share_none() -> None:
    lists = [
        names.FIRST_NAMES,
        names.LAST_NAMES,
        names.CITIES,
        names.COUNTRIES,
        names.RIVERS,
        names.COMPANY_WORDS,
        names.ADJECTIVES,
        names.NOUNS,
        names.PLURALS,
        names.YEARS,
        names.POPULATIONS,
        names.LENGTHS,
    ]
    words = list(chain(*lists))
    assert len(words) == len(set(words))
    assert (len(names.FIRST_NAMES), len(names.LAST_NAMES), len(names.CITIES)) == (60, 160, 150)
    assert (len(names.COUNTRIES), len(names.ADJECTIVES), len(names.NOUNS)) == (30, 80, 80)


def test_literals_have_no_relations_of_their_own() -> None:
    assert all(kind not in relation.subjects for relation in RELATIONS.values() for kind in LITERALS)
