"""Evaluations by method: every protocol's episodes are scored, and forced searches count like the policy's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from factagent.cli import main
from factagent.data.corpus import write_passages
from factagent.data.dataset import write_questions
from factagent.methods.registry import method_names
from factagent.train.evaluate import config_of_run
from factagent.types import Passage, Question, Triple

TOWNS = [f"Town{i}" for i in range(6)]

TINY = ("rollout.max_new_tokens=16", "threads=1", "rollout.precision=fp32")


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions of one hop and two of two; the passages name their titles, as ZeroSearch's prompt expects."""
    place = tmp_path_factory.mktemp("towns")
    passages = [Passage(f"p{i}", town, f"{town} is led by Mayor{i}.") for i, town in enumerate(TOWNS)]
    passages += [Passage(f"m{i}", f"Mayor{i}", f"Mayor{i} was born in Village{i}.") for i in range(6)]
    questions = [
        Question(f"q{i}", f"Who leads {TOWNS[i]}?", (f"Mayor{i}",), supporting_titles=(TOWNS[i],),
                 evidences=(Triple(TOWNS[i], "is led by", f"Mayor{i}"),))
        for i in range(2)
    ] + [
        Question(f"q{i}", f"Where was the leader of {TOWNS[i]} born?", (f"Village{i}",),
                 supporting_titles=(TOWNS[i], f"Mayor{i}"),
                 evidences=(Triple(TOWNS[i], "is led by", f"Mayor{i}"),
                            Triple(f"Mayor{i}", "was born in", f"Village{i}")))
        for i in range(2, 4)
    ]  # fmt: skip
    write_passages(place / "corpus.jsonl", passages)
    write_questions(place / "dev.jsonl", questions)
    return place


def evaluate(towns: Path, out: Path, model: str, *settings: str) -> list[dict[str, object]]:
    shared = [
        "eval",
        "--model",
        model,
        "--corpus",
        str(towns / "corpus.jsonl"),
        "--questions",
        str(towns / "dev.jsonl"),
    ]
    more = [part for setting in settings for part in ("--set", setting)]
    assert main([*shared, *more, "--out", str(out), "--json"]) == 0
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_the_search_that_rag_is_forced_to_counts(towns: Path, tmp_path: Path) -> None:
    rows = evaluate(towns, tmp_path / "rag", "expert", "method=rag", "rollout.top_k=1")
    assert [(row["steps"], row["searches"], row["invalid"]) for row in rows] == [(2, 1, 0)] * 4
    assert [row["em"] for row in rows[:2]] == [1, 1]
    assert [(row["gold_passage_recall"], row["first_search_recall"]) for row in rows] == [(1, 1)] * 2 + [(0.5, 0.5)] * 2
    trajectory = rows[0]["trajectory"]
    assert isinstance(trajectory, dict)
    first, last = trajectory["steps"]
    assert first["action"] == {"action": "search", "query": "Who leads Town0?"}
    assert [passage["title"] for passage in first["observation"]["passages"]] == ["Town0"]
    assert last["action"] == {"action": "answer", "response": "Mayor0"}
    summary = json.loads((tmp_path / "rag" / "summary.json").read_text())
    assert (summary["sets"]["dev"]["searches"], summary["sets"]["dev"]["gold_passage_recall"]) == (1, 0.75)
    assert summary["sets"]["dev"]["parse_error_rate"] == 0


def test_the_searches_of_search_r1_count(towns: Path, tmp_path: Path) -> None:
    rows = evaluate(towns, tmp_path / "sr1", "expert", "method=search-r1", "mode=faithful", "rollout.top_k=1")
    assert [(row["steps"], row["searches"], row["em"]) for row in rows] == [(2, 1, 1)] * 2 + [(3, 2, 1)] * 2
    assert [(row["gold_passage_recall"], row["first_search_recall"]) for row in rows] == [(1, 1)] * 2 + [(1, 0.5)] * 2
    text = (tmp_path / "sr1" / "config.toml").read_text()
    assert text.startswith('resolved = true\nmethod = "search-r1"\nmode = "faithful"\n')
    assert "max_rounds = 5\n" in text
    title = (tmp_path / "sr1" / "tables.md").read_text()
    assert "search-r1 (faithful): search-r1, prompt search-r1-full, 5 rounds, top-1, greedy" in title


@pytest.mark.parametrize("method", [name for name in method_names() if "/" not in name])
def test_the_expert_answers_under_every_method(method: str, towns: Path, tmp_path: Path) -> None:
    rows = evaluate(towns, tmp_path / "out", "expert", f"method={method}")
    assert [(row["em"], row["invalid"]) for row in rows[:2]] == [(1, 0)] * 2
    assert [(row["em"], row["invalid"]) for row in rows[2:]] == [(method != "rag", 0)] * 2
    assert all(row["stop_reason"] == "answered" for row in rows[:2])


@pytest.mark.parametrize("method", ["rag", "search-r1", "research", "memsearcher", "gigpo"])
def test_a_local_model_plays_every_kind_of_protocol(method: str, towns: Path, tmp_path: Path) -> None:
    rows = evaluate(towns, tmp_path / "out", "tiny", f"method={method}", *TINY)
    assert len(rows) == 4
    assert all(row["error"] is None and row["response_tokens"] for row in rows)
    if method == "rag":
        assert all((row["searches"], row["first_search_recall"]) == (1, row["gold_passage_recall"]) for row in rows)
        assert sum(float(str(row["gold_passage_recall"])) for row in rows) > 2


def test_a_training_run_is_evaluated_by_its_method(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    settings = ("method=search-r1", "rollout.prompt=terse", "rollout.max_rounds=2", "schedule.eval_every=0")
    more = [part for setting in settings for part in ("--set", setting)]
    assert main(["train", "--config", str(config_file), *more, "--out", str(out), "--steps", "1"]) == 0
    config = config_of_run(out)
    assert (config.method, config.rollout.protocol, config.rollout.prompt) == (
        "search-r1", "search-r1", "search-r1-terse",
    )  # fmt: skip
    assert config.rollout.max_rounds == 2
    assert main(["eval", "--run", str(out), "--out", str(tmp_path / "eval"), "--limit", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["sets"]["dev"]["n"] == 2
