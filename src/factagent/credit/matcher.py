"""Equivalence of many facts at once: `equivalence.compare` for all pairs of a group, with everything repeated kept.

Triples, names and relations are interned as rows of tables that stay from group to group (bounded). The rules
that need no
encoder come first, as comparisons of codes; only facts that still have a partner are encoded at all, and one
matrix product gives the cosines of both configurations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factagent.credit.encoders import Encoder
from factagent.credit.entities import entity_keys, normalise_text
from factagent.credit.relations import match_relations
from factagent.credit.rules import TOLERANCE, EquivalenceConfig, swapped, triple_signature
from factagent.types import Triple

MAX_TRIPLES = 16_384
MAX_RELATIONS = 2_048
_UNKNOWN = 255
_ORIGINAL, _SWAPPED = 1, 2
_BITS_C1 = np.array([[_ORIGINAL], [_SWAPPED]], dtype=np.uint8)
_SIGNATURE, _UNITS, _RELATION, _SUBJECT, _OBJECT, _TEXT, _REVERSE = range(7)
"""Columns of the table of triples."""
Rows = NDArray[np.intp]
Bools = NDArray[np.bool_]


class _Codes:
    """Small integers for hashable values, in order of first sight."""

    def __init__(self) -> None:
        self._codes: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self._codes.setdefault(value, len(self._codes))


class _Vectors:
    """Unit vectors by row number, filled when asked for."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.texts: list[str] = []
        self._rows = np.zeros((0, 0), dtype=np.float32)
        self._known = np.zeros(0, dtype=bool)

    def cosines(self, a: Rows, b: Rows) -> NDArray[np.float32]:
        """Cosines of rows a and b, of the same shape; rows not known yet are encoded in one call."""
        if not a.size:
            return np.zeros(a.shape, dtype=np.float32)
        used = np.unique(np.stack([a, b]))
        vectors = self._filled(used)[used]
        cosines: NDArray[np.float32] = (vectors @ vectors.T)[np.searchsorted(used, a), np.searchsorted(used, b)]
        return cosines

    def _filled(self, wanted: Rows) -> NDArray[np.float32]:
        """The table of vectors, in which these rows are known."""
        if len(self._known) < len(self.texts):
            self._known = np.concatenate([self._known, np.zeros(2 * len(self.texts) - len(self._known), dtype=bool)])
        missing = wanted[~self._known[wanted]]
        if len(missing):
            vectors = self._encoder.encode([self.texts[row] for row in missing.tolist()])
            if len(self._rows) < len(self._known):
                grown = np.zeros((len(self._known), vectors.shape[1]), dtype=np.float32)
                grown[: len(self._rows)] = self._rows.reshape(-1, vectors.shape[1])
                self._rows = grown
            self._rows[missing] = vectors
            self._known[missing] = True
        return self._rows


