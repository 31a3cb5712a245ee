"""`factagent equivalence`: pairs of triples, judged by the two-stage test."""

from __future__ import annotations

from typing import Literal

from factagent.rows import read_rows, write_row


def equivalence(file: str, /, *, encoder: str = "minilm", orientation: Literal["paper", "strict"] = "paper") -> None:
    """Decide whether pairs of triples state the same fact, and say which rule decided.

    Reads {"a": [s, r, o], "b": [s, r, o]} a line and prints {"equivalent", "similarity", "configuration", "reason"}.

    Args:
        file: JSONL file (.gz and .zst too), or - for standard input.
        encoder: "exact" (normalised strings equal), "minilm", or a sentence-transformers model or directory.
        orientation: "paper" merges a fact with its reversal, "strict" only where voice or relation allow it.
    """
    from factagent.credit.encoders import load_encoder
    from factagent.credit.equivalence import EquivalenceConfig, compare_all

    config = EquivalenceConfig(equivalence="exact" if encoder == "exact" else "semantic", orientation=orientation)
    model = load_encoder(encoder)
    pairs = ((row.triple("a"), row.triple("b")) for row in read_rows(file))
    for verdict in compare_all(pairs, model, config):
        write_row(
            {
                "equivalent": verdict.equivalent,
                "similarity": round(verdict.similarity, 6),
                "configuration": verdict.configuration,
                "reason": verdict.reason,
            }
        )
