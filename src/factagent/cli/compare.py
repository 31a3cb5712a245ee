"""`factagent compare`: evaluations held against each other, question by question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from factagent.cli.markdown import print_markdown
from factagent.rows import write_row


def compare(
    *runs: Path,
    seed: int = 0,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Hold evaluations against the first: paired differences of EM and F1 with intervals and exact tests.

    Args:
        runs: Directories of two or more finished evaluations; questions are matched by set and id.
        seed: Of the bootstrap and the sign flips.
        json_: Print one JSON object instead of the tables.
    """
    from factagent.evaluation.compare import as_plain
    from factagent.evaluation.compare import compare as compare_runs
    from factagent.evaluation.compare_tables import comparison_markdown

    comparisons = compare_runs(runs, seed)
    if json_:
        write_row(as_plain(comparisons))
    else:
        print_markdown(comparison_markdown(comparisons))
