"""The report of an arena: `report.md`, `report.html`, `curves.svg` and `table.json`, at any time, finished or not."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from factagent import __version__
from factagent.analysis.curves import data_uri
from factagent.analysis.html import Html, stylesheet, tag
from factagent.analysis.report import POLICY
from factagent.arena.config import ArenaConfig
from factagent.arena.confirm import read_confirmed
from factagent.arena.figure import curves_svg
from factagent.arena.plan import Places, planned_runs
from factagent.arena.reading import read_records
from factagent.arena.sections import Section, TableView, sections, status
from factagent.arena.table import arena_table
from factagent.evaluation.tables import table as markdown_table
from factagent.run_files import make_directory, replace

CURVES_NAME = "curves.svg"
CAPTION = (
    "Scores on development questions, greedy decoding: means over the seeds that were evaluated there, with 95 % "
    "intervals (Student's t). Above over training steps, below over the tokens generated in training."
)


def write_arena_report(arena: ArenaConfig, root: Path) -> dict[str, Any]:
    """Read every run of the arena, write its report into `root`, and return the table.

    Raises:
        ConfigError: an entry's configuration is refused.
        DataError: a file of a run is malformed beyond a torn tail.
        UsageError: `root` cannot be made.
    """
    places = Places(root)
    records = read_records(planned_runs(arena, places), places)
    table = arena_table(arena, records, read_confirmed(root))
    titles = {name: row["title"] for name, row in table["entries"].items()}
    svg = curves_svg(titles, records)
    make_directory(root)
    if svg is not None:
        replace(root / CURVES_NAME, svg)
    replace(root / "report.md", markdown(table, curves=svg is not None).encode())
    replace(root / "report.html", page(table, svg).encode())
    replace(root / "table.json", json.dumps(table, indent=2, ensure_ascii=False).encode() + b"\n")
    return table


def markdown(table: dict[str, Any], *, curves: bool) -> str:
    """The report in Markdown; `curves` says whether the figure stands beside it."""
    parts = [f"# {table['name']}", status(table)]
    for section in sections(table):
        parts.append(f"## {section.title}")
        if section.table is not None:
            parts.append(markdown_table(section.table.head, section.table.rows, section.table.text))
        parts += section.notes
    if curves:
        parts += ["## Learning curves", f"![Learning curves]({CURVES_NAME})", CAPTION]
    return "\n\n".join(parts) + "\n"


def page(table: dict[str, Any], svg: bytes | None) -> str:
    """The report as one HTML file that asks for nothing from elsewhere."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{table['name']} – FactAgent arena"),
        stylesheet((resources.files("factagent.analysis") / "report.css").read_text("utf-8")),
    )
    header = tag(
        "header",
        tag("p", "FactAgent · arena", class_="kicker"),
        tag("h1", table["name"]),
        tag("p", status(table), class_="lead"),
        class_="top",
    )
    footer = tag("footer", tag("p", f"Made by factagent {__version__} from the run directories' files. No scripts."))
    body = tag("body", tag("main", header, [_section(each) for each in sections(table)], _figure(svg), footer))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _section(section: Section) -> Html:
    shown = None if section.table is None else _table(section.table)
    return tag("section", tag("h2", section.title), shown, [tag("p", note, class_="quiet") for note in section.notes])


def _table(table: TableView) -> Html:
    heads = [
        tag("th", text, scope="col", class_=None if i < table.text else "number") for i, text in enumerate(table.head)
    ]
    rows = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            [tag("td", cell, class_=None if i < table.text else "number") for i, cell in enumerate(row[1:], start=1)],
        )
        for row in table.rows
    ]
    return tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))


def _figure(svg: bytes | None) -> Html | None:
    if svg is None:
        return None
    image = tag("img", src=data_uri(svg), alt="Learning curves of all entries")
    return tag("section", tag("h2", "Learning curves"), tag("figure", image, tag("figcaption", CAPTION)))
