"""The documents say what is: links lead somewhere, the README's code runs, tables of commands and reasons are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from factagent.cli.app import COMMANDS, GROUPS
from factagent.protocols.actions import REASONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_code_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    right, wrong = read_rows(capsys.readouterr().out)
    assert len(right) == len(wrong) == 3
    assert min(right) > 0 > max(wrong)


def read_rows(printed: str) -> list[list[float]]:
    rows = re.findall(r"\[([^\[\]]+)\]", printed)
    return [[float(number) for number in row.split(",")] for row in rows]


def test_the_reference_names_every_command_and_reason() -> None:
    commands = [*COMMANDS, *(f"{group} {name}" for group, (_, names) in GROUPS.items() for name in names)]
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    table, _ = page.split("## Training by hand")
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == commands
    page = (ROOT / "docs/reference/files.md").read_text(encoding="utf-8")
    assert [name for name in REASONS if f"| `{name}` |" not in page] == []
