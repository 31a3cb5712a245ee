"""`factagent score`: answer metrics for rows of predictions."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated

from cyclopts import Parameter

from factagent import rewards
from factagent.rows import read_rows, write_row


def score(file: str, /, *, per_row: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Score predictions against gold answers.

    Reads {"prediction": str, "golds": [str]} a line and prints {"n", "em", "f1", "cover_em"}, the means over all rows.

    Args:
        file: JSONL file (.gz and .zst too), or - for standard input.
        per_row: First print {"em", "f1", "cover_em"} for each row, in order.
    """
    metrics = {"em": rewards.exact_match, "f1": rewards.f1, "cover_em": rewards.cover_em}
    scores: list[dict[str, float]] = []
    for row in read_rows(file):
        prediction, golds = row.text("prediction"), row.texts("golds")
        scores.append({name: metric(prediction, golds) for name, metric in metrics.items()})
        if per_row:
            write_row(scores[-1])
    means = {name: fmean(s[name] for s in scores) if scores else None for name in metrics}
    write_row({"n": len(scores), **means})
