"""`factagent calibrate`: the thresholds of an encoder, measured on labelled pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def calibrate(
    *,
    encoder: str = "minilm",
    orientation: Literal["paper", "strict"] = "strict",
    pairs: str | None = None,
    out: Annotated[Path | None, Parameter(name="--out")] = None,
) -> None:
    """Choose the equivalence thresholds of an encoder on one half of a labelled suite and measure them on the other.

    Prints precision, recall and F1 for each of the 19 scenarios and for both halves, and the thresholds.

    Args:
        encoder: "minilm", or a sentence-transformers model or directory.
        orientation: The rules under which to calibrate.
        pairs: JSONL of {"scenario", "equivalent", "a": [s, r, o], "b": [s, r, o]}; the built-in suite by default.
        out: Thresholds file to write the entry into, created if missing; FACTAGENT_THRESHOLDS names one to read.
    """
    from rich.console import Console
    from rich.table import Table

    from factagent.credit.calibration import calibrate_encoder, load_pairs, store_calibration

    result = calibrate_encoder(encoder, orientation, load_pairs(pairs))
    table = Table("scenario", "pairs", "precision", "recall", "F1", title=f"{encoder}, {orientation}")
    rows = [*result.scenarios.items(), ("half that chose", result.choosing), ("half that measures", result.measured)]
    for name, scores in rows:
        shown = scores.as_dict()
        table.add_row(name, str(shown["pairs"]), *(f"{shown[key]:.3f}" for key in ("precision", "recall", "f1")))
    console = Console()
    console.print(table)
    similarity, relation, entity = result.thresholds
    console.print(f"similarity_threshold {similarity}  relation_threshold {relation}  entity_threshold {entity}")
    if out is not None:
        store_calibration(result, out)
        console.print(f"stored in {out}")
