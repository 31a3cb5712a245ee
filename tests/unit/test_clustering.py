"""Leader and component clusters over the canonical order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from factagent.credit.clustering import Linkage, canonical_order, cluster_facts
from factagent.credit.encoders import ExactEncoder
from factagent.credit.equivalence import EquivalenceConfig
from factagent.types import Triple


class ChainEncoder:
    """Texts on a circle, 15 degrees apart by the number of their object: neighbours pass .95, others do not."""

    name = "chain"
    similarity_threshold = 0.95
    relation_threshold = 0.95

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        degrees = [15.0 * "abc".index(text[-1]) if text[-1] in "abc" else 80.0 + 15.0 * ord(text[0]) for text in texts]
        angles = np.deg2rad(degrees)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


CHAIN = [Triple("x", "likes", letter) for letter in "abc"]


def test_canonical_order_counts_trajectories_not_mentions() -> None:
    a, b, c = CHAIN
    assert canonical_order([[c, c, c], [b], [b, a]]) == (b, a, c)


@pytest.mark.parametrize(("linkage", "labels"), [("leader", [0, 0, 1]), ("components", [0, 0, 0])])
def test_a_chain_separates_the_linkages(linkage: Linkage, labels: list[int]) -> None:
    clustering = cluster_facts([CHAIN], ChainEncoder(), EquivalenceConfig(), linkage)
    assert clustering.triples == tuple(CHAIN)
    assert clustering.labels_U.tolist() == labels
    assert clustering.representatives == ((0, 2) if linkage == "leader" else (0,))


def test_the_most_supported_fact_leads() -> None:
    a, b, c = CHAIN
    clustering = cluster_facts([[b, a], [b, c]], ChainEncoder(), EquivalenceConfig())
    assert clustering.triples == (b, a, c)
    assert clustering.labels_U.tolist() == [0, 0, 0]


@pytest.mark.parametrize("linkage", ["leader", "components"])
def test_order_of_trajectories_does_not_matter(linkage: Linkage) -> None:
    group = [[CHAIN[2]], [CHAIN[0], CHAIN[1]], [CHAIN[1]]]
    first = cluster_facts(group, ChainEncoder(), EquivalenceConfig(), linkage)
    second = cluster_facts(group[::-1], ChainEncoder(), EquivalenceConfig(), linkage)
    assert first.triples == second.triples
    assert first.labels_U.tolist() == second.labels_U.tolist()


def test_empty_group() -> None:
    clustering = cluster_facts([[], []], ExactEncoder(), EquivalenceConfig(equivalence="exact"))
    assert (clustering.triples, clustering.labels_U.tolist(), clustering.representatives) == ((), [], ())
