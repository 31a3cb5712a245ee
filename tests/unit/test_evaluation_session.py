"""Sessions: every question once, failures owed, exact resumption, pauses, and what the command refuses."""

from __future__ import annotations

import asyncio
import json
from itertools import count

import pytest

from factagent.cli import main
from factagent.configuration import dump_toml, load_config
from factagent.data.corpus import write_passages
from factagent.data.dataset import write_questions
from factagent.errors import ConfigError, DataError, TryAgainError, UsageError
from factagent.evaluation import players, session
from factagent.evaluation.config import EvalConfig, FailureConfig
from factagent.evaluation.players import endpoint_settings
from factagent.evaluation.results import read_results
from factagent.evaluation.session import resume_evaluation, start_evaluation
from factagent.evaluation.watch import FailureWatch
from factagent.retrieval.base import RetrievalError
from factagent.run_files import TornTailWarning
from factagent.runs import RunDirectory
from factagent.types import Passage, Question, Triple

COMPARED = ("summary.json", "tables.md")


@pytest.fixture
def config(tmp_path):
    """Two sets of 12 and 5 questions about who leads a town; the scripted expert finds out, and errs at times."""
    names = [f"Town{i}" for i in range(12)]
    passages = [Passage(f"p{i}", name, f"{name} is led by Mayor{i}.") for i, name in enumerate(names)]
    questions = [
        Question(
            f"q{i}",
            f"Who leads {name}?",
            (f"Mayor{i}",),
            supporting_titles=(name,),
            evidences=(Triple(name, "is led by", f"Mayor{i}"),),
        )
        for i, name in enumerate(names)
    ]
    write_passages(tmp_path / "corpus.jsonl", passages)
    write_questions(tmp_path / "long.jsonl", questions)
    write_questions(tmp_path / "short.jsonl", questions[:5])
    settings = {
        "model": {"path": "expert", "noise": 0.3},
        "batch_size": 3,
        "retriever": {"corpus": tmp_path / "corpus.jsonl"},
        "sets": [{"name": name, "path": tmp_path / f"{name}.jsonl"} for name in ("long", "short")],
    }
    return EvalConfig.model_validate(settings)


def lines(run):
    return [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]


def files(run):
    return {name: (run / name).read_bytes() for name in COMPARED}


@pytest.fixture
def whole(config, tmp_path):
    """An evaluation that nothing interrupted."""
    start_evaluation(config, tmp_path / "whole")
    return tmp_path / "whole"


class Flaky:
    """The real index behind a server that is down for some of its searches."""

    def __init__(self, index, down):
        self.index, self.down, self.searches = index, down, count()

    def search(self, queries, top_k):
        if self.down(next(self.searches)):
            raise RetrievalError("http://x: connection refused")
        return self.index.search(queries, top_k)


@pytest.fixture
def break_retrieval(monkeypatch):
    """Call with a predicate on the number of the search: those for which it holds fail."""
    real = players.open_blocking

    def use(down):
        monkeypatch.setattr(players, "open_blocking", lambda config: Flaky(real(config), down))

    return use


def test_every_question_is_answered_once_and_scored(config, whole):
    rows = lines(whole)
    assert [(row["set"], row["id"]) for row in rows] == [
        *(("long", f"q{i}") for i in range(12)),
        *(("short", f"q{i}") for i in range(5)),
    ]
    assert [row["em"] for row in rows] == [float(row["answer"] in row["golds"]) for row in rows]
    summary = json.loads((whole / "summary.json").read_text())
    assert 0.4 < summary["averages"]["weighted"]["em"] < 1
    assert summary["sets"]["long"]["em"] == sum(row["em"] for row in rows[:12]) / 12
    assert load_config(EvalConfig, whole / "config.toml") == config
    assert json.loads((whole / "retriever.json").read_text())["kind"] == "corpus"
    (session_,) = [json.loads(line) for line in (whole / "sessions.jsonl").read_text().splitlines()]
    assert session_["questions"] == 17


