"""Thresholds for an encoder, from labelled pairs of triples over 19 scenarios (credit.md section 2).

The pairs of each scenario are split in turn: the even ones choose the thresholds, the odd ones only measure.
The choice maximises
recall under a floor on precision; among equals it takes the strictest thresholds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from factagent.credit.encoders import CachedEncoder, Encoder, load_model
from factagent.credit.equivalence import EquivalenceConfig, evidence
from factagent.credit.relations import Orientation
from factagent.credit.rules import TOLERANCE, signature_conflict, triple_signature
from factagent.credit.thresholds import Thresholds
from factagent.rows import Row, read_rows
from factagent.sentence_models import model_path
from factagent.types import Triple

PRECISION_FLOOR = 0.99
"""Smallest precision on the choosing half: the goal of .97 with a margin, because a half holds only about 220 pairs."""
GRID = np.round(np.arange(0.40, 0.991, 0.01), 2)
"""Thresholds that are tried."""
Half = Literal["choose", "measure"]


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two triples, whether they state the same fact, the scenario they test, and the half they belong to."""

    scenario: str
    a: Triple
    b: Triple
    equivalent: bool
    half: Half


@dataclass(frozen=True, slots=True)
class Scores:
    """Counts of one set of pairs, and what follows from them."""

    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int

    @property
    def precision(self) -> float:
        """Share of merges that are right; 1 where nothing was merged."""
        merged = self.true_positive + self.false_positive
        return self.true_positive / merged if merged else 1.0

    @property
    def recall(self) -> float:
        """Share of equivalent pairs that were merged; 1 where there are none."""
        positive = self.true_positive + self.false_negative
        return self.true_positive / positive if positive else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def as_dict(self) -> dict[str, float | int]:
        """Counts and rates, rounded to four places."""
        return {
            "pairs": self.true_positive + self.false_positive + self.false_negative + self.true_negative,
            "precision": round(self.precision, 4),
            "recall": round(self.recall, 4),
            "f1": round(self.f1, 4),
        }


@dataclass(frozen=True, slots=True)
class Calibration:
    """The thresholds of an encoder and how well they do on each half and, over both halves, in each scenario."""

    encoder: str
    orientation: Orientation
    thresholds: Thresholds
    choosing: Scores
    measured: Scores
    scenarios: dict[str, Scores]
    model: dict[str, str]


def load_pairs(path: str | Path | None = None) -> list[LabelledPair]:
    """Labelled pairs from a JSONL file, or the built-in suite: {"scenario", "equivalent", "a": [s, r, o], "b":
    [s, r, o]}.

    Raises:
        DataError: a row is malformed.
    """
    if path is not None:
        return _split(list(read_rows(path)))
    with resources.as_file(resources.files("factagent.credit") / "calibration_pairs.jsonl") as built_in:
        return _split(list(read_rows(built_in)))


def _split(rows: Sequence[Row]) -> list[LabelledPair]:
    """Alternate between the halves within each scenario and label."""
    seen: dict[tuple[str, bool], int] = {}
    pairs: list[LabelledPair] = []
    for row in rows:
        scenario, equivalent = row.text("scenario"), row.flag("equivalent")
        count = seen[scenario, equivalent] = seen.get((scenario, equivalent), -1) + 1
        half: Half = "measure" if count % 2 else "choose"
        pairs.append(LabelledPair(scenario, row.triple("a"), row.triple("b"), equivalent, half))
    return pairs


class _Table:
    """What the rules found for every pair and configuration, as columns; the thresholds are applied to these."""

    def __init__(self, pairs: Sequence[LabelledPair], encoder: Encoder, config: EquivalenceConfig) -> None:
        rows: list[list[tuple[float, float, float, bool]]] = []
        for pair in pairs:
            conflict = signature_conflict(triple_signature(pair.a), triple_signature(pair.b)) is not None
            rows.append(
                [
                    (
                        one.similarity,
                        1.0 if one.names is None else one.names,
                        1.0 if one.surface else -2.0 if one.relation is None else one.relation,
                        one.oriented and not conflict,
                    )
                    for one in evidence(pair.a, pair.b, encoder, config)
                ]
            )
        table = np.array(rows, dtype=np.float64)
        self.similarity, self.names, self.relation = (table[:, :, column] for column in range(3))
        self.open = table[:, :, 3] > 0
        self.gold = np.array([pair.equivalent for pair in pairs])

    def merged(self, thresholds: Thresholds) -> NDArray[np.bool_]:
        """(P,) verdicts, as `equivalence.compare` gives them."""
        entity = -2.0 if thresholds.entity is None else thresholds.entity
        passed = self.open & (self.similarity + TOLERANCE >= thresholds.similarity)
        passed &= (self.names + TOLERANCE >= entity) & (self.relation + TOLERANCE >= thresholds.relation)
        result: NDArray[np.bool_] = np.any(passed, axis=1, keepdims=False)
        return result


