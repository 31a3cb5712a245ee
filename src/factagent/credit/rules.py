"""The configuration of equivalence and the rules of its second stage that need no encoder (credit.md section 2)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from factagent.credit.encoders import Encoder
from factagent.credit.entities import EntityKeys, entity_keys, same_name
from factagent.credit.negation import is_negated, qualifiers, starts_negated
from factagent.credit.numbers import number_signature
from factagent.credit.relations import Orientation
from factagent.credit.thresholds import Thresholds
from factagent.types import Triple

TOLERANCE = 1e-6
"""Slack of a cosine against its threshold: thresholds are inclusive, and float32 products round."""
_OPEN_BOUND = re.compile(r"\b(more than|greater than|at least|less than|fewer than|at most|up to|nearly|almost)$")


class EquivalenceConfig(BaseModel):
    """How two facts are compared. Thresholds left at None are the encoder's calibrated ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    equivalence: Literal["semantic", "exact"] = "semantic"
    """"exact" is the paper's EM-only ablation: normalised strings equal, in either orientation."""
    orientation: Orientation = "paper"
    similarity_threshold: float | None = Field(default=None, ge=-1.0, le=1.0)
    relation_threshold: float | None = Field(default=None, ge=-1.0, le=1.0)
    entity_threshold: float | None = Field(default=None, ge=-1.0, le=1.0)
    entities: bool = True
    """Compare subject with subject and object with object too, where there is an entity threshold (E5's paper
    setting has none)."""

    def thresholds(self, encoder: Encoder) -> Thresholds:
        """The thresholds in force for an encoder."""
        entity: float | None = None
        if self.entities:
            entity = self.entity_threshold
            if entity is None:
                entity = getattr(encoder, "entity_threshold", None)
        return Thresholds(
            encoder.similarity_threshold if self.similarity_threshold is None else self.similarity_threshold,
            encoder.relation_threshold if self.relation_threshold is None else self.relation_threshold,
            entity,
        )


class TripleSignature(NamedTuple):
    """What two triples must share whatever their wording. The same for a triple and its swap."""

    negated: bool
    numbers: tuple[str, ...]
    quantities: tuple[str, ...]
    qualifiers: frozenset[str]
    units: tuple[str, ...]


@lru_cache(maxsize=65_536)
def triple_signature(triple: Triple) -> TripleSignature:
    """Negation of the relation, and numbers, quantities, role qualifiers and units of all three parts."""
    parts = [number_signature(part) for part in triple]
    quantities = [word for part in parts for word in part.quantities]
    if (bound := _OPEN_BOUND.search(triple.relation.casefold())) is not None:
        quantities.append(bound[1])
    return TripleSignature(
        is_negated(triple.relation) or starts_negated(triple.subject) or starts_negated(triple.object),
        tuple(sorted(value for part in parts for value in part.values)),
        tuple(sorted(quantities)),
        frozenset().union(*(qualifiers(part, True) for part in triple)),
        tuple(sorted(unit for part in parts for unit in part.units)),
    )


def signature_conflict(a: TripleSignature, b: TripleSignature) -> str | None:
    """The rule that keeps two triples apart at any similarity, or None."""
    if a.negated != b.negated:
        return "negation"
    if a.numbers != b.numbers:
        return "numbers"
    if a.quantities != b.quantities or (a.units and b.units and a.units != b.units):
        return "quantities"
    if a.qualifiers != b.qualifiers:
        return "qualifiers"
    return None


def triple_keys(triple: Triple) -> tuple[EntityKeys, EntityKeys]:
    """The entity keys of subject and object."""
    return entity_keys(triple.subject), entity_keys(triple.object)


def stand_straight(a: Triple, b: Triple) -> bool:
    """Subject names subject and object names object, by their keys alone."""
    (subject_a, object_a), (subject_b, object_b) = triple_keys(a), triple_keys(b)
    return same_name(subject_a, subject_b) and same_name(object_a, object_b)


def stand_crosswise(a: Triple, b: Triple) -> bool:
    """Subject names object and object names subject, by their keys alone."""
    return stand_straight(a, swapped(b))


def swapped(triple: Triple) -> Triple:
    """The triple with subject and object exchanged; the relation stays as it is."""
    return Triple(triple.object, triple.relation, triple.subject)
