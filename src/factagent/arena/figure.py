"""Learning curves of an arena: dev scores over steps and over generated tokens, means over seeds with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from factagent.analysis.curves import COLOURS, RC, svg_of
from factagent.arena.reading import METRICS, Metric, RunRecord
from factagent.arena.sections import TITLES
from factagent.arena.statistics import over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKEN_POINTS = 25
"""Places on the axis of tokens at which means are taken."""

_STYLES = ("-", "--", ":", "-.")

Curve = tuple[list[float], list[float], list[float], list[float]]
"""Places, means, and the ends of their intervals."""


def curves_svg(titles: Mapping[str, str], records: Sequence[RunRecord]) -> bytes | None:
    """The figure as SVG, with a legend; None where nothing was evaluated yet.

    Args:
        titles: how each entry is named, in the order of the legend.
        records: the runs.
    """
    shown = [metric for metric in METRICS if any(p.scores[metric] is not None for r in records for p in r.points)]
    if not shown:
        return None
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(RC):
        figure = Figure(figsize=(10.4, 6.4), layout="constrained")
        FigureCanvasSVG(figure)
        grid = figure.subplots(2, len(shown), squeeze=False)
        for column, metric in enumerate(shown):
            for axes, kind, curve in zip(
                grid[:, column], ("step", "generated tokens"), (by_step, by_tokens), strict=True
            ):
                _draw(axes, titles, records, metric, curve)
                axes.set(title=TITLES[metric], xlabel=kind)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        return svg_of(figure)


def by_step(records: Sequence[RunRecord], metric: Metric) -> Curve:
    """At every step that a run evaluated, over the runs that did."""
    steps = sorted({point.step for record in records for point in record.points})

    def at(step: float) -> Callable[[RunRecord], float | None]:
        return lambda record: next((point.scores[metric] for point in record.points if point.step == step), None)

    return _curve([float(step) for step in steps], records, at)


def by_tokens(records: Sequence[RunRecord], metric: Metric) -> Curve:
    """On an even grid up to the number of tokens that all of the runs reached."""
    evaluated = [record for record in records if record.points]
    last = min((record.tokens for record in evaluated), default=0.0)
    places = np.linspace(0.0, last, TOKEN_POINTS).tolist() if last else [0.0]
    return _curve(places, evaluated, lambda tokens: lambda record: record.at_tokens(metric, tokens))


def _curve(
    places: Sequence[float], records: Sequence[RunRecord], at: Callable[[float], Callable[[RunRecord], float | None]]
) -> Curve:
    found = [(place, estimate) for place in places if (estimate := over_seeds(records, at(place))) is not None]
    means = [estimate.mean for _, estimate in found]
    low = [estimate.mean if estimate.low is None else estimate.low for _, estimate in found]
    high = [estimate.mean if estimate.high is None else estimate.high for _, estimate in found]
    return [place for place, _ in found], means, low, high


def _draw(
    axes: Axes,
    titles: Mapping[str, str],
    records: Sequence[RunRecord],
    metric: Metric,
    curve: Callable[[Sequence[RunRecord], Metric], Curve],
) -> None:
    for number, (entry, title) in enumerate(titles.items()):
        places, means, low, high = curve([record for record in records if record.entry == entry], metric)
        colour, style = COLOURS[number % len(COLOURS)], _STYLES[number // len(COLOURS) % len(_STYLES)]
        # "$" would start a formula.
        label = title.replace("$", r"\$")
        axes.plot(places, means, color=colour, linestyle=style, linewidth=1.5, label=label)
        # Many bands lie on top of each other.
        axes.fill_between(places, low, high, color=colour, alpha=min(0.1, 0.25 / len(titles)), linewidth=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    axes.grid(axis="y")
    axes.margins(x=0.02)
