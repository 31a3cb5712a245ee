"""Are two facts the same? The two-stage test of the paper (section 3, appendix on clustering; credit.md section 2).

`compare` is the readable reference and says which rule decided. `equivalence_matrix` gives the same verdicts for all pairs of a
list at once. Equivalence is reflexive, symmetric, and unchanged when both triples are swapped; it is not transitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from factagent.credit.encoders import Encoder
from factagent.credit.entities import entity_keys, normalise_text, same_name
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
from factagent.errors import FactAgentError
from factagent.types import Triple

__all__ = ["EquivalenceConfig", "Verdict", "compare", "compare_all", "equivalence_matrix"]

Configuration = Literal["original", "swapped"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two facts are equivalent, and why.

    `similarity` is the cosine in the deciding configuration (the larger of both where none passed); `reason` is the rule that
    decided: "exact", "relation-surface" or "relation-embedding" for a merge; "negation", "numbers", "quantities",
    "qualifiers", "similarity", "entities", "orientation", "relation" or "text" for a refusal.
    """

    equivalent: bool
    similarity: float
    configuration: Configuration | None
    reason: str


def compare(a: Triple, b: Triple, encoder: Encoder, config: EquivalenceConfig) -> Verdict:
    """Judge one pair (credit.md section 2): stage 1 cosine, stage 2 rules, original configuration first.

    The cosine of the original configuration is the larger of (a, b) and (swap a, swap b), that of the swapped one the larger
    of (a, swap b) and (swap a, b): so the verdict depends neither on the order of the pair nor on which one is swapped.
    """
    conflict = signature_conflict(triple_signature(a), triple_signature(b))
    if config.equivalence == "exact":
        return _compare_exact(a, b, conflict, config)
    x = encoder.encode([a.text, swapped(a).text, b.text, swapped(b).text]).astype(np.float64)
    cosine = {"original": max(x[0] @ x[2], x[1] @ x[3]), "swapped": max(x[0] @ x[3], x[1] @ x[2])}
    highest = float(max(cosine.values()))
    if conflict is not None:
        return Verdict(False, highest, None, conflict)
    refusals: list[tuple[float, str]] = []
    configurations: tuple[Configuration, Configuration] = ("original", "swapped")
    for configuration in configurations:
        similarity = float(cosine[configuration])
        passed, reason = _stage_two(a, b, configuration, encoder, config)
        if similarity + TOLERANCE < config.thresholds(encoder).similarity:
            passed, reason = False, "similarity"
        if passed:
            return Verdict(True, similarity, configuration, reason)
        refusals.append((similarity, reason))
    return Verdict(False, highest, None, max(refusals, key=lambda refusal: (refusal[1] != "similarity", refusal[0]))[1])


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


def _stage_two(
    a: Triple, b: Triple, configuration: Configuration, encoder: Encoder, config: EquivalenceConfig
) -> tuple[bool, str]:
    """The rules that depend on the configuration: names, orientation, relation. Returns (passed, rule that decided)."""
    original = configuration == "original"
    other = b if original else swapped(b)
    thresholds = config.thresholds(encoder)
    straight, crosswise = stand_straight(a, b), stand_crosswise(a, b)
    if config.orientation == "strict" and straight != crosswise and crosswise == original:
        return False, "orientation"
    if thresholds.entity is not None and not _same_entities(a, other, encoder, thresholds.entity):
        return False, "entities"
    match = match_relations(*sorted((a.relation, b.relation)), config.orientation)
    if match.original if original else match.swapped:
        return True, "relation-surface"
    if not (match.original_by_cosine if original else match.swapped_by_cosine):
        return False, "relation" if match.original == match.swapped else "orientation"
    x = encoder.encode([a.relation, b.relation]).astype(np.float64)
    return bool(x[0] @ x[1] + TOLERANCE >= thresholds.relation), "relation-embedding"


def _same_entities(a: Triple, b: Triple, encoder: Encoder, threshold: float) -> bool:
    for name_a, name_b in ((a.subject, b.subject), (a.object, b.object)):
        if not same_name(entity_keys(name_a), entity_keys(name_b)):
            x = encoder.encode([name_a, name_b]).astype(np.float64)
            if x[0] @ x[1] + TOLERANCE < threshold:
                return False
    return True


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