class Matcher:
    """All-pairs equivalence under one encoder and configuration."""

    def __init__(self, encoder: Encoder, config: EquivalenceConfig) -> None:
        self.encoder, self.config = encoder, config
        self.thresholds = config.thresholds(encoder)
        self._reset()

    def _reset(self) -> None:
        self._rows: dict[Triple, int] = {}
        self._features: list[tuple[int, ...]] = []
        self._table = np.zeros((0, 7), dtype=np.int64)
        self._signature, self._units, self._names, self._texts = _Codes(), _Codes(), _Codes(), _Codes()
        self._units(())
        self._names("")
        self._relations: dict[str, int] = {}
        self._entities: dict[str, int] = {}
        self._name_keys: list[tuple[int, ...]] = []
        self._keys = np.zeros((5, 0), dtype=np.int64)
        self._matches = np.zeros((0, 0), dtype=np.uint8)
        self._triple_vectors, self._relation_vectors = _Vectors(self.encoder), _Vectors(self.encoder)
        self._entity_vectors = _Vectors(self.encoder)

    def matrix(self, triples_U: Sequence[Triple]) -> Bools:
        """(U, U) verdicts, symmetric, true on the diagonal."""
        rows = self.intern(triples_U)
        equivalent = np.eye(len(rows), dtype=bool)
        first, second = self._same_signature(rows)
        passed = self._equivalent(rows[first], rows[second])
        first, second = first[passed], second[passed]
        equivalent[first, second] = equivalent[second, first] = True
        return equivalent

    def intern(self, triples_U: Sequence[Triple]) -> Rows:
        """(U,) row numbers of the triples; what is new is read once."""
        if len(self._rows) + len(triples_U) > MAX_TRIPLES or len(self._relations) + len(triples_U) > MAX_RELATIONS:
            self._reset()
        known = self._rows
        for triple in triples_U:
            if triple not in known:
                known[triple] = len(known)
                self._features.append(self._read(triple))
        if len(self._table) < len(self._features):
            self._table = np.concatenate([self._table, np.array(self._features[len(self._table) :], dtype=np.int64)])
        if self._keys.shape[1] < len(self._name_keys):
            new = np.array(self._name_keys[self._keys.shape[1] :], dtype=np.int64)
            self._keys = np.concatenate([self._keys, new.T], axis=1)
        return np.array([known[triple] for triple in triples_U], dtype=np.intp)

    def _read(self, triple: Triple) -> tuple[int, ...]:
        """The features of a triple: signature, units, relation, subject, object, and codes of both normalised texts."""
        signature = triple_signature(triple)
        parts = tuple(normalise_text(part) for part in triple)
        self._triple_vectors.texts += [triple.text, swapped(triple).text]
        return (
            self._signature(signature[:4]),
            self._units(signature.units),
            self._relation(triple.relation),
            self._entity(triple.subject),
            self._entity(triple.object),
            self._texts(parts),
            self._texts(parts[::-1]),
        )

    def _relation(self, relation: str) -> int:
        if relation not in self._relations:
            self._relations[relation] = len(self._relations)
            self._relation_vectors.texts.append(relation)
        return self._relations[relation]

    def _entity(self, name: str) -> int:
        if name not in self._entities:
            self._entities[name] = len(self._entities)
            self._entity_vectors.texts.append(name)
            keys = entity_keys(name)
            # an absent acronym must never equal a name, nor another absent one
            self._name_keys.append(
                (
                    self._names(keys.name),
                    self._names(keys.acronym) or -1,
                    self._names(keys.initialled) or -1,
                    self._names(keys.distinguishing),
                    self._names(keys.bracket),
                )
            )
        return self._entities[name]

    def _same_signature(self, rows: Rows) -> tuple[Rows, Rows]:
        """The pairs (first < second) whose signatures do not keep them apart."""
        signature, units = self._table[rows, _SIGNATURE], self._table[rows, _UNITS]
        open_pairs = signature[:, None] == signature
        if units.any():
            open_pairs &= (units[:, None] == units) | (units == 0) | (units == 0)[:, None]
        first, second = np.nonzero(open_pairs)
        upper = first < second
        return first[upper], second[upper]

    def _equivalent(self, a: Rows, b: Rows) -> Bools:
        """(P,) verdicts on pairs of rows. Each rule sees only the pairs that those before it left open."""
        if self.config.equivalence == "exact":
            return self._same_text(a, b)
        passes_CP = self._by_relation(a, b)
        for rule in (self._by_names, self._by_similarity):
            left = np.flatnonzero(passes_CP.any(axis=0))
            passes_CP[:, left] &= rule(a[left], b[left], passes_CP[:, left])
        verdicts: Bools = passes_CP[0] | passes_CP[1]
        return verdicts

    def _same_text(self, a: Rows, b: Rows) -> Bools:
        """(P,) equal normalised strings, or crosswise equal ones where the orientation allows it."""
        text = self._table[a, _TEXT]
        crosswise: Bools = text == self._table[b, _REVERSE]
        if self.config.orientation == "strict":
            crosswise &= self._by_relation(a, b)[1]
        crosswise |= text == self._table[b, _TEXT]
        return crosswise

    def _by_relation(self, a: Rows, b: Rows) -> Bools:
        """(2, P): whether the relations match in the original and in the swapped configuration."""
        if len(self._matches) < len(self._relations):
            grown = np.full((max(64, 2 * len(self._relations)),) * 2, _UNKNOWN, dtype=np.uint8)
            grown[: len(self._matches), : len(self._matches)] = self._matches
            self._matches = grown
        relations = self._table[a, _RELATION], self._table[b, _RELATION]
        matches = self._matches[relations]
        if (matches == _UNKNOWN).any():
            self._match_relations(np.unique(relations))
            matches = self._matches[relations]
        passes_CP: Bools = (matches & _BITS_C1) > 0
        return passes_CP

    def _match_relations(self, relations: NDArray[np.int64]) -> None:
        """Fill the table of relation pairs, encoding only relations whose surface leaves the question open."""
        texts = self._relation_vectors.texts
        open_pairs: list[tuple[int, int, int]] = []
        for i, a in enumerate(relations.tolist()):
            for b in relations[i:].tolist():
                if self._matches[a, b] != _UNKNOWN:
                    continue
                match = match_relations(*sorted((texts[a], texts[b])), self.config.orientation)
                self._matches[a, b] = self._matches[b, a] = match.original * _ORIGINAL | match.swapped * _SWAPPED
                by_cosine = match.original_by_cosine * _ORIGINAL | match.swapped_by_cosine * _SWAPPED
                if by_cosine & ~int(self._matches[a, b]) and self.config.equivalence != "exact":
                    open_pairs.append((a, b, by_cosine))
        if open_pairs:
            a_P, b_P, bits_P = np.array(open_pairs).T
            cosine = self._relation_vectors.cosines(a_P, b_P)
            bits = np.where(cosine + TOLERANCE >= self.thresholds.relation, bits_P, 0).astype(np.uint8)
            self._matches[a_P, b_P] |= bits
            self._matches[b_P, a_P] = self._matches[a_P, b_P]

    def _by_names(self, a: Rows, b: Rows, open_CP: Bools) -> Bools:
        """(2, P): configurations that the names of subject and object allow, among the open ones.

        Axes: configuration (original, swapped), part (subject, object), pair.
        """
        names_a = self._table[a, _SUBJECT], self._table[a, _OBJECT]
        subject_b, object_b = self._table[b, _SUBJECT], self._table[b, _OBJECT]
        a_CNP = np.array([names_a, names_a])
        b_CNP = np.array([(subject_b, object_b), (object_b, subject_b)])
        same_CNP, different_CNP = self._same_name(a_CNP, b_CNP)
        if self.config.orientation == "strict":
            stand_CP = same_CNP[:, 0] & same_CNP[:, 1]
            open_CP = open_CP & (stand_CP | ~stand_CP[::-1])
        threshold = self.thresholds.entity
        if threshold is None:
            return open_CP
        open_CP = open_CP & ~different_CNP.any(axis=1)
        asked = open_CP[:, None] & ~same_CNP
        same_CNP[asked] = self._entity_vectors.cosines(a_CNP[asked], b_CNP[asked]) + TOLERANCE >= threshold
        return open_CP & same_CNP.all(axis=1)

    def _same_name(self, a: Rows, b: Rows) -> tuple[Bools, Bools]:
        """`entities.same_name` and `entities.different_name` for pairs of entity rows."""
        name_a, acronym_a, initialled_a, distinguishing_a, bracket_a = self._keys[:, a]
        name_b, acronym_b, initialled_b, distinguishing_b, bracket_b = self._keys[:, b]
        same: Bools = name_a == name_b
        same |= (name_a == acronym_b) | (name_a == initialled_b) | (name_b == acronym_a) | (name_b == initialled_a)
        other_bracket = (bracket_a != bracket_b) & (bracket_a > 0) & (bracket_b > 0)
        same &= ~other_bracket
        return same, other_bracket | ((distinguishing_a != distinguishing_b) & ~same)

    def _by_similarity(self, a: Rows, b: Rows, open_CP: Bools) -> Bools:
        """(2, P): open configurations in which the cosine of the triples reaches the threshold.

        That of a configuration is the larger of two: either triple, or neither, may be the swapped one.
        """
        a, b = 2 * a, 2 * b
        cosine_CP = self._triple_vectors.cosines(
            np.array([(a, a + 1), (a, a + 1)]), np.array([(b, b + 1), (b + 1, b)])
        ).max(axis=1)
        passes_CP: Bools = open_CP & (cosine_CP >= self.thresholds.similarity - TOLERANCE)
        return passes_CP


@lru_cache(maxsize=4)
def _kept_matcher(encoder: Encoder, config: EquivalenceConfig, thresholds: object) -> Matcher:
    return Matcher(encoder, config)


def matcher_for(encoder: Encoder, config: EquivalenceConfig) -> Matcher:
    """The matcher of an encoder and a configuration; kept between calls, so that a later group finds what an
    earlier one read.
    """
    if isinstance(encoder, Hashable):
        return _kept_matcher(encoder, config, config.thresholds(encoder))
    return Matcher(encoder, config)
