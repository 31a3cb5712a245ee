"""The formula of BM25, for arrays of postings.

    score(t, d) = idf(t) * tfc(t, d),   K(d) = k1 * (1 - b + b * |d| / average |d|)

    method      idf                                        tfc
    lucene      ln(1 + (N - df + 0.5) / (df + 0.5))        tf / (K + tf)
    robertson   ln(max(1, (N - df + 0.5) / (df + 0.5)))    tf / (K + tf)
    atire       ln(N / df)                                 tf * (k1 + 1) / (K + tf)

(Kamphuis et al., 2020.) The operations stand in the order and in the precision that bm25s uses, so the scores equal
those of `bm25s.BM25.index` bit for bit; a test holds them together. bm25s itself needs all documents at once, in lists.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from factagent.retrieval.manifest import BM25Settings

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


def inverse_frequencies(document_frequencies: Integers, passages: int, settings: BM25Settings) -> Floats:
    """The idf of each term, float32 of the same shape, from the number of passages that hold it (at least 1)."""
    values, places = np.unique(document_frequencies, return_inverse=True)
    table = [_inverse_frequency(int(value), passages, settings.method) for value in values]
    return np.array(table, np.float32)[places]


def score(
    frequencies: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    inverse: Floats,
    average_length: float,
    settings: BM25Settings,
) -> Floats:
    """Scores of postings, float32 (P,).

    Args:
        frequencies: (P,), how often the term occurs in the passage.
        lengths: (P,), words of the passage.
        inverse: (P,), idf of the term.
        average_length: mean number of words of all passages of the corpus.
        settings: constants and variant.
    """
    k1, b, counts = settings.k1, settings.b, frequencies.astype(np.float32)
    saturation = k1 * ((1 - b) + b * lengths.astype(np.float64) / average_length) + counts
    if settings.method == "atire":
        counts *= np.float32(k1 + 1)
    scores: Floats = (inverse * (counts / saturation)).astype(np.float32)
    return scores


def _inverse_frequency(frequency: int, passages: int, method: str) -> float:
    odds = (passages - frequency + 0.5) / (frequency + 0.5)
    if method == "lucene":
        return math.log(1 + odds)
    return math.log(max(1, odds)) if method == "robertson" else math.log(passages / frequency)
