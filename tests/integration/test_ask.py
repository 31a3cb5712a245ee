"""`factagent ask` end to end: documents, a served model, what is printed, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from factagent.cli.app import main
from factagent.cli.ask_view import fact_line, print_result, round_lines, visible
from factagent.data.corpus import read_passages
from factagent.data.world.build import build_world
from factagent.data.world.config import WorldConfig
from factagent.episode import Episode
from factagent.evaluation.provenance import sourced_facts
from factagent.protocols.actions import render_action
from factagent.protocols.factagent import FactAgentProtocol
from factagent.rollout_async import Finished
from factagent.types import Answer, Assert, Generation, Passage, Question, Search, StopReason, Trajectory, Triple

Captured = pytest.CaptureFixture[str]
ESCAPES = "\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x07\x9b31m\u202e\u2066\r\b"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ask") / "world"
    build_world(WorldConfig(entities=600, train=0, dev=8, test=0, hops=(1,)), place)
    return place


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTAGENT_CACHE", str(tmp_path_factory.getbasetemp() / "ask-cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def question_of(world: Path) -> str:
    first = json.loads((world / "qa.dev.jsonl").read_text("utf-8").splitlines()[0])
    return str(first["question"])


def test_one_json_object_the_same_from_an_endpoint_and_from_here(
    world: Path, chat_server: Any, capsys: Captured
) -> None:
    pytest.importorskip("torch")
    arguments = ["ask", question_of(world), "--docs", str(world / "corpus.jsonl"), "--json", "--max-tokens", "60"]
    assert main([*arguments, "--model", "tiny"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--model", chat_server.url, "--prompt", "factagent-terse"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert there == here
    assert here["question"] == question_of(world)
    assert here["stop_reason"] == "answered"
    assert here["answer"] == here["rounds"][-1]["response"]
    assert here["error"] is None
    assert here["tokens"]["prompt"] > here["tokens"]["response"] > 0
    searches = [each for each in here["rounds"] if each["action"] == "search"]
    assert searches
    assert {"id", "title", "text", "score"} == set(searches[0]["passages"][0])
    titles = {passage["title"] for each in searches for passage in each["passages"]}
    assert titles <= {passage.title for passage in read_passages(world / "corpus.jsonl")}


def test_text_for_a_reader(world: Path, chat_server: Any, capsys: Captured) -> None:
    arguments = ["ask", question_of(world), "--docs", str(world / "corpus.jsonl"), "--model", chat_server.url]
    assert main([*arguments, "--prompt", "factagent-terse", "--max-tokens", "60"]) == 0
    output = capsys.readouterr()
    answer, blank, facts, *_ = output.out.splitlines()
    assert answer
    assert blank == ""
    assert facts in ("Facts", "No facts were asserted.")
    assert output.err == ""


def test_no_answer_is_no_failure(world: Path, chat_server: Any, capsys: Captured) -> None:
    arguments = [
        "ask",
        "Where?",
        "--docs",
        str(world / "corpus.jsonl"),
        "--model",
        chat_server.url,
        "--max-rounds",
        "1",
        "--prompt",
        "factagent-terse",
    ]
    assert main([*arguments, "--max-tokens", "4", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["answer"], record["stop_reason"]) == (None, "out_of_rounds")
    assert main([*arguments, "--max-tokens", "4", "--no-cache"]) == 0
    assert capsys.readouterr().out.startswith("No answer: no round was left; --max-rounds allows more.\n")


def test_a_server_that_is_not_there_exits_69_and_says_so(world: Path, capsys: Captured) -> None:
    pytest.importorskip("openai")
    arguments = ["ask", "Where?", "--docs", str(world / "corpus.jsonl"), "--model", "http://127.0.0.1:9/v1"]
    assert main([*arguments, "--model-name", "m", "--json"]) == 69
    output = capsys.readouterr()
    record = json.loads(output.out)
    assert record["stop_reason"] == "policy_failed"
    assert record["tokens"] == {"prompt": None, "response": None}
    assert output.err.startswith("factagent: error: endpoint http://127.0.0.1:9/v1, model 'm': cannot be reached")
    assert " ".join(record["error"].split()) in output.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["Where?", "--model", "tiny"], 2, "give either --docs DIR_OR_FILE or --index SPEC"),
        (["Where?", "--model", "tiny", "--docs", "x", "--index", "y"], 2, "give either --docs DIR_OR_FILE"),
        (["  ", "--model", "tiny", "--docs", "x"], 2, "the question is empty"),
        (["Where?", "--model", "tiny", "--docs", "absent"], 2, "--docs absent: does not exist"),
        (["Where?", "--model", "tiny", "--index", "absent"], 2, "absent"),
        (["Where?", "--model", "absent", "--docs", "."], 2, "model 'absent': no such directory"),
        (["Where?", "--model", "tiny", "--docs", ".", "--protocol", "x"], 2, "protocol 'x' is unknown"),
        (["Where?", "--model", "tiny", "--docs", ".", "--top-k", "0"], 2, "top-k"),
        (["Where?", "--model", "http://u:p@h/v1", "--docs", "."], 2, "must hold no user or password"),
    ],
)
def test_wrong_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, arguments: list[str], code: int, message: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "a.txt").write_text("Anna was born in Lund.", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["ask", *arguments]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err


# --- what reaches the terminal -------------------------------------------------------------------------------------


def hostile_episode() -> Episode:
    nasty = f"Anna{ESCAPES} [bold red]markup[/] :smile:"
    run = Episode(Question("q", "?", ("a",)), FactAgentProtocol())
    run.feed_generation(Generation(render_action(Search("anna [bold]"))))
    run.feed_passages([Passage(nasty, nasty, f"{nasty} born in Lund", 1.5)])
    return run


def test_no_escape_sequence_and_no_markup_of_a_passage_reaches_the_terminal(capsys: Captured) -> None:
    run = hostile_episode()
    console = Console(force_terminal=True, width=200, highlight=False, color_system=None)
    for line in round_lines(run):
        console.print(line)
    assert_clean(capsys.readouterr().out)
    run.feed_generation(Generation(render_action(Assert((Triple("Anna", "born in", "Lund"),)))))
    for line in round_lines(run):
        console.print(line)
    shown = capsys.readouterr().out
    assert_clean(shown)
    assert "Anna | born in | Lund  [Anna" in shown
    run.feed_generation(Generation("\x1b[31mno action"))
    console.print(*round_lines(run))
    run.feed_generation(Generation(render_action(Answer("Lund"))))
    print_result(Finished(run.trajectory))
    assert_clean(capsys.readouterr().out)


def assert_clean(shown: str) -> None:
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert "\x1b" not in shown
    assert "http://x" not in shown or "]8;;http://x" in shown  # harmless without the escape before it
    assert "[bold red]markup[/] :smile:" in shown or "markup" not in shown


def test_long_texts_are_cut_but_not_the_answer(capsys: Captured) -> None:
    assert len(visible("x" * 5000)) == 200
    answer = Trajectory(hostile_episode().state.steps, StopReason.ANSWERED)
    assert answer.answer is None
    run = Episode(Question("q", "?", ("a",)), FactAgentProtocol())
    run.feed_generation(Generation(render_action(Answer("long " * 100))))
    print_result(Finished(run.trajectory))
    assert capsys.readouterr().out.startswith(("long " * 100).strip() + "\n")


def test_where_a_fact_was_not_found_is_said() -> None:
    run = hostile_episode()
    run.feed_generation(Generation(render_action(Assert((Triple("Bo", "born in", "Oslo"),)))))
    (fact,) = sourced_facts(Trajectory(run.state.steps))
    assert fact_line(fact) == "Bo | born in | Oslo  [not in these words in a passage of round 1]"
