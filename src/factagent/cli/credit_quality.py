"""`factagent credit-quality`: how well credit separates gold steps from others on a run's saved groups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from factagent.cli.credit import Options
from factagent.rows import write_row


def credit_quality(
    run: Path,
    /,
    *,
    credit: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    step: NonNegativeInt | None = None,
    limit: PositiveInt | None = None,
    adversaries: bool = True,
    seed: int = 0,
    resamples: PositiveInt = 1000,
    options: Annotated[Options | None, Parameter(name="*")] = None,
) -> None:
    """Measure how well credit separates gold steps from others, on saved groups and under adversarial rewrites.

    Prints one JSON object a line: rows with "table": "auc" (area under the ROC curve of step advantages, asserts of a
    gold triple or searches that returned a gold passage against the others, by kind of group) and "table": "gain" (what
    an adversary gained in process reward). A table of both goes to standard error. Intervals are 95 %.

    Args:
        run: Run directory whose trajectories are judged.
        credit: An option of the grid, or "name:key=value,key=value". Repeatable; without it the whole grid.
        step: Only the groups of this training step.
        limit: Only the first so many groups.
        adversaries: Also rewrite the groups as adversarial policies would have.
        seed: Seed of the adversaries and of the bootstrap over questions.
        resamples: Resamples of the bootstrap.
    """
    from itertools import islice

    from rich.progress import track

    from factagent.cli.quality_table import console, print_tables
    from factagent.credit.adversaries import ADVERSARIES
    from factagent.credit.options import named_options
    from factagent.credit.quality import cells, quality
    from factagent.errors import DataError
    from factagent.runs import RunDirectory, read_groups

    base = options or Options()
    configs = named_options(base, credit)
    RunDirectory.open(run)
    groups = [group for _, group, _ in islice(read_groups(run, step), limit)]
    if not groups:
        raise DataError(f"{run} holds no saved groups" + ("" if step is None else f" of step {step}"))
    chosen = tuple(ADVERSARIES) if adversaries else ()
    rows = quality(groups, configs, base.load_encoder(), adversaries=chosen, seed=seed, resamples=resamples)
    shown = []
    for row in track(rows, "credit quality", cells(configs, chosen), console=console()):
        write_row(row)
        shown.append(row)
    print_tables(shown)
