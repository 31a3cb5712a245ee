"""Equivalence of many facts at once: `equivalence.compare` for all pairs of a group, with everything repeated kept.

Triples, names and relations are interned as rows of tables that stay from group to group (bounded). The rules
that need no
encoder come first, as comparisons of codes; only facts that still have a partner are encoded at all, and one
matrix product gives the cosines of both configurations.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
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
Pairs = NDArray[np.intp]
_Keys = tuple[NDArray[np.bool_], NDArray[np.bool_]]


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
        self._rows: NDArray[np.float32] | None = None
        self._known = np.zeros(0, dtype=bool)

    def fill(self, wanted: Iterable[int]) -> None:
        """Encode the rows that are not known yet, in one call."""
        if len(self._known) < len(self.texts):
            self._known = np.concatenate([self._known, np.zeros(2 * len(self.texts) - len(self._known), dtype=bool)])
        missing = [row for row in dict.fromkeys(wanted) if not self._known[row]]
        if not missing:
            return
        vectors = self._encoder.encode([self.texts[row] for row in missing])
        if self._rows is None:
            self._rows = np.zeros((len(self._known), vectors.shape[1]), dtype=np.float32)
        elif len(self._rows) < len(self._known):
            grown = np.zeros((len(self._known), self._rows.shape[1]), dtype=np.float32)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[missing] = vectors
        self._known[missing] = True

    def __getitem__(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        if self._rows is None:
            raise IndexError("no row was filled yet")
        return self._rows[rows]


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
        self._keys = np.zeros((0, 5), dtype=np.int64)
        self._matches = np.zeros((0, 0), dtype=np.uint8)
        self._triple_vectors, self._relation_vectors = _Vectors(self.encoder), _Vectors(self.encoder)
        self._entity_vectors = _Vectors(self.encoder)

    def matrix(self, triples_U: Sequence[Triple]) -> NDArray[np.bool_]:
        """(U, U) verdicts, symmetric, true on the diagonal."""
        size = len(triples_U)
        equivalent = np.eye(size, dtype=bool)
        if size < 2:
            return equivalent
        rows = self.intern(triples_U)
        first, second, allowed = self._candidates(rows)
        if len(first):
            passed = self._decide(rows[first], rows[second], allowed)
            equivalent[first[passed], second[passed]] = True
            equivalent[second[passed], first[passed]] = True
        return equivalent

    def warm(self, groups: Iterable[Sequence[Triple]]) -> None:
        """Encode in one batch whatever comparing each of these groups will ask for."""
        wanted: list[int] = []
        for triples in groups:
            rows = self.intern(list(dict.fromkeys(triples)))
            first, second, _ = self._candidates(rows)
            wanted += rows[first].tolist() + rows[second].tolist()
        self._fill_triples(wanted)

    def intern(self, triples_U: Sequence[Triple]) -> NDArray[np.intp]:
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
        if len(self._keys) < len(self._name_keys):
            self._keys = np.concatenate([self._keys, np.array(self._name_keys[len(self._keys) :], dtype=np.int64)])
        return np.fromiter((known[triple] for triple in triples_U), dtype=np.intp, count=len(triples_U))

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

    def _candidates(self, rows: NDArray[np.intp]) -> tuple[Pairs, Pairs, NDArray[np.uint8]]:
        """Pairs (first < second) that every rule without a cosine of triples leaves open, and the
        configurations they may pass in.
        """
        signature, units, relation, subject, obj, text, reverse = self._table[rows].T
        open_pairs = signature[:, None] == signature
        if units.any():
            open_pairs &= (units[:, None] == units) | (units == 0) | (units == 0)[:, None]
        matches = self._relation_matches(relation)
        if self.config.equivalence == "exact":
            original = text[:, None] == text
            flipped = text[:, None] == reverse
            if self.config.orientation == "strict":
                flipped &= (matches & _SWAPPED) > 0
            matches = (original * _ORIGINAL + flipped * _SWAPPED).astype(np.uint8)
        first, second = np.nonzero(np.triu(open_pairs & (matches > 0), 1))
        allowed = matches[first, second]
        if self.config.equivalence == "exact" or not len(first):
            return first, second, allowed
        allowed = self._by_names(subject[first], obj[first], subject[second], obj[second], allowed)
        left = allowed > 0
        return first[left], second[left], allowed[left]

    def _relation_matches(self, relation: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(U, U) bits: the configurations in which the relations of two triples match."""
        if len(self._matches) < len(self._relations):
            grown = np.full((max(64, 2 * len(self._relations)),) * 2, _UNKNOWN, dtype=np.uint8)
            grown[: len(self._matches), : len(self._matches)] = self._matches
            self._matches = grown
        matches: NDArray[np.uint8] = self._matches[relation[:, None], relation]
        if (matches == _UNKNOWN).any():
            self._match_relations(np.unique(relation))
            matches = self._matches[relation[:, None], relation]
        return matches

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
            self._relation_vectors.fill([*a_P.tolist(), *b_P.tolist()])
            cosine = _cosines(self._relation_vectors, a_P, b_P)
            bits = np.where(cosine + TOLERANCE >= self.thresholds.relation, bits_P, 0).astype(np.uint8)
            self._matches[a_P, b_P] |= bits
            self._matches[b_P, a_P] = self._matches[a_P, b_P]

    def _by_names(
        self, s_a: Pairs, o_a: Pairs, s_b: Pairs, o_b: Pairs, allowed: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Clear the configurations that the names of subject and object refuse."""
        straight_s, straight_o = self._same_name(s_a, s_b), self._same_name(o_a, o_b)
        cross_s, cross_o = self._same_name(s_a, o_b), self._same_name(o_a, s_b)
        straight, crosswise = straight_s[0] & straight_o[0], cross_s[0] & cross_o[0]
        refused = np.zeros_like(allowed)
        if self.config.orientation == "strict":
            refused |= np.where(crosswise & ~straight, _ORIGINAL, 0).astype(np.uint8)
            refused |= np.where(straight & ~crosswise, _SWAPPED, 0).astype(np.uint8)
        allowed = allowed & ~refused
        threshold = self.thresholds.entity
        if threshold is not None:
            for bit, same_s, same_o, other_s, other_o in (
                (_ORIGINAL, straight_s, straight_o, s_b, o_b),
                (_SWAPPED, cross_s, cross_o, o_b, s_b),
            ):
                doubtful = np.flatnonzero(((allowed & bit) > 0) & ~(same_s[0] & same_o[0]))
                if len(doubtful):
                    close = self._close(s_a, other_s, same_s, doubtful, threshold) & self._close(
                        o_a, other_o, same_o, doubtful, threshold
                    )
                    allowed[doubtful[~close]] &= ~np.uint8(bit)
        return allowed

    def _same_name(self, a: Pairs, b: Pairs) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """`entities.same_name` and `entities.different_name` for pairs of entity rows."""
        name_a, acronym_a, initialled_a, distinguishing_a, bracket_a = self._keys[a].T
        name_b, acronym_b, initialled_b, distinguishing_b, bracket_b = self._keys[b].T
        same: NDArray[np.bool_] = name_a == name_b
        same |= (name_a == acronym_b) | (name_a == initialled_b) | (name_b == acronym_a) | (name_b == initialled_a)
        other_bracket = (bracket_a != bracket_b) & (bracket_a > 0) & (bracket_b > 0)
        same &= ~other_bracket
        return same, other_bracket | ((distinguishing_a != distinguishing_b) & ~same)

    def _close(self, a: Pairs, b: Pairs, keys: _Keys, doubtful: Pairs, threshold: float) -> NDArray[np.bool_]:
        """(len(doubtful),) names that are the same by their keys or by their cosine."""
        same, different = keys
        close: NDArray[np.bool_] = same[doubtful].copy()
        asked = np.flatnonzero(~close & ~different[doubtful])
        if len(asked):
            rows_a, rows_b = a[doubtful[asked]], b[doubtful[asked]]
            self._entity_vectors.fill([*rows_a.tolist(), *rows_b.tolist()])
            cosine = _cosines(self._entity_vectors, rows_a, rows_b)
            close[asked] = cosine + TOLERANCE >= threshold
        return close

    def _fill_triples(self, rows: Iterable[int]) -> None:
        self._triple_vectors.fill(text for row in rows for text in (2 * row, 2 * row + 1))

    def _decide(self, rows_a: Pairs, rows_b: Pairs, allowed: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """(P,) verdicts on candidate pairs: the cosine of an allowed configuration reaches the threshold."""
        if self.config.equivalence == "exact":
            return allowed > 0
        used, position = np.unique(np.concatenate([rows_a, rows_b]), return_inverse=True)
        self._fill_triples(used.tolist())
        vectors = self._triple_vectors[np.concatenate([2 * used, 2 * used + 1])]
        cosine = vectors @ vectors.T
        a, b, size = position[: len(rows_a)], position[len(rows_a) :], len(used)
        original = np.maximum(cosine[a, b], cosine[a + size, b + size])
        flipped = np.maximum(cosine[a, b + size], cosine[a + size, b])
        threshold = self.thresholds.similarity - TOLERANCE
        passed: NDArray[np.bool_] = ((allowed & _ORIGINAL) > 0) & (original >= threshold)
        passed |= ((allowed & _SWAPPED) > 0) & (flipped >= threshold)
        return passed


def _cosines(vectors: _Vectors, a: Pairs, b: Pairs) -> NDArray[np.float32]:
    """(P,) cosines of rows a and b."""
    cosines: NDArray[np.float32] = np.einsum("ij,ij->i", vectors[a], vectors[b])
    return cosines


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
