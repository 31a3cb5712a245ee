"""The two-stage test: numbers, negation, relations, names, verdicts and the vectorised matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from factagent.credit.encoders import ExactEncoder
from factagent.credit.entities import different_name, entity_keys, same_name
from factagent.credit.equivalence import EquivalenceConfig, Verdict, compare, compare_all, equivalence_matrix
from factagent.credit.negation import is_negated, qualifiers
from factagent.credit.numbers import number_signature
from factagent.credit.relations import match_relations, normalise_relation
from factagent.errors import DataError
from factagent.types import Triple


class ConstantEncoder:
    """Every text gets the same vector, so that only the rules can refuse."""

    name = "constant"
    similarity_threshold = 0.95
    relation_threshold = 0.95

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.tile(np.array([1.0, 0.0], dtype=np.float32), (len(texts), 1))


class AngleEncoder(ConstantEncoder):
    """Vectors in the plane, by a table of cosines to the first axis."""

    def __init__(self, cosines: dict[str, float]) -> None:
        self.cosines = cosines

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        cosines = np.array([self.cosines.get(text, 0.0) for text in texts])
        return np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)


PAPER, STRICT = EquivalenceConfig(), EquivalenceConfig(orientation="strict")


def judge(a: tuple[str, str, str], b: tuple[str, str, str], config: EquivalenceConfig = STRICT) -> Verdict:
    return compare(Triple(*a), Triple(*b), ConstantEncoder(), config)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,000", ("1000",)),
        ("1000", ("1000",)),
        ("12.50", ("12.5",)),
        ("3.5 million", ("3500000",)),
        ("$5m", ("5000000",)),
        ("21st", ("21",)),
        ("twenty-first", ("21",)),
        ("three hundred and five", ("305",)),
        ("nineteen eighty-four", ("1984",)),
        ("fifteen hundred", ("1500",)),
        ("Henry VIII", ("8",)),
        ("Henry the Eighth", ("8",)),
        ("World War II", ("2",)),
        ("-5", ("-5",)),
        ("one of the founders", ()),
        ("I met them", ()),
        ("she may win", ()),
    ],
)
def test_numbers_of_a_text(text: str, values: tuple[str, ...]) -> None:
    assert number_signature(text).values == values


@pytest.mark.parametrize(
    "text", ["12 March 1990", "March 12, 1990", "1990-03-12", "Mar. 12th, 1990", "12th of March 1990"]
)
def test_a_date_is_its_parts(text: str) -> None:
    assert number_signature(text).values == ("12", "1990", "month:3")


def test_day_and_month_do_not_exchange() -> None:
    assert number_signature("12 March 1990").values != number_signature("3 December 1990").values


def test_units_and_bounds() -> None:
    assert number_signature("5 km").units == number_signature("5 kilometres").units == ("km",)
    assert number_signature("5 miles").units == ("mi",)
    assert number_signature("over 50").quantities == (">",)
    assert number_signature("fewer than 50").quantities == ("<",)


@pytest.mark.parametrize(
    "relation",
    [
        "is not in",
        "isn't in",
        "never won",
        "did not win",
        "cannot host",
        "can't host",
        "won’t join",
        "without",
        "unrelated to",
        "failed to win",
        "no longer serves",
        "neither owns nor leads",
        "non-member of",
    ],
)
def test_negated_relations(relation: str) -> None:
    assert is_negated(relation)


@pytest.mark.parametrize(
    "relation",
    [
        "is a notable member of",
        "noted for",
        "united with",
        "knots",
        "not only founded",
        "discovered",
        "invented",
        "inherited",
        "declined",
        "north of",
        "norm of",
    ],
)
def test_affirmed_relations(relation: str) -> None:
    if relation == "declined":
        assert not is_negated("declined by 5%")
    assert not is_negated(relation)


def test_qualifiers_are_words_and_prefixes() -> None:
    assert qualifiers("vice president of") == {"vice"}
    assert qualifiers("co-founded") == qualifiers("cofounder of") == {"co"}
    assert qualifiers("mother-in-law of") == {"in-law"}
    assert qualifiers("stepfather of") == {"step"}
    assert qualifiers("coordinates") == frozenset()
    assert qualifiers("Great Britain", in_entity=True) == frozenset()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("was founded by", "is founded by"),
        ("marries", "married"),
        ("creating", "created"),
        ("wrote", "has written"),
        ("place_of_birth", "place of birth"),
        ("placeOfBirth", "place of birth"),
    ],
)
def test_inflections_share_a_normal_form(a: str, b: str) -> None:
    assert normalise_relation(a) == normalise_relation(b)


@pytest.mark.parametrize(
    ("a", "b", "original", "swapped"),
    [
        ("directed", "was directed by", False, True),
        ("directed", "is the director of", True, False),
        ("director", "was directed by", True, False),
        ("glazed", "was glazed by", False, True),  # not in the lexicon
        ("glazer of", "glazed", True, False),
        ("born in", "is the birthplace of", False, True),
        ("married", "is married to", True, True),
        ("parent company", "parent company of", False, True),
        ("born in", "died in", False, False),
        ("president of", "vice president of", False, False),
        ("founded", "co-founded", False, False),
        ("transferred to", "transferred from", False, False),
    ],
)
def test_strict_directions(a: str, b: str, original: bool, swapped: bool) -> None:
    for match in (match_relations(a, b, "strict"), match_relations(b, a, "strict")):
        assert (match.original, match.swapped) == (original, swapped)


def test_paper_orientation_swaps_freely() -> None:
    assert match_relations("defeated", "defeated", "paper").swapped
    assert not match_relations("defeated", "defeated", "strict").swapped


def test_reversed_fact_merges_in_paper_only() -> None:
    a, b = ("Anna", "defeated", "Peter"), ("Peter", "defeated", "Anna")
    assert judge(a, b, PAPER).equivalent
    refused = judge(a, b, STRICT)
    assert (refused.equivalent, refused.configuration, refused.reason) == (False, None, "orientation")


def test_voice_merges_swapped() -> None:
    verdict = judge(("Anna", "founded", "Acme"), ("Acme", "was founded by", "Anna"))
    assert (verdict.equivalent, verdict.configuration, verdict.reason) == (True, "swapped", "relation-surface")


def test_voice_without_exchange_is_another_fact() -> None:
    assert not judge(("Acme", "acquired", "Beta"), ("Acme", "was acquired by", "Beta")).equivalent


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (("A", "is in", "France"), ("A", "is not in", "France"), "negation"),
        (("A", "has population", "500,000"), ("A", "has population", "501,000"), "numbers"),
        (("A", "is", "5 km long"), ("A", "is", "5 miles long"), "quantities"),
        (("A", "has", "over 50 men"), ("A", "has", "under 50 men"), "quantities"),
        (("A", "is", "president of X"), ("A", "is", "vice president of X"), "qualifiers"),
        (("A", "was born in", "X"), ("A", "died in", "X"), "relation"),
    ],
)
@pytest.mark.parametrize("config", [PAPER, STRICT], ids=["paper", "strict"])
def test_rules_refuse_at_any_similarity(
    a: tuple[str, str, str], b: tuple[str, str, str], reason: str, config: EquivalenceConfig
) -> None:
    verdict = judge(a, b, config)
    assert (verdict.equivalent, verdict.similarity, verdict.configuration, verdict.reason) == (False, 1.0, None, reason)


def test_threshold_is_inclusive() -> None:
    a, b = Triple("x", "likes", "y"), Triple("x", "likes", "z")
    encoder = AngleEncoder({a.text: 1.0, b.text: 0.95, "likes": 1.0, "z likes x": -1.0})
    assert compare(a, b, encoder, PAPER).equivalent
    encoder.cosines[b.text] = 0.9499
    assert compare(a, b, encoder, PAPER).reason == "similarity"
    assert compare(a, b, encoder, EquivalenceConfig(similarity_threshold=0.9)).equivalent


def test_names_are_compared_only_with_a_threshold() -> None:
    a, b = Triple("x", "likes", "Hill"), Triple("x", "likes", "Dale")
    config = EquivalenceConfig(entity_threshold=0.8)
    encoder = AngleEncoder({a.text: 1.0, b.text: 1.0, "likes": 1.0, "Hill": 1.0, "Dale": 0.7})
    assert compare(a, b, encoder, config).reason == "entities"
    encoder.cosines["Dale"] = 0.9
    assert compare(a, b, encoder, config).equivalent
    assert compare(a, b, encoder, PAPER).equivalent


def test_entity_keys() -> None:
    def same(a: str, b: str) -> bool:
        return same_name(entity_keys(a), entity_keys(b))

    assert same("Moor, Alden", "Alden Moor")
    assert same("A. Moor", "Alden Moor")
    assert same("MIT", "Massachusetts Institute of Technology")
    assert same("São Miguel", "Sao Miguel")
    assert same("300 ha", "300 hectares")
    assert same("Tolkien", "Tollkien")
    assert not same("Silent Bay", "Silent Day")
    assert not same("Georgia (country)", "Georgia (U.S. state)")
    assert different_name(entity_keys("East Tarvik"), entity_keys("West Tarvik"))


def test_exact_equivalence() -> None:
    exact, strict = EquivalenceConfig(equivalence="exact"), EquivalenceConfig(equivalence="exact", orientation="strict")
    encoder = ExactEncoder()
    a, same, back = (
        Triple("Anna", "defeated", "Peter"),
        Triple("ANNA", "Defeated", "Peter."),
        Triple("Peter", "defeated", "Anna"),
    )
    assert compare(a, same, encoder, exact) == Verdict(True, 1.0, "original", "exact")
    assert compare(a, back, encoder, exact) == Verdict(True, 1.0, "swapped", "exact")
    assert compare(a, back, encoder, strict) == Verdict(False, 0.0, None, "text")
    assert compare(a, Triple("Anna", "beat", "Peter"), encoder, exact) == Verdict(False, 0.0, None, "text")


def test_compare_all_yields_what_came_before_an_error() -> None:
    pair = (Triple("A", "founded", "B"), Triple("B", "was founded by", "A"))

    def stream() -> object:
        yield pair
        raise DataError("row 2")

    verdicts = compare_all(stream(), ConstantEncoder(), STRICT)  # type: ignore[arg-type]
    assert next(verdicts).equivalent
    with pytest.raises(DataError, match="row 2"):
        next(verdicts)


@pytest.mark.parametrize("config", [PAPER, STRICT, EquivalenceConfig(equivalence="exact")])
def test_matrix_equals_compare(config: EquivalenceConfig) -> None:
    triples = [
        Triple("Anna", "founded", "Acme"),
        Triple("Acme", "was founded by", "Anna"),
        Triple("Acme", "founder", "Anna"),
        Triple("Acme", "founded", "Anna"),
        Triple("Anna", "did not found", "Acme"),
        Triple("Acme", "opened in", "1990"),
        Triple("Acme", "opened in", "1991"),
        Triple("", "", ""),
        Triple("ANNA", "founded", "acme"),
    ]
    for encoder in (ConstantEncoder(), ExactEncoder()):
        expected = [[compare(a, b, encoder, config).equivalent for b in triples] for a in triples]
        assert equivalence_matrix(triples, encoder, config).tolist() == expected