def test_batches_and_resumption_change_nothing(config, whole, tmp_path):
    other = tmp_path / "other"
    start_evaluation(config.model_copy(update={"batch_size": 100}), other)
    assert files(other) == files(whole)
    before = (whole / "results.jsonl").read_bytes()
    resume_evaluation(whole)  # nothing is owed
    assert files(other) == files(whole)
    assert (whole / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize("cut", [0, 1, 700, 5000, -1])
def test_a_torn_evaluation_is_finished_to_the_same_bytes(config, whole, tmp_path, cut):
    expected, content = files(whole), (whole / "results.jsonl").read_bytes()
    torn = content[:cut]
    (whole / "results.jsonl").write_bytes(torn)
    (whole / "summary.json").unlink()
    if torn and not torn.endswith(b"\n"):
        with pytest.warns(TornTailWarning) as caught:
            resume_evaluation(whole)
        assert len(caught) == 1
    else:
        resume_evaluation(whole)
    assert files(whole) == expected
    assert (whole / "results.jsonl").read_bytes().startswith(torn[: torn.rfind(b"\n") + 1])
    assert len(lines(whole)) == len({(row["set"], row["id"]) for row in lines(whole)}) == 17


def test_failures_are_in_no_mean_and_are_asked_again_on_resume(config, whole, tmp_path, break_retrieval, capsys):
    run = tmp_path / "run"
    break_retrieval(lambda number: number == 2)
    summary = start_evaluation(config, run)
    failed = [row for row in lines(run) if row["stop_reason"] == "retrieval_failed"]
    assert summary["failed"] == len(failed) > 0
    assert summary["scored"] + summary["failed"] == 17
    assert all(row["error"] == "http://x: connection refused" for row in failed)
    good = {(row["set"], row["id"]): row["em"] for row in lines(run) if row not in failed}
    true = {(row["set"], row["id"]): row["em"] for row in lines(whole)}
    assert good.items() <= true.items()  # no wrong score
    assert summary["averages"]["weighted"]["em"] == pytest.approx(sum(good.values()) / len(good))
    assert "are in no mean; ask them again with: factagent eval --resume" in " ".join(capsys.readouterr().err.split())
    kept = [line for line in (run / "results.jsonl").read_text().splitlines() if "retrieval_failed" not in line]
    break_retrieval(lambda number: False)
    resume_evaluation(run)
    assert files(run) == files(whole)
    assert (run / "results.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert len(lines(run)) == 17


def test_too_many_failures_pause_the_evaluation_until_a_probe_succeeds(
    config, whole, tmp_path, break_retrieval, monkeypatch
):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(session, "FailureWatch", lambda settings: FailureWatch(settings, sleep=sleep))
    single = config.model_copy(update={"batch_size": 1})
    break_retrieval(lambda number: 3 <= number < 20)
    with pytest.raises(TryAgainError, match=r"of 17 questions failed \(http://x: connection refused\); ask them again"):
        start_evaluation(single, tmp_path / "run")
    assert waits[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    failed = [row for row in lines(tmp_path / "run") if row["stop_reason"] == "retrieval_failed"]
    assert 0 < len(failed) < 17  # those of the pause are not among them: they were asked until they succeeded
    assert len(lines(tmp_path / "run")) == 17
    break_retrieval(lambda number: False)
    resume_evaluation(tmp_path / "run")
    assert files(tmp_path / "run") == files(whole)


def test_a_pause_without_end_keeps_everything_and_exits_with_75(config, whole, tmp_path, break_retrieval, capsys):
    run, file = tmp_path / "run", tmp_path / "eval.toml"
    patient = config.model_copy(update={"batch_size": 1, "failures": FailureConfig(patience_s=0)})
    file.write_text(dump_toml(patient))
    break_retrieval(lambda number: number >= 2)
    assert main(["eval", "--config", str(file), "--out", str(run)]) == 75
    assert "for 0 s none succeeded; the last error: http://x: connection refused" in capsys.readouterr().err
    assert 0 < len(lines(run)) < 17
    assert not (run / "summary.json").exists()
    break_retrieval(lambda number: False)
    assert main(["eval", "--resume", str(run), "--set", "failures.patience_s=60"]) == 0
    assert files(run) == files(whole)


def test_a_watch_needs_some_outcomes_and_forgets_old_ones():
    watch = FailureWatch(FailureConfig(window=20, share=0.2))
    for _ in range(9):
        watch.note(True)
    assert not watch.tripped
    watch.note(True)
    assert watch.tripped
    for _ in range(16):
        watch.note(False)
    assert not watch.tripped  # 4 of the last 20
    watch.note(True)
    assert not watch.tripped
    watch.recovered()
    assert not watch.tripped


def test_a_pause_gives_up_after_its_patience():
    now, waits = [0.0], []

    async def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    async def wait_for_ever(watch):
        while True:
            await watch.wait()

    watch = FailureWatch(FailureConfig(patience_s=300), sleep=sleep, clock=lambda: now[0])
    watch.note(True, "down")
    with pytest.raises(TryAgainError, match="for 300 s none succeeded; the last error: down"):
        asyncio.run(wait_for_ever(watch))
    assert waits[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert sum(waits) <= 300 < sum(waits) + 30
    watch.recovered()
    asyncio.run(watch.wait())
    assert waits[-1] == 1.0


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"seed": 1}, "seed"),
        ({"rollout": {"top_k": 5}}, "rollout.top_k"),
        ({"model": {"path": "expert"}}, "model.noise"),
        ({"sets": [{"name": "long", "path": "x.jsonl"}]}, "sets"),
    ],
)
def test_a_changed_configuration_is_refused_with_its_key(config, whole, change, key):
    changed = EvalConfig.model_validate(config.model_dump() | change)
    with pytest.raises(ConfigError, match=f"key '{key}.*' is .*, but .*config.toml has .*; start another"):
        resume_evaluation(whole, changed)