def score(merged: NDArray[np.bool_], gold: NDArray[np.bool_]) -> Scores:
    """Counts of verdicts against labels."""
    return Scores(
        int((merged & gold).sum()),
        int((merged & ~gold).sum()),
        int((~merged & gold).sum()),
        int((~merged & ~gold).sum()),
    )


def calibrate_encoder(
    name: str, orientation: Orientation = "strict", pairs: Sequence[LabelledPair] | None = None
) -> Calibration:
    """Choose the thresholds of an encoder on the choosing half and measure them on the other.

    Under "paper" the reversal scenario cannot be kept apart (credit.md section 2), so its pairs do not count there.
    """
    pairs = [pair for pair in pairs or load_pairs() if orientation == "strict" or pair.scenario != "reversal"]
    encoder = CachedEncoder(name, load_model(name), Thresholds(0.0, 0.0, 0.0))
    texts = [text for pair in pairs for t in (pair.a, pair.b) for text in (t.text, Triple(*t[::-1]).text, *t)]
    encoder.encode(texts)
    table = _Table(pairs, encoder, EquivalenceConfig(orientation=orientation))
    choosing = np.array([pair.half == "choose" for pair in pairs])
    thresholds = choose_thresholds(table, choosing)
    merged = table.merged(thresholds)
    names = list(dict.fromkeys(pair.scenario for pair in pairs))
    of_scenario = {name: np.array([pair.scenario == name for pair in pairs]) for name in names}
    return Calibration(
        name,
        orientation,
        thresholds,
        score(merged[choosing], table.gold[choosing]),
        score(merged[~choosing], table.gold[~choosing]),
        {name: score(merged[mask], table.gold[mask]) for name, mask in of_scenario.items()},
        _model_identity(name),
    )


def choose_thresholds(table: _Table, choosing: NDArray[np.bool_], floor: float = PRECISION_FLOOR) -> Thresholds:
    """The thresholds with the highest recall at precision >= floor; among equals the strictest, similarity first.

    Where no thresholds reach the floor, those with the highest F1.
    """
    best: tuple[bool, float, float, float, float] = (False, -1.0, 1.0, 1.0, 1.0)
    gold = table.gold[choosing]
    for entity in GRID:
        for relation in GRID:
            allowed = table.open & (table.names + TOLERANCE >= entity) & (table.relation + TOLERANCE >= relation)
            highest = np.where(allowed, table.similarity, -2.0).max(axis=1)[choosing]
            merged = highest[None, :] + TOLERANCE >= GRID[:, None]
            hits, wrong = (merged & gold).sum(1), (merged & ~gold).sum(1)
            precision = hits / np.maximum(hits + wrong, 1)
            recall = hits / max(int(gold.sum()), 1)
            f1 = 2 * hits / np.maximum(hits + wrong + gold.sum(), 1)
            for index, similarity in enumerate(GRID):
                reached = bool(precision[index] >= floor)
                goal = recall[index] if reached else f1[index]
                candidate = (reached, float(goal), float(similarity), float(relation), float(entity))
                if candidate > best:
                    best = candidate
    return Thresholds(best[2], best[3], best[4])


def _model_identity(name: str) -> dict[str, str]:
    """The model's name and, where its weights lie in a directory, their SHA-256."""
    path = Path(model_path(name))
    identity = {
        "id": "sentence-transformers/all-MiniLM-L6-v2" if name == "minilm" else path.name if path.is_dir() else name
    }
    weights = path / "model.safetensors"
    if weights.is_file():
        identity["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    return identity


def store_calibration(calibration: Calibration, path: Path) -> None:
    """Write (or replace) the encoder's entry in a thresholds file."""
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"encoders": {}}
    stored["encoders"][calibration.encoder] = calibration_entry(calibration)
    path.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n")


def calibration_entry(calibration: Calibration) -> dict[str, Any]:
    """The JSON object that is stored for an encoder."""
    similarity, relation, entity = calibration.thresholds
    return {
        "similarity_threshold": similarity,
        "relation_threshold": relation,
        "entity_threshold": entity,
        "orientation": calibration.orientation,
        "precision_floor": PRECISION_FLOOR,
        "choosing_half": calibration.choosing.as_dict(),
        "measuring_half": calibration.measured.as_dict(),
        "scenarios": {name: scores.as_dict() for name, scores in calibration.scenarios.items()},
        "model": calibration.model,
    }
