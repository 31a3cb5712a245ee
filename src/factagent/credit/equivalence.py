"""Are two facts the same? The two-stage test of the paper (section 3, appendix on clustering; credit.md section 2).

`compare` is the readable reference and says which rule decided. `equivalence_matrix` gives the same verdicts
for all pairs of a
list at once. Equivalence is reflexive, symmetric, and unchanged when both triples are swapped; it is not transitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from factagent.credit.encoders import Encoder
from factagent.credit.entities import different_name, entity_keys, normalise_text, same_name
from factagent.credit.matcher import matcher_for
from factagent.credit.relations import match_relations
from factagent.credit.rules import (
    TOLERANCE,
    EquivalenceConfig,
    signature_conflict,
    stand_crosswise,
    stand_straight,
    swapped,
    triple_signature,
)
from factagent.credit.thresholds import Thresholds
from factagent.errors import FactAgentError
from factagent.types import Triple

__all__ = ["EquivalenceConfig", "Verdict", "compare", "compare_all", "equivalence_matrix"]

Configuration = Literal["original", "swapped"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two facts are equivalent, and why.

    `similarity` is the cosine in the deciding configuration (the larger of both where none passed); `reason`
    is the rule that
    decided: "exact", "relation-surface" or "relation-embedding" for a merge; "negation", "numbers", "quantities",
    "qualifiers", "similarity", "entities", "orientation", "relation" or "text" for a refusal.
    """

    equivalent: bool
    similarity: float
    configuration: Configuration | None
    reason: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One configuration of a pair: the cosine of the triples and what the rules of stage 2 found.

    `oriented` is False where the direction of relation or names refuses the configuration. `names` is the
    smaller cosine of
    the names (None: not compared), `relation` the cosine of the relations (None: it may not decide).
    """

    configuration: Configuration
    similarity: float
    oriented: bool
    names: float | None
    surface: bool
    relation: float | None

    def judge(self, thresholds: Thresholds) -> tuple[bool, str]:
        """(passed, rule that decided) under the thresholds, all inclusive."""
        if not self.oriented:
            return False, "orientation"
        if self.similarity + TOLERANCE < thresholds.similarity:
            return False, "similarity"
        if thresholds.entity is not None and self.names is not None and self.names + TOLERANCE < thresholds.entity:
            return False, "entities"
        if self.surface:
            return True, "relation-surface"
        if self.relation is None:
            return False, "relation"
        return self.relation + TOLERANCE >= thresholds.relation, "relation-embedding"


def compare(a: Triple, b: Triple, encoder: Encoder, config: EquivalenceConfig) -> Verdict:
    """Judge one pair (credit.md section 2): stage 1 cosine, stage 2 rules, original configuration first.

    The cosine of the original configuration is the larger of (a, b) and (swap a, swap b), that of the swapped
    one the larger
    of (a, swap b) and (swap a, b): so the verdict depends neither on the order of the pair nor on which one is swapped.
    """
    conflict = signature_conflict(triple_signature(a), triple_signature(b))
    if config.equivalence == "exact":
        return _compare_exact(a, b, conflict, config)
    found = evidence(a, b, encoder, config)
    highest = max(one.similarity for one in found)
    if conflict is not None:
        return Verdict(False, highest, None, conflict)
    thresholds = config.thresholds(encoder)
    refusals: list[tuple[bool, float, str]] = []
    for one in found:
        passed, reason = one.judge(thresholds)
        if passed:
            return Verdict(True, one.similarity, one.configuration, reason)
        refusals.append((reason != "similarity", one.similarity, reason))
    return Verdict(False, highest, None, max(refusals)[2])


def compare_all(
    pairs: Iterable[tuple[Triple, Triple]], encoder: Encoder, config: EquivalenceConfig, chunk: int = 256
) -> Iterator[Verdict]:
    """`compare` for a stream of pairs, in order; the texts of `chunk` pairs are encoded together.

    An error of the stream is raised after the verdicts on all pairs before it.
    """
    pending: list[tuple[Triple, Triple]] = []
    try:
        for pair in pairs:
            pending.append(pair)
            if len(pending) == chunk:
                yield from _compare_chunk(pending, encoder, config)
                pending = []
    except FactAgentError:
        yield from _compare_chunk(pending, encoder, config)
        raise
    yield from _compare_chunk(pending, encoder, config)


def _compare_chunk(
    pairs: Sequence[tuple[Triple, Triple]], encoder: Encoder, config: EquivalenceConfig
) -> Iterator[Verdict]:
    if config.equivalence == "semantic":  # one call fills the encoder's cache for all that follow
        triples = [triple for pair in pairs for triple in pair]
        texts = [text for t in triples for text in (t.text, swapped(t).text, *t)]
        encoder.encode(list(dict.fromkeys(texts)))
    for a, b in pairs:
        yield compare(a, b, encoder, config)


def evidence(a: Triple, b: Triple, encoder: Encoder, config: EquivalenceConfig) -> tuple[Evidence, Evidence]:
    """What speaks for the original and for the swapped configuration, before any threshold."""
    match = match_relations(*sorted((a.relation, b.relation)), config.orientation)
    x = encoder.encode([a.text, swapped(a).text, b.text, swapped(b).text]).astype(np.float64)
    straight, crosswise = stand_straight(a, b), stand_crosswise(a, b)
    strict, compare_names = config.orientation == "strict", config.thresholds(encoder).entity is not None
    relation = None
    if match.original_by_cosine or match.swapped_by_cosine:
        relation = _cosine(a.relation, b.relation, encoder)
    original = Evidence(
        "original",
        float(max(x[0] @ x[2], x[1] @ x[3])),
        not (strict and crosswise and not straight) and not (strict and match.swapped and not match.original),
        _names(a, b, encoder) if compare_names else None,
        match.original,
        relation if match.original_by_cosine else None,
    )
    flipped = Evidence(
        "swapped",
        float(max(x[0] @ x[3], x[1] @ x[2])),
        not (strict and straight and not crosswise) and not (strict and match.original and not match.swapped),
        _names(a, swapped(b), encoder) if compare_names else None,
        match.swapped,
        relation if match.swapped_by_cosine else None,
    )
    return original, flipped


def _names(a: Triple, b: Triple, encoder: Encoder) -> float:
    """The smaller likeness of subject with subject and object with object: 1 or -1 where the keys decide, else
    the cosine.
    """
    return min(_likeness(a.subject, b.subject, encoder), _likeness(a.object, b.object, encoder))


def _likeness(a: str, b: str, encoder: Encoder) -> float:
    keys_a, keys_b = entity_keys(a), entity_keys(b)
    if same_name(keys_a, keys_b):
        return 1.0
    return -1.0 if different_name(keys_a, keys_b) else _cosine(a, b, encoder)


def _cosine(a: str, b: str, encoder: Encoder) -> float:
    x = encoder.encode([a, b]).astype(np.float64)
    return float(x[0] @ x[1])


def _compare_exact(a: Triple, b: Triple, conflict: str | None, config: EquivalenceConfig) -> Verdict:
    """The EM-only ablation: normalised strings equal, in either orientation ("strict": swapped only if symmetric)."""
    parts_a, parts_b = (tuple(normalise_text(part) for part in triple) for triple in (a, b))
    match = match_relations(*sorted((a.relation, b.relation)), config.orientation)
    if conflict is None and parts_a == parts_b:
        return Verdict(True, 1.0, "original", "exact")
    if conflict is None and parts_a == parts_b[::-1] and (config.orientation == "paper" or match.swapped):
        return Verdict(True, 1.0, "swapped", "exact")
    return Verdict(False, 0.0, None, conflict or "text")


def equivalence_matrix(triples_U: Sequence[Triple], encoder: Encoder, config: EquivalenceConfig) -> NDArray[np.bool_]:
    """(U, U) verdicts of `compare` for all pairs; symmetric, true on the diagonal."""
    return matcher_for(encoder, config).matrix(triples_U)
