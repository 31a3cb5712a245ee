from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from factagent.cli import main

SEARCH = {"action": "search", "query": "where was Anna born"}
FACT = {"action": "assert", "triples": [["Anna Berg", "was born in", "Oslo"]], "summary": "a biography"}
RIGHT = {"action": "answer", "response": "Oslo"}
WRONG = {"action": "answer", "response": "Rome"}
STEP_KEYS = ["potential", "shaping", "process", "penalties", "advantage"]


def worked_group() -> dict[str, Any]:
    steps = [[SEARCH, FACT, RIGHT], [SEARCH, FACT, RIGHT], [SEARCH, FACT, WRONG], [SEARCH, WRONG]]
    return {"question": "Where?", "golds": ["Oslo"], "trajectories": [{"steps": s} for s in steps]}


@pytest.fixture
def credit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on rows; returns exit code, printed records and the error text."""

    def run(*rows: object, flags: tuple[str, ...] = ()) -> tuple[int, list[dict[str, Any]], str]:
        path = tmp_path / "groups.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = main(["credit", str(path), *flags])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err

    return run


def test_output_has_the_documented_schema_and_the_worked_numbers(credit: Any) -> None:
    code, (record,), _ = credit(worked_group())
    assert code == 0
    assert list(record) == ["baseline", "clusters", "trajectories"]
    (cluster,) = record["clusters"]
    assert list(cluster) == [
        "representative", "members", "support", "successes", "posterior_mean", "utility", "interval",
    ]  # fmt: skip
    assert cluster["representative"] == ["Anna Berg", "was born in", "Oslo"]
    assert cluster["members"] == [["Anna Berg", "was born in", "Oslo"]]
    assert (cluster["support"], cluster["successes"], cluster["posterior_mean"]) == (3, 2, 0.625)
    assert cluster["interval"] == pytest.approx([0.1767, 0.9613], abs=1e-4)
    assert [list(trajectory) for trajectory in record["trajectories"]] == [
        ["outcome", "success", "outcome_advantage", "steps"]
    ] * 4
    search, fact, _ = record["trajectories"][0]["steps"]
    assert list(search) == STEP_KEYS
    assert search["process"] == pytest.approx(0.02487, abs=5e-6)
    assert fact["process"] == pytest.approx(0.09948, abs=5e-6)
    assert record["trajectories"][3]["steps"][1]["penalties"] == {"premature_answer": -0.1}


def test_rows_stay_in_order_one_line_each(credit: Any) -> None:
    other = {"question": "?", "golds": ["x"], "trajectories": [{"steps": [{"action": "invalid"}]}]}
    code, records, _ = credit(worked_group(), other, worked_group())
    assert code == 0
    assert [record["baseline"] for record in records] == [0.5, 0.0, 0.5]
    assert records[1]["trajectories"][0]["steps"][0]["penalties"] == {"parse_error": -0.1}


@pytest.mark.parametrize(
    ("flags", "search", "fact"),
    [
        (("--attribution", "0"), 0.0, 0.12435),
        (("--attribution", "1"), 0.12435, 0.0),
        (("--consensus", "0.2"), 0.2 * 0.173235, 0.8 * 0.173235),
        (("--utility", "contrast"), 0.2 * 0.35835, 0.8 * 0.35835),
        (("--prior-strength", "2"), 0.2 * 0.07130, 0.8 * 0.07130),
        (("--process", "return"), 0.12435, 0.09948),
        (("--encoder", "exact", "--linkage", "components"), 0.02487, 0.09948),
        (("--equivalence", "exact", "--orientation", "strict"), 0.02487, 0.09948),
    ],
)
def test_flags_reach_the_credit_rule(credit: Any, flags: tuple[str, ...], search: float, fact: float) -> None:
    code, (record,), _ = credit(worked_group(), flags=flags)
    assert code == 0
    steps = record["trajectories"][0]["steps"]
    assert [steps[0]["process"], steps[1]["process"]] == pytest.approx([search, fact], abs=1e-5)


def test_zero_process_weight_prints_the_outcome_advantage(credit: Any) -> None:
    _, (record,), _ = credit(worked_group(), flags=("--process-weight", "0"))
    for trajectory in record["trajectories"]:
        assert {step["advantage"] for step in trajectory["steps"]} == {trajectory["outcome_advantage"]}


def test_centred_prior_and_soft_success(credit: Any) -> None:
    row = worked_group() | {"golds": ["Oslo Norway"]}
    _, (record,), _ = credit(row, flags=("--prior", "centred"))
    assert record["clusters"][0]["utility"] == 0.0
    _, (record,), _ = credit(row, flags=("--success", "soft", "--outcome", "em"))
    assert record["clusters"][0]["successes"] == pytest.approx(4 / 3)
    assert record["trajectories"][0]["outcome"] == 0.0


def test_batch_scale_makes_the_file_one_batch(credit: Any) -> None:
    code, records, _ = credit(worked_group(), worked_group(), flags=("--process-scale", "batch-std"))
    assert code == 0
    assert records[0] == records[1]
    assert records[0]["trajectories"][0]["steps"][1]["process"] > 0.5


def test_a_failed_trajectory_is_marked_and_left_out(credit: Any) -> None:
    row = worked_group()
    row["trajectories"].append({"steps": [SEARCH], "stop_reason": "retrieval_failed"})
    _, (record,), _ = credit(row)
    assert record["trajectories"][4]["excluded"] is True
    assert record["baseline"] == 0.5


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    content = io.TextIOWrapper(io.BytesIO(json.dumps(worked_group()).encode()))
    monkeypatch.setattr("sys.stdin", content)
    assert main(["credit", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["baseline"] == 0.5


def broken(path: str, value: object) -> dict[str, Any]:
    """The worked group with one value replaced, or removed where `value` is `...`."""
    row = json.loads(json.dumps(worked_group()))
    target: Any = row
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return row


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("question", ..., "question"),
        ("golds", [], "golds"),
        ("golds", [1], "golds[0]"),
        ("trajectories", [], "trajectories"),
        ("trajectories", "none", "trajectories"),
        ("trajectories/1/steps", ..., "trajectories[1].steps"),
        ("trajectories/1/steps/0", 5, "trajectories[1].steps[0]"),
        ("trajectories/1/steps/0/query", ..., "trajectories[1].steps[0].query"),
        ("trajectories/1/steps/0/action", "think", "trajectories[1].steps[0].action"),
        ("trajectories/0/steps/1/triples", [["a", "b"]], "trajectories[0].steps[1].triples[0]"),
        ("trajectories/0/steps/1/triples", [["a", "b", None]], "trajectories[0].steps[1].triples[0][2]"),
        ("trajectories/0/steps/2/response", 7, "trajectories[0].steps[2].response"),
        ("trajectories/0/steps/1", RIGHT, "trajectories[0].steps[2].action"),
        ("trajectories/2/stop_reason", "bored", "trajectories[2].stop_reason"),
    ],
)
def test_malformed_rows_name_file_line_and_field(credit: Any, path: str, value: object, field: str) -> None:
    code, records, error = credit(worked_group(), broken(path, value))
    assert code == 65
    assert len(records) == 1
    assert f"groups.jsonl:2: field '{field}'" in error


def test_what_is_not_json_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text(json.dumps(worked_group()) + "\n{oops\n")
    assert main(["credit", str(path)]) == 65
    assert "groups.jsonl:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [("--attribution", "1.5"), ("--prior", "flat"), ("--process-weight", "much"), ("--omega", "1"), ("--encoder", "")],
)
def test_wrong_flags_are_usage_errors(credit: Any, flags: tuple[str, ...]) -> None:
    code, records, error = credit(worked_group(), flags=flags)
    assert (code, records) == (2, [])
    assert error.startswith("factagent: error: ")


def test_an_encoder_without_thresholds_is_refused_with_advice(credit: Any) -> None:
    code, _, error = credit(worked_group(), flags=("--encoder", "nobody/nothing"))
    assert code == 2
    assert "factagent calibrate" in error
