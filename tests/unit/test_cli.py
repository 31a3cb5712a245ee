"""The command line: offline tools end to end, exit codes, messages, and what `--help` may not load."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from factagent import __version__
from factagent.cli.app import COMMANDS, GROUPS, main
from factagent.errors import ConfigError, DataError, MissingExtraError, TryAgainError

Captured = pytest.CaptureFixture[str]


def write_rows(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read_output(capsys: Captured) -> list[object]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def error_line(capsys: Captured) -> str:
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("factagent: error: ")
    return line.removeprefix("factagent: error: ")


def test_parse(tmp_path: Path, capsys: Captured) -> None:
    triple = {"subject": "s", "relation": "r", "object": "o"}
    texts = [
        '{"action": "search", "parameters": {"query": "q"}}',
        json.dumps({"action": "assert", "parameters": {"triples": [triple], "evidence_summary": "e"}}),
        '<think>t</think>{"action": "answer", "parameters": {"response": "é"}}',
        "nothing",
        '{"action": "search", "parameters": {"query": "\ud800"}}',
    ]
    assert main(["parse", write_rows(tmp_path / "f.jsonl", *({"text": text} for text in texts))]) == 0
    assert read_output(capsys) == [
        {"action": "search", "query": "q"},
        {"action": "assert", "triples": [["s", "r", "o"]], "summary": "e"},
        {"action": "answer", "response": "é"},
        {"invalid": "no_json", "detail": "found 'nothing'"},
        {"invalid": "lone_surrogate", "detail": "parameters.query holds U+D800 at character 0"},
    ]


SCORED = [
    {"prediction": "Barack Hussein Obama", "golds": ["Barack Obama"]},
    {"prediction": "the Obama", "golds": ["x", "Obama"]},
    {"prediction": "it is Obama", "golds": "Obama"},
]


def test_score(tmp_path: Path, capsys: Captured) -> None:
    assert main(["score", write_rows(tmp_path / "f.jsonl", *SCORED)]) == 0
    (summary,) = read_output(capsys)
    assert summary == {"n": 3, "em": pytest.approx(1 / 3), "f1": pytest.approx((0.8 + 1 + 0.5) / 3), "cover_em": 2 / 3}


def test_score_per_row(tmp_path: Path, capsys: Captured) -> None:
    assert main(["score", write_rows(tmp_path / "f.jsonl", *SCORED), "--per-row"]) == 0
    *rows, summary = read_output(capsys)
    assert rows == [
        {"em": 0.0, "f1": pytest.approx(0.8), "cover_em": 0.0},
        {"em": 1.0, "f1": 1.0, "cover_em": 1.0},
        {"em": 0.0, "f1": 0.5, "cover_em": 1.0},
    ]
    assert isinstance(summary, dict)
    assert summary["n"] == 3


def test_score_of_nothing_has_no_means(tmp_path: Path, capsys: Captured) -> None:
    assert main(["score", write_rows(tmp_path / "f.jsonl")]) == 0
    assert read_output(capsys) == [{"n": 0, "em": None, "f1": None, "cover_em": None}]


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "{}"}\n{"text": 3}\n')))
    assert main(["parse", "-"]) == 65
    output = capsys.readouterr()
    assert json.loads(output.out) == {"invalid": "missing_field", "detail": "action is missing"}
    assert output.err == "factagent: error: <stdin>:2: field 'text': must be a string, found 3\n"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"golds": ["x"]}, "field 'prediction': is missing"),
        ({"prediction": "x", "golds": ["x", 1]}, "field 'golds[1]': must be a string, found 1"),
        ([1], "must be a JSON object, found [1]"),
    ],
)
def test_bad_rows_exit_65(tmp_path: Path, capsys: Captured, row: object, problem: str) -> None:
    path = write_rows(tmp_path / "f.jsonl", SCORED[0], row)
    assert main(["score", path]) == 65
    assert error_line(capsys) == f"{path}:2: {problem}"


def test_a_missing_file_exits_65(tmp_path: Path, capsys: Captured) -> None:
    path = str(tmp_path / "absent.jsonl")
    assert main(["parse", path]) == 65
    assert error_line(capsys) == f"{path}: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scoer", "f"], "unknown command 'scoer'; did you mean 'score'?"),
        (["world", "bild"], "unknown command 'bild'; did you mean 'build'?"),
        (["zzzz"], "unknown command 'zzzz'; choose one of train, sft, "),
        (["score", "f", "--per-rwo"], "Unknown option: --per-rwo. Did you mean --per-row?"),
        (["score", "--per-rwo", "f"], "Unknown option: --per-rwo. Did you mean --per-row?"),
        (["score"], 'Command "score" parameter FILE requires an argument.'),
        (["score", "f", "g"], "Unused Tokens: ['g']."),
        (["credit", "f", "--attribution", "3"], "--attribution 3: Input should be less than or equal to 1"),
        (["credit", "f", "--prior", "x"], "--prior x: Input should be 'symmetric' or 'centred'"),
    ],
)
def test_usage_errors_exit_2_with_a_hint(capsys: Captured, arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert error_line(capsys).startswith(message)


def test_version_and_help(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert all(f" {name} " in page for name in (*COMMANDS, *GROUPS))


def every_command() -> list[tuple[str, str]]:
    """The words of each command, and the function behind it."""
    single = [(name, target) for name, (target, _) in COMMANDS.items()]
    return single + [
        (f"{group} {name}", target) for group, (_, commands) in GROUPS.items() for name, (target, _) in commands.items()
    ]


@pytest.mark.parametrize(("words", "target"), every_command())
def test_every_command_exists_and_has_a_help_page(words: str, target: str, capsys: Captured) -> None:
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(f"factagent.cli.{module}"), function))
    assert main([*words.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: factagent {words}")


def raising(error: BaseException) -> Callable[[str], None]:
    def read(_: str) -> None:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError.at("f", 3, "x", "is odd"), 65, "f:3: field 'x': is odd"),
        (ConfigError("two\nlines"), 2, "two lines"),
        (TryAgainError("locked"), 75, "locked"),
        (MissingExtraError.of("faiss", "dense"), 69, "the module 'faiss' is not installed; run: pip install "),
        (
            ModuleNotFoundError("no", name="torch.nn"),
            69,
            "the module 'torch' is not installed; run: pip install 'factag",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_map_to_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr("factagent.cli.parse.read_rows", raising(error))
    assert main(["parse", "f"]) == code
    assert error_line(capsys).startswith(message)


def test_defects_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factagent.cli.parse.read_rows", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["parse", "f"])
    monkeypatch.setattr("factagent.cli.parse.read_rows", raising(ModuleNotFoundError("no", name="factagent.nothing")))
    with pytest.raises(ModuleNotFoundError):
        main(["parse", "f"])


def test_traceback_on_request(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    monkeypatch.setenv("FACTAGENT_TRACEBACK", "1")
    assert main(["parse", str(tmp_path / "absent")]) == 65
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback")
    assert "factagent: error: " in errors.splitlines()[-1]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "f.jsonl", *([{"text": "x" * 50}] * 20_000))
    command = [sys.executable, "-m", "factagent.cli", "parse", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["invalid"] == "no_json"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from factagent.cli import main; main(['--help']);"
        "heavy = {'torch', 'transformers', 'numba', 'scipy', 'matplotlib', 'pydantic', 'bm25s'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, done.stderr) == (0, "")
