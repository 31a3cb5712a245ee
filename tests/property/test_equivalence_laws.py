"""The laws of credit.md section 8 that concern equivalence and clusters."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from factagent.credit.clustering import cluster_facts
from factagent.credit.equivalence import EquivalenceConfig, compare, equivalence_matrix
from factagent.credit.negation import is_negated
from factagent.credit.numbers import number_signature
from factagent.credit.rules import swapped
from factagent.types import Triple

LAWS = settings(max_examples=1000, deadline=None)


class HashEncoder:
    """Vectors in the plane from a hash of the text, within 30 degrees: many cosines on both sides of the threshold."""

    name = "hash"
    similarity_threshold = 0.95
    relation_threshold = 0.95
    entity_threshold = 0.9

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        angles = np.deg2rad([zlib.crc32(text.encode("utf-8", "replace")) % 300 / 10 for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class OnesEncoder(HashEncoder):
    """The same vector for every text."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), 1), dtype=np.float32)


NAMES = st.sampled_from(
    ["Anna", "anna", "Peter", "Silent Bay", "Silent Night", "1990", "MIT", "North Hill", "South Hill", ""]
)
RELATIONS = st.sampled_from(
    [
        "directed",
        "was directed by",
        "is the director of",
        "married",
        "is not married to",
        "won",
        "won 3 times",
        "vice head of",
        "head of",
        "glazed",
        "glazed by",
        "born in",
        "is the birthplace of",
        "never won",
        "parent company of",
        "parent company",
    ]
)
TRIPLES = st.builds(Triple, NAMES, RELATIONS, NAMES)
ANY_TRIPLES = st.one_of(TRIPLES, st.builds(Triple, st.text(max_size=12), st.text(max_size=12), st.text(max_size=12)))
CONFIGS = st.builds(
    EquivalenceConfig,
    equivalence=st.sampled_from(["semantic", "exact"]),
    orientation=st.sampled_from(["paper", "strict"]),
    entities=st.booleans(),
)


@LAWS
@given(ANY_TRIPLES, ANY_TRIPLES, CONFIGS)
def test_symmetric_and_inversion_invariant(a: Triple, b: Triple, config: EquivalenceConfig) -> None:
    encoder = HashEncoder()
    verdict = compare(a, b, encoder, config)
    assert compare(b, a, encoder, config).equivalent == verdict.equivalent
    assert compare(swapped(a), swapped(b), encoder, config).equivalent == verdict.equivalent


@LAWS
@given(ANY_TRIPLES, CONFIGS)
def test_reflexive(a: Triple, config: EquivalenceConfig) -> None:
    assert compare(a, a, HashEncoder(), config).equivalent


@LAWS
@given(ANY_TRIPLES, CONFIGS)
def test_paper_orientation_merges_a_fact_with_its_reversal(a: Triple, config: EquivalenceConfig) -> None:
    paper = config.model_copy(update={"orientation": "paper"})
    assert compare(a, swapped(a), HashEncoder(), paper).equivalent


@LAWS
@given(ANY_TRIPLES, ANY_TRIPLES, CONFIGS)
def test_negation_and_numbers_never_merge(a: Triple, b: Triple, config: EquivalenceConfig) -> None:
    numbers = [sorted(value for part in triple for value in number_signature(part).values) for triple in (a, b)]
    if compare(a, b, OnesEncoder(), config).equivalent:
        assert numbers[0] == numbers[1]
    negated = Triple("Anna", "is not " + a.relation, "Peter")
    if not is_negated(a.relation):
        assert not compare(Triple("Anna", a.relation, "Peter"), negated, OnesEncoder(), config).equivalent


@LAWS
@given(st.lists(ANY_TRIPLES, max_size=8, unique=True), CONFIGS)
def test_matrix_equals_compare(triples: list[Triple], config: EquivalenceConfig) -> None:
    encoder = HashEncoder()
    matrix = equivalence_matrix(triples, encoder, config)
    assert matrix.tolist() == [[compare(a, b, encoder, config).equivalent for b in triples] for a in triples]


@LAWS
@given(
    st.lists(st.lists(TRIPLES, max_size=4), min_size=1, max_size=4),
    CONFIGS,
    st.sampled_from(["leader", "components"]),
    st.randoms(use_true_random=False),
)
def test_clusters_do_not_depend_on_order(group, config, linkage, random) -> None:  # type: ignore[no-untyped-def]
    encoder = HashEncoder()
    first = cluster_facts(group, encoder, config, linkage)
    shuffled = [random.sample(triples, len(triples)) for triples in random.sample(group, len(group))]
    second = cluster_facts(shuffled, encoder, config, linkage)
    assert first.triples == second.triples
    assert first.labels_U.tolist() == second.labels_U.tolist()
    assert [first.labels_U[row] for row in first.representatives] == list(range(len(first.representatives)))
