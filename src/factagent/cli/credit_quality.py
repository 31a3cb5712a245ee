"""`factagent credit-quality`: how well credit separates gold steps from others on a run's saved groups."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from factagent.cli.credit import Options
from factagent.rows import write_row

if TYPE_CHECKING:
    from factagent.credit.quality import Measure
    from factagent.credit.rule_choice import AnyRule


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
    an adversary gained beside the outcome advantage). A table of both goes to standard error. Intervals are 95 %.

    Groups of a protocol without asserts are judged by their searches. The options vine and igpo go on from saved steps
    with the policy of the run's latest checkpoint, unless the protocol appends: saved groups do not hold its tokens.

    Args:
        run: Run directory whose trajectories are judged.
        credit: An option of the grid, one of vine, igpo and tree-grpo, or "name:key=value,key=value", where the key
            rule names another rule. Repeatable; without it the whole grid.
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
    from factagent.credit.quality import cells, has_asserts, quality
    from factagent.errors import DataError
    from factagent.runs import RunDirectory, read_groups

    base = options or Options()
    named_options(base, credit)  # refuse a wrong option before reading
    RunDirectory.open(run)
    groups = [group for _, group, _ in islice(read_groups(run, step), limit)]
    if not groups:
        raise DataError(f"{run} holds no saved groups" + ("" if step is None else f" of step {step}"))
    asserts = has_asserts(groups)
    if not asserts and "needs_facts" not in base.model_fields_set:
        base = base.model_copy(update={"needs_facts": False})
    configs = named_options(base, credit)
    chosen = tuple(ADVERSARIES) if adversaries else ()
    rows = quality(
        groups,
        configs,
        base.load_encoder(),
        measure=_measurer(run, seed, configs.values()),
        adversaries=chosen,
        seed=seed,
        resamples=resamples,
    )
    shown = []
    for row in track(rows, "credit quality", cells(configs, chosen, asserts=asserts), console=console()):
        write_row(row)
        shown.append(row)
    print_tables(shown)


def _measurer(run: Path, seed: int, configs: Iterable[AnyRule]) -> Measure:
    """What measures the run's groups; torch is loaded only where an option needs it."""
    from factagent.credit.quality import no_measurement

    if all(config.needs is None for config in configs):
        return no_measurement
    from factagent.train.run_measure import measurer_of_run

    return measurer_of_run(run, seed)