def test_keys_that_say_how_it_runs_may_change(config, whole):
    changes = {"concurrency": 1, "batch_size": 7, "failures": {"window": 10}}
    assert resume_evaluation(whole, EvalConfig.model_validate(config.model_dump() | changes))["scored"] == 17


def test_changed_files_are_refused(config, whole, tmp_path):
    questions = (tmp_path / "short.jsonl").read_text()
    (tmp_path / "short.jsonl").write_text(questions.replace("Mayor3", "Mayor9"))
    with pytest.raises(DataError, match="question 'q3' of set 'short' was answered before, and its file has changed"):
        resume_evaluation(whole)
    (tmp_path / "short.jsonl").write_text(questions)
    (tmp_path / "corpus.jsonl").write_text((tmp_path / "corpus.jsonl").read_text().replace("led", "ruled"))
    with pytest.raises(DataError, match=r"retriever\.json: searched was .* now it is"):
        resume_evaluation(whole)


def test_a_directory_in_use_or_of_another_kind_is_refused(config, whole, tmp_path):
    with pytest.raises(UsageError, match="holds an evaluation; resume it"):
        start_evaluation(config, whole)
    RunDirectory.create(tmp_path / "training", "")
    with pytest.raises(UsageError, match="holds a run of another kind"):
        start_evaluation(config, tmp_path / "training")
    with pytest.raises(UsageError, match=r"is no evaluation: it has no results\.jsonl"):
        resume_evaluation(tmp_path / "training")
    with RunDirectory(whole).lock(), pytest.raises(UsageError, match="is in use by process"):
        resume_evaluation(whole)


def test_a_start_that_found_no_model_may_be_repeated(config, tmp_path):
    nowhere = config.model_copy(update={"model": config.model.model_copy(update={"path": str(tmp_path / "none")})})
    with pytest.raises(ConfigError, match="no such directory"):
        start_evaluation(nowhere, tmp_path / "run")
    assert start_evaluation(config, tmp_path / "run")["scored"] == 17


