"""Clusters of equivalent facts within one group (section 3 of the paper; credit.md section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from factagent.credit.encoders import Encoder
from factagent.credit.entities import normalise_text
from factagent.credit.equivalence import EquivalenceConfig, equivalence_matrix
from factagent.types import Triple

Linkage = Literal["leader", "components"]


@dataclass(frozen=True, slots=True)
class Clustering:
    """The clusters of a group.

    `triples` are the distinct triples in canonical order: most trajectories first, then normalised text.
    `labels_U` gives the
    cluster of each, clusters numbered by first appearance; `representatives` holds one index into `triples`
    per cluster,
    the first of its members.
    """

    triples: tuple[Triple, ...]
    labels_U: NDArray[np.int64]
    representatives: tuple[int, ...]


def cluster_facts(
    triples_G: Sequence[Sequence[Triple]],
    encoder: Encoder,
    config: EquivalenceConfig,
    linkage: Linkage = "leader",
) -> Clustering:
    """Cluster the facts of one group; one sequence of triples per trajectory.

    "leader": each fact, in canonical order, joins the first cluster whose representative it is equivalent to,
    else opens
    one (C_k = {f : f ~ f_rep}, section 3). "components": connected components of the equivalence graph.
    Neither depends on the order of
    the trajectories or of their facts.
    """
    triples = canonical_order(triples_G)
    equivalent_UU = equivalence_matrix(triples, encoder, config)
    labels, representatives = (_leaders if linkage == "leader" else _components)(equivalent_UU)
    return Clustering(triples, labels, representatives)


def canonical_order(triples_G: Sequence[Sequence[Triple]]) -> tuple[Triple, ...]:
    """The distinct triples: most trajectories first, then normalised text, then the text itself."""
    support = Counter(chain.from_iterable(map(dict.fromkeys, triples_G)))
    return tuple(sorted(support, key=lambda triple: (-support[triple], normalise_text(triple.text), triple)))


def _leaders(equivalent_UU: NDArray[np.bool_]) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Greedy scan in order: a fact that joined no earlier one leads, and takes the free facts it is equivalent to."""
    leader = list(range(len(equivalent_UU)))
    for row, fact in np.argwhere(equivalent_UU).tolist():
        if leader[row] == row and leader[fact] == fact:
            leader[fact] = row
    representatives, labels = np.unique(np.array(leader, dtype=np.int64), return_inverse=True)
    return labels, tuple(representatives.tolist())


def _components(equivalent_UU: NDArray[np.bool_]) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Connected components, numbered by their first fact."""
    labels = np.full(len(equivalent_UU), -1, dtype=np.int64)
    representatives: list[int] = []
    for row in range(len(equivalent_UU)):
        if labels[row] >= 0:
            continue
        frontier = [row]
        labels[row] = len(representatives)
        while frontier:
            reached = np.flatnonzero(equivalent_UU[frontier.pop()] & (labels < 0))
            labels[reached] = len(representatives)
            frontier += reached.tolist()
        representatives.append(row)
    return labels, tuple(representatives)
