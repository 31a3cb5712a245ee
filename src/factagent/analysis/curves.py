"""Learning curves: one figure of small panels, several runs overlaid, as an SVG data URI.

The figure holds no text from outside (runs are told apart by colour; the page writes their names), and it is the same
for the same numbers.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from factagent.analysis.run_view import RunView, number_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f5d8a", "#c8692b", "#3b8a5a", "#8a4a86", "#a58a1f", "#4aa3b5", "#b0485a", "#5b5b5b")
"""One a run, in order; used again from the start after the eighth."""
COLUMNS = 3
_INK, _GRID = "#333333", "#e6e6e6"
RC: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": "#b5b5b5",
    "axes.labelcolor": _INK,
    "axes.titlesize": 9,
    "axes.titlecolor": _INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": "#666666",
    "ytick.color": "#666666",
    "grid.color": _GRID,
    "svg.hashsalt": "factagent",
    "svg.fonttype": "path",
}


class Panel(NamedTuple):
    """A metric of `metrics.jsonl` (dots look inside) and how it is shown."""

    key: str
    title: str
    percent: bool = False


PANELS = (
    Panel("eval.em", "EM, development questions", True),
    Panel("reward", "Outcome reward, training"),
    Panel("em", "EM, training (sampled)", True),
    Panel("f1", "F1, training (sampled)", True),
    Panel("coverage", "Gold facts in the final store", True),
    Panel("parse_error_rate", "Replies that are no valid action", True),
    Panel("steps_per_trajectory", "Steps per trajectory"),
    Panel("clusters_per_group", "Fact clusters per group"),
    Panel("nonzero_process_share", "Steps with a process reward", True),
    Panel("entropy", "Entropy per token (nats)"),
    Panel("kl_ref", "KL to the reference per token (nats)"),
    Panel("loss", "Loss"),
    Panel("seconds.total", "Seconds per step"),
)
PHASES = ("rollout", "measure", "credit", "learn", "eval", "write")
_PHASE_COLOURS = ("#7c9cc0", "#c98f7a", "#d9b36c", "#8fbf9f", "#c9a0c0", "#b5b5b5")


def smooth(values: Sequence[float]) -> list[float]:
    """Centred running mean over a tenth of the points (at least 3); the window shrinks at both ends."""
    widest, means = max(1, len(values) // 20), []
    for i in range(len(values)):
        half = min(widest, i, len(values) - 1 - i)
        means.append(float(np.mean(values[i - half : i + half + 1])))
    return means


def curves_uri(runs: Sequence[RunView]) -> str | None:
    """The figure as a data URI, or None where no run has a metric to show."""
    panels = [panel for panel in PANELS if any(run.series(panel.key)[0] for run in runs)]
    if not panels:
        return None
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(RC):
        rows = -(-len(panels) // COLUMNS)
        height = 2.1 * rows
        figure = Figure(figsize=(10.4, height))
        # Fixed margins in inches: many times faster than a layout engine, and the panels are alike.
        figure.subplots_adjust(
            left=0.05, right=0.995, bottom=0.25 / height, top=1 - 0.25 / height, wspace=0.2, hspace=0.42
        )
        FigureCanvasSVG(figure)
        grid = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _draw(axes, panel, runs)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        return data_uri(svg_of(figure))


def svg_of(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same drawing."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def data_uri(svg: bytes) -> str:
    """An SVG as a page embeds it."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")


def _draw(axes: Axes, panel: Panel, runs: Sequence[RunView]) -> None:
    from matplotlib.ticker import MaxNLocator

    by_phase = panel.key == "seconds.total" and len(runs) == 1
    axes.set_title(f"{panel.title}, by phase" if by_phase else panel.title)
    axes.grid(axis="y")
    if by_phase:
        _stack_phases(axes, runs[0])
    else:
        for number, run in enumerate(runs):
            draw: Callable[..., None] = _evaluation_line if panel.key.startswith("eval.") else _training_line
            draw(axes, run, panel, COLOURS[number % len(COLOURS)])
        axes.margins(x=0.02, y=0.12)
    if panel.percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _training_line(axes: Axes, run: RunView, panel: Panel, colour: str) -> None:
    steps, values = run.series(panel.key)
    if len(steps) < 6:
        axes.plot(steps, values, color=colour, marker="o", markersize=3, linewidth=1.4)
        return
    axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.35)
    axes.plot(steps, smooth(values), color=colour, linewidth=1.6)


def _evaluation_line(axes: Axes, run: RunView, panel: Panel, colour: str) -> None:
    """Points with their 95 % intervals; the last one may come from the summary (evaluated after the last step)."""
    scores: list[tuple[int, Any]] = [*run.evaluations]
    after = run.summary.get("after")
    last = max((row["step"] for row in run.metrics), default=0)
    if isinstance(after, dict) and last not in {step for step, _ in scores}:
        scores.append((last, after))
    key = panel.key.partition(".")[2]
    points = [(step, value, row) for step, row in scores if (value := number_at(row, key)) is not None]
    axes.plot([p[0] for p in points], [p[1] for p in points], color=colour, marker="o", markersize=3, linewidth=1.6)
    for step, _, row in points:
        low, high = number_at(row, "low"), number_at(row, "high")
        if key == "em" and low is not None and high is not None:
            axes.plot([step, step], [low, high], color=colour, linewidth=1, alpha=0.55)


def _stack_phases(axes: Axes, run: RunView) -> None:
    steps = [row["step"] for row in run.metrics if number_at(row, "seconds.total") is not None]
    rows = {row["step"]: row for row in run.metrics}
    phases = [phase for phase in PHASES if any(number_at(rows[step], f"seconds.{phase}") for step in steps)]
    heights = [[number_at(rows[step], f"seconds.{phase}") or 0.0 for step in steps] for phase in phases]
    if phases:
        colours = [_PHASE_COLOURS[PHASES.index(phase)] for phase in phases]
        width = max(0.8, (max(steps) - min(steps)) / 120)
        floor = np.zeros(len(steps))
        for phase, height, colour in zip(phases, heights, colours, strict=True):
            axes.bar(steps, height, bottom=floor, color=colour, width=width, label=phase)
            floor = floor + np.array(height)
        axes.legend(fontsize=6.5, frameon=False, ncols=3, loc="upper left", handlelength=1, borderaxespad=0.1)
        axes.set_ylim(0, float(floor.max()) * 1.35 or 1.0)
