from __future__ import annotations

import json
from pathlib import Path

import pytest

from factagent.cli.app import main
from factagent.data.corpus import read_passages
from factagent.data.dataset import read_questions
from factagent.types import Passage, Question

HOTPOT = {
    "_id": "h",
    "question": "Who?",
    "answer": "x",
    "supporting_facts": [["T", 0]],
    "context": [["T", ["one", " two"]], ["U", ["three"]]],
}


@pytest.fixture
def hotpot(tmp_path: Path) -> Path:
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([HOTPOT, HOTPOT | {"_id": "i", "level": "hard"}]))
    return path


def test_show_prints_what_was_recognised(hotpot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", str(hotpot), "--limit", "1"]) == 0
    head, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    fields = {"_id": 2, "question": 2, "answer": 2, "supporting_facts": 2, "context": 2, "level": 1}
    assert head == {"path": str(hotpot), "format": "hotpotqa", "holds": "questions", "rows": 2, "fields": fields}
    assert rows == [{"id": "h", "question": "Who?", "answers": ["x"], "hops": 1, "supporting_titles": ["T"]}]
    assert main(["data", "show", str(hotpot), "--as", "passages", "--limit", "9"]) == 0
    head, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert (head["holds"], head["rows"], [row["text"] for row in rows]) == ("passages", 2, ["one two", "three"])


def test_convert_writes_our_rows(hotpot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, passages = tmp_path / "qa.jsonl.gz", tmp_path / "corpus.jsonl.zst"
    assert main(["data", "convert", str(hotpot), "--out", str(questions)]) == 0
    assert main(["data", "convert", str(hotpot), "--as", "passages", "--out", str(passages)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{questions}: 2 questions (from format hotpotqa)",
        f"{passages}: 2 passages (from format hotpotqa)",
    ]
    assert read_questions(questions)[1] == Question("i", "Who?", ("x",), hops=1, supporting_titles=("T",))
    assert [(passage.title, passage.text) for passage in read_passages(passages)] == [("T", "one two"), ("U", "three")]


def test_convert_splits_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs, out = tmp_path / "docs", tmp_path / "corpus.jsonl"
    docs.mkdir()
    (docs / "a.txt").write_text("One two. Three four.")
    (docs / "b.txt").write_text("")
    arguments = ["data", "convert", str(docs), "--out", str(out), "--words", "2"]
    assert main(arguments) == 65
    assert "b.txt: holds no text" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--skip-unreadable"]) == 0
    assert read_passages(out) == [Passage("a.txt#1", "a", "One two."), Passage("a.txt#2", "a", "Three four.")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "docs"]


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["show", "HOTPOT", "--limit", "-1"], 2, "--limit must not be negative, found -1"),
        (["show", "HOTPOT", "--format", "hotpot"], 2, "unknown format 'hotpot'"),
        (["show", "none.json"], 65, "none.json: does not exist"),
        (["convert", "HOTPOT", "--out", "no/where/x.jsonl"], 2, "the directory no/where does not exist"),
        (["convert", "HOTPOT", "--out", "OLD"], 2, "exists; give --force to replace it"),
        (["convert", "HOTPOT", "--out", "x.jsonl", "--words", "0"], 2, "--words must be at least 1, found 0"),
        (["convert", "HOTPOT", "--out", "x.parquet"], 2, "x.parquet: the output is JSON lines"),
    ],
)
def test_refusals(
    hotpot: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, problem: str
) -> None:
    old = hotpot.with_name("old.jsonl")
    old.touch()
    given = [{"HOTPOT": str(hotpot), "OLD": str(old)}.get(argument, argument) for argument in arguments]
    assert main(["data", *given]) == code
    assert problem in capsys.readouterr().err


def test_a_failed_conversion_leaves_the_old_file(tmp_path: Path, hotpot: Path) -> None:
    out = tmp_path / "qa.jsonl"
    out.write_text("old")
    hotpot.write_text(json.dumps([HOTPOT, HOTPOT]))
    assert main(["data", "convert", str(hotpot), "--out", str(out), "--force"]) == 65
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hotpot.json", "qa.jsonl"]