def test_sets_are_checked_before_anything_is_written(config, tmp_path):
    for change, message in (
        ({"expected": 11}, "holds 12 questions, not the 11 of 'expected'"),
        ({"types": ("bridge",)}, r"no question has a type in \('bridge',\)"),
        ({"path": tmp_path / "none.jsonl"}, r"set 'long': .*none\.jsonl does not exist"),
    ):
        (long, short) = config.sets
        sets = (long.model_copy(update=change), short)
        with pytest.raises((DataError, ConfigError), match=message):
            start_evaluation(config.model_copy(update={"sets": sets}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# The command.


def command(config, tmp_path, *more):
    return [
        "eval", "--model", "expert", "--corpus", str(tmp_path / "corpus.jsonl"),
        "--questions", str(tmp_path / "long.jsonl"), f"five={tmp_path / 'short.jsonl'}", *more,
    ]  # fmt: skip


def test_flags_make_an_evaluation_without_a_file(config, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(command(config, tmp_path, "--limit", "4", "--out", str(run), "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((run / "summary.json").read_text())
    assert {name: each["n"] for name, each in summary["sets"].items()} == {"long": 4, "five": 4}
    assert len(list(read_results(run))) == 8
    assert main(["eval", "--resume", str(run)]) == 0
    assert capsys.readouterr().out == (run / "tables.md").read_text()
    assert main(["eval", "--resume", str(run), "--limit", "3"]) == 2
    assert "key 'sets[0].limit' is 3, but" in capsys.readouterr().err


def test_a_dry_run_prints_the_configuration(config, tmp_path, capsys):
    flags = ("--model", "http://127.0.0.1:1/v1", "--model-name", "m", "--protocol", "react", "--retriever", "http://r")
    assert main(["eval", "--questions", f"a={tmp_path / 'x.jsonl'}", *flags, "--dry-run"]) == 0
    (tmp_path / "printed.toml").write_text(capsys.readouterr().out)
    resolved = load_config(EvalConfig, tmp_path / "printed.toml")
    assert (resolved.model.endpoint.url, resolved.model.endpoint.model) == ("http://127.0.0.1:1/v1", "m")
    assert (resolved.rollout.protocol, resolved.rollout.prompt) == ("react", "react-full")
    assert (resolved.retriever.spec, resolved.retriever.is_server) == ("http://r", True)
    # Flags go before the file.
    more = ("--model", "tiny", "--corpus", "c.jsonl", "--dry-run")
    assert main(["eval", "--config", str(tmp_path / "printed.toml"), *more]) == 0
    printed = capsys.readouterr().out
    assert "endpoint" not in printed
    assert "spec" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "0", "--out", "x"), "limit is 0; it must be at least 1"),
        ((), "--out DIR is missing"),
        (("--resume", "x", "--out", "y"), "leave out --out and --run"),
        (("--step", "3"), "--step names a checkpoint of --run RUN"),
        (("--model-name", "m"), "--model-name is for endpoints"),
        (("--retriever", "x"), "--retriever and --corpus both say what to search"),
        (("--set", "rollout.topk=3"), "did you mean 'rollout.top_k'?"),
        (("--prompt", "none.toml", "--out", "x"), "prompt 'none.toml': no such file"),
        (("--prompt", "react-full", "--dry-run"), "under this protocol"),
        (
            ("--set", "model.endpoint={url='http://x', temperature=1.0}"),
            "'temperature' is set by 'rollout.temperature'",
        ),
        (
            ("--set", "model.endpoint={url='http://x', top_p=0.5}", "--set", "rollout.top_p=0.9"),
            "'rollout.top_p' and 'model.endpoint.top_p' are both set; keep the first",
        ),
        (("--questions", "a=x", "a=y"), "two sets are named 'a'; names must be unique"),
    ],
)
def test_wrong_flags_exit_with_2(config, tmp_path, capsys, arguments, message):
    assert main(command(config, tmp_path, *arguments)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rollout", "endpoint", "sent"), [({}, {}, None), ({"top_p": 0.9}, {}, 0.9), ({}, {"top_p": 0.5}, 0.5)]
)
def test_the_nucleus_reaches_an_endpoint_and_is_left_out_where_it_is_the_whole(rollout, endpoint, sent):
    config = EvalConfig.model_validate(
        {
            "model": {"endpoint": {"url": "http://x/v1", **endpoint}},
            "rollout": {"temperature": 1.0, **rollout},
            "retriever": {"corpus": "c"},
            "sets": [{"name": "dev", "path": "q"}],
        }
    )
    settings = endpoint_settings(config, config.model.endpoint)
    assert (settings.temperature, settings.top_p) == (1.0, sent)


def test_no_questions_and_no_retriever_are_named(capsys):
    assert main(["eval", "--model", "expert", "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert "'retriever'" in error
    assert "'sets'" in error
