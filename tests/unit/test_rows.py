"""Reading and writing JSON lines; every error names file, line and field."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest
import zstandard

from factagent.errors import DataError
from factagent.rows import Row, iter_rows, read_rows, write_row
from factagent.types import Triple

LINES = b'{"a": 1}\n\n{"a": 2}'


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("rows.jsonl", lambda data: data),
        ("rows.jsonl.gz", gzip.compress),
        ("rows.jsonl.zst", zstandard.compress),
        ("bom.jsonl", lambda data: b"\xef\xbb\xbf" + data),
        ("crlf.jsonl", lambda data: data.replace(b"\n", b"\r\n")),
    ],
)
def test_rows_keep_their_line_numbers(tmp_path: Path, name: str, pack: object) -> None:
    assert callable(pack)
    (tmp_path / name).write_bytes(pack(LINES))
    assert list(iter_rows(str(tmp_path / name))) == [(1, {"a": 1}), (3, {"a": 2})]


def test_several_zstd_frames_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"a": 1}\n') + zstandard.compress(b'{"a"') + zstandard.compress(b": 2}\n"))
    assert [fields for _, fields in iter_rows(path)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("source", ["-", "<stdin>"])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}\nnope\n')))
    rows = iter_rows(source)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(DataError, match=r"<stdin>:2: is not JSON"):
        next(rows)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "is not JSON"),
        (b"[1]", r"must be a JSON object, found \[1\]"),
        (b"null", "must be a JSON object, found None"),
        (b'{"a": NaN}', "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": "\\ud800", "b": NaN}', "is not JSON"),
    ],
)
def test_malformed_lines(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"fine": 1}\n' + line + b"\n")
    with pytest.raises(DataError, match=rf"bad\.jsonl:2: {problem}") as caught:
        list(iter_rows(path))
    assert caught.value.exit_code == 65


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("absent.jsonl", None, "No such file"),
        ("cut.jsonl.gz", gzip.compress(LINES * 50, mtime=0)[:-4], "end-of-stream"),
        ("cut.jsonl.zst", zstandard.compress(LINES * 50)[:-2], "the last zstd frame is cut off"),
        ("plain.jsonl.gz", LINES, "gzip"),
        ("plain.jsonl.zst", LINES, "frame"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: cannot be read: .*{problem}"):
        list(iter_rows(path))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        list(iter_rows(tmp_path))


def row(**fields: object) -> Row:
    return Row("f.jsonl", 7, fields)


def test_getters_return_typed_values() -> None:
    fields = row(
        text="t", number=2, flag=False, golds=["x", "y"], one="x", a=[" s ", "r", "o"],
        many=[["a", "b", "c"], ["d", "e", "f"]], inner={"k": "v"}, null=None,
    )  # fmt: skip
    assert fields.text("text") == "t"
    assert fields.number("number") == 2.0
    assert fields.integer("number") == 2
    assert fields.flag("flag") is False
    assert fields.texts("golds") == ("x", "y")
    assert fields.texts("one") == ("x",)
    assert fields.triple("a") == Triple("s", "r", "o")
    assert fields.triples("many") == (Triple("a", "b", "c"), Triple("d", "e", "f"))
    assert fields.row("inner").text("k") == "v"
    assert fields.choice("text", ["t", "u"]) == "t"
    assert fields.text("absent", "default") == "default"
    assert fields.text("null", "default") == "default"
    assert fields.triples("absent", ()) == ()
    assert (fields.has("text"), fields.has("null"), fields.has("absent")) == (True, False, False)


@pytest.mark.parametrize(
    ("getter", "name", "value", "problem"),
    [
        ("text", "query", 3, "field 'query': must be a string, found 3"),
        ("number", "n", True, "field 'n': must be a number, found True"),
        ("number", "n", "1", "field 'n': must be a number, found '1'"),
        ("integer", "n", 1.5, "field 'n': must be a whole number, found 1.5"),
        ("flag", "f", 1, "field 'f': must be true or false, found 1"),
        ("texts", "golds", ["a", 2], "field 'golds[1]': must be a string, found 2"),
        ("texts", "golds", {}, "field 'golds': must be a list of strings, found {}"),
        ("triple", "a", ["s", "r"], "field 'a': must be a list of three strings, found 2 items"),
        ("triple", "a", ["s", "r", None], "field 'a[2]': must be a string, found None"),
        ("triple", "a", "sro", "field 'a': must be a list of three strings, found 'sro'"),
        ("triples", "t", [["s", "r", "o"], 4], "field 't[1]': must be a list of three strings, found 4"),
        ("row", "r", [], "field 'r': must be an object, found []"),
        ("rows", "r", [{}, 1], "field 'r[1]': must be an object, found 1"),
    ],
)
def test_getters_refuse_other_types(getter: str, name: str, value: object, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        getattr(row(**{name: value}), getter)(name)
    assert str(caught.value) == f"f.jsonl:7: {problem}"


def test_missing_null_and_unknown_choices() -> None:
    with pytest.raises(DataError, match="field 'q': is missing"):
        row().text("q")
    with pytest.raises(DataError, match="field 'q': is null"):
        row(q=None).text("q")
    with pytest.raises(DataError, match="field 'q': must be one of a, b, found 'c'"):
        row(q="c").choice("q", ["a", "b"])
    with pytest.raises(DataError, match="field 'q': unknown field; allowed are a, b"):
        row(a=1, q=1).refuse_unknown(["a", "b"])


def test_nested_paths(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text(json.dumps({"trajectories": [{"steps": []}, {"steps": [{"query": 5}]}]}))
    (group,) = read_rows(path)
    step = group.rows("trajectories")[1].rows("steps")[0]
    with pytest.raises(DataError, match=r"groups\.jsonl:1: field 'trajectories\[1\]\.steps\[0\]\.query'"):
        step.text("query")


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(DataError) as caught:
        row(q=["x" * 1000]).text("q")
    assert len(str(caught.value)) < 120


def test_written_rows_can_be_read_again(tmp_path: Path) -> None:
    rows = [{"text": "lone \ud800 half", "n": 1.5}, {"text": "é\u2028\n", "big": 2**70}]
    path = tmp_path / "out.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for fields in rows:
            write_row(fields, stream)
    read = [fields for _, fields in iter_rows(path)]
    assert read[0] == rows[0]
    assert read[1]["text"] == rows[1]["text"]
    assert float(str(read[1]["big"])) == 2.0**70


def test_write_row_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_row({"b": [1, None], "a": "x\ny"})
    assert capsys.readouterr().out == '{"b":[1,null],"a":"x\\ny"}\n'
