"""`factagent report`: one self-contained HTML file about one or several runs.

The page holds no script and asks for nothing from elsewhere (its content security policy forbids both), so it can be
mailed, archived and printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from factagent import __version__
from factagent.analysis.curves import curves_uri
from factagent.analysis.group_page import group_page
from factagent.analysis.html import Html, stylesheet, tag
from factagent.analysis.run_view import RunView, instructive_group, number_at, read_run
from factagent.analysis.tables import config_table, cost_table, duration, notes_list, run_name, score_rows, score_table
from factagent.errors import UsageError

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
REPORT_NAME = "report.html"


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Read the runs and write their report; returns the path of the file.

    Args:
        paths: run directories; in figures they are overlaid in this order.
        out: the file; by default `report.html` in the first run.

    Raises:
        UsageError: no run given, or a path is no run directory.
        DataError: a run's file is malformed beyond a torn tail.
    """
    if not paths:
        raise UsageError("give at least one run directory")
    target = out if out is not None else paths[0] / REPORT_NAME
    if target.is_dir():
        raise UsageError(f"{target} is a directory; give a file name to --out")
    page = render_report([read_run(path) for path in paths])
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".tmp")
    partial.write_text(page, "utf-8")
    partial.replace(target)
    return target


def render_report(runs: Sequence[RunView]) -> str:
    """The whole page."""
    title = " · ".join(run.name for run in runs)
    example = _example(runs)
    sections = [
        _section("Scores", [_scores(number, run, len(runs) > 1) for number, run in enumerate(runs)]),
        _section("Learning curves", _curves(runs)),
        _section("Cost", cost_table(runs)),
        _section("Configuration", config_table(runs), [_full_config(n, run) for n, run in enumerate(runs)]),
        example,
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} – FactAgent report"),
        stylesheet((resources.files("factagent.analysis") / "report.css").read_text("utf-8")),
    )
    # Notes come last in the making: reading the example group may add some.
    body = tag("body", tag("main", _header(title, runs), notes_list(runs), sections, _footer()))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _header(title: str, runs: Sequence[RunView]) -> Html:
    lead = [tag("p", _headline(number, run, named=len(runs) > 1), class_="lead") for number, run in enumerate(runs)]
    return tag("header", tag("p", "FactAgent · training report", class_="kicker"), tag("h1", title), lead, class_="top")


def _headline(number: int, run: RunView, *, named: bool) -> list[Html | str]:
    """The result of a run in a sentence."""
    text: list[Html | str] = [run_name(number, run), ": "] if named else []
    rows = score_rows(run)
    before, after = (rows[0].before, rows[0].after) if rows else (None, None)
    if before is None or after is None:
        return [*text, "No score before and after training is stored for this run."]
    wall = number_at(run.summary, "seconds") or sum(run.series("seconds.total")[1])
    steps = sum(row["step"] > 0 for row in run.metrics)
    questions = f" on {rows[0].questions:,} development questions" if rows[0].questions is not None else ""
    change = 100 * (after.em - before.em)
    text += ["Exact match ", tag("strong", f"{100 * before.em:.1f} → {100 * after.em:.1f} %")]
    return [*text, f" ({change:+.1f} points){questions}, {steps:,} steps in {duration(wall)}."]


def _section(title: str, *contents: Html | list[Html] | None) -> Html:
    return tag("section", tag("h2", title), contents)


def _scores(number: int, run: RunView, named: bool) -> Html:
    return tag("div", tag("h3", run_name(number, run)) if named else None, score_table(run))


def _curves(runs: Sequence[RunView]) -> Html:
    uri = curves_uri(runs)
    if uri is None:
        return tag("p", "No step has been logged yet.", class_="quiet")
    legend = [run_name(number, run) for number, run in enumerate(runs)] if len(runs) > 1 else []
    caption = (
        "Horizontal axis: training step. Thin lines are single steps, thick ones a centred running mean over a tenth "
        "of the steps; bars at the evaluations are 95 % intervals."
    )
    return tag(
        "figure",
        tag("p", legend, class_="legend") if legend else None,
        tag("img", src=uri, alt="Learning curves of the metrics named in the panels"),
        tag("figcaption", caption),
    )


def _full_config(number: int, run: RunView) -> Html:
    return tag("details", tag("summary", "config.toml of ", run_name(number, run)), tag("pre", run.config_text))


def _example(runs: Sequence[RunView]) -> Html:
    for number, run in enumerate(runs):
        view = instructive_group(run)
        if view is not None:
            source = tag("p", "From ", run_name(number, run), class_="quiet") if len(runs) > 1 else None
            return _section("One group, from facts to rewards", source, group_page(view))
    return _section("One group, from facts to rewards", tag("p", "No run stored its trajectories.", class_="quiet"))


def _footer() -> Html:
    return tag("footer", tag("p", f"Made by factagent {__version__} from the run directories' files. No scripts."))
