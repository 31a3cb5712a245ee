"""The arena: its configuration, its plan, its budgets and its tables, on run directories whose answers are known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factagent.arena.config import RUN_TABLES, ArenaConfig, load_arena
from factagent.arena.confirm import confirm
from factagent.arena.figure import by_step, by_tokens
from factagent.arena.plan import Places, check_unchanged, cold_start_config, planned_runs
from factagent.arena.reading import RunRecord, common_tokens, read_records
from factagent.arena.report import write_arena_report
from factagent.arena.running import check_arena
from factagent.arena.statistics import paired_by_seed, pooled_by_question
from factagent.arena.table import arena_table, at_end, at_tokens
from factagent.configuration import dump_toml
from factagent.errors import ConfigError, UsageError
from factagent.evaluation.compare import paired_t
from factagent.evaluation.intervals import t_interval
from factagent.evaluation.rows import SCHEMA
from factagent.rewards import NORMALISATION
from factagent.runs import RunDirectory
from factagent.train.config import RunConfig

BASE = """
threads = 2
[rollout]
prompt = "terse"
[learner]
kl_coef = 0.1
[schedule]
steps = 4
eval_every = 2
"""

ARENA = """
name = "two"
base = "base.toml"
seeds = 2

[entries.one]
title = "One | first"
credit = { process_weight = 0.0 }

[entries.two]
"""


def arena_of(folder: Path, text: str = ARENA, *overrides: str) -> ArenaConfig:
    (folder / "base.toml").write_text(BASE)
    (folder / "arena.toml").write_text(text)
    return load_arena(folder / "arena.toml", overrides)


# Configuration and plan.


def test_runs_are_interleaved_and_differ_from_the_base_only_where_they_say(tmp_path: Path) -> None:
    arena = arena_of(tmp_path, ARENA + "learner = { kl_coef = 0.2 }\n[shared.rollout]\ntop_k = 5\n", "seeds=[4, 7]")
    runs = planned_runs(arena, Places(tmp_path / "out"))
    assert [run.name for run in runs] == ["one.seed4", "two.seed4", "one.seed7", "two.seed7"]
    assert runs[1].path == tmp_path / "out" / "runs" / "two.seed4"
    assert [run.config.seed for run in runs] == [4, 4, 7, 7]
    assert [run.config.credit.process_weight for run in runs[:2]] == [0.0, 0.5]
    assert [run.config.learner.kl_coef for run in runs[:2]] == [0.1, 0.2]
    assert {(run.config.rollout.top_k, run.config.threads, run.config.schedule.steps) for run in runs} == {(5, 1, 4)}
    assert [run.name for run in planned_runs(arena, Places(tmp_path), ("two",))] == ["two.seed4", "two.seed7"]
    with pytest.raises(UsageError, match="'three' is no entry of two; entries are one, two"):
        planned_runs(arena, Places(tmp_path), ("three",))


def test_steps_and_evaluation_are_the_same_for_all(tmp_path: Path) -> None:
    text = ARENA + "schedule = { steps = 9, checkpoint_every = 3 }\n"
    arena = arena_of(tmp_path, text, "steps=6", "questions=50", "eval_every=3", "threads=2")
    for run in planned_runs(arena, Places(tmp_path)):
        schedule = run.config.schedule
        assert (schedule.steps, schedule.eval_questions, schedule.eval_every, run.config.threads) == (6, 50, 3, 2)
    assert run.config.schedule.checkpoint_every == 3


def test_a_method_brings_its_preset_and_the_entry_goes_over_it(tmp_path: Path) -> None:
    text = ARENA + 'method = "factagent_plus"\n[shared.rollout]\nprompt = "terse"\n'
    one, two = planned_runs(arena_of(tmp_path, text, "seeds=1"), Places(tmp_path))
    assert (one.config.method, one.config.credit.prior) == ("", "symmetric")
    assert (two.config.method, two.config.credit.prior) == ("factagent_plus", "centred")
    assert two.config.rollout.prompt == "factagent-terse"


def test_every_table_of_a_run_but_the_cluster_may_be_changed() -> None:
    tables = {name for name, field in RunConfig.model_fields.items() if name not in ("name", "seed", "threads")}
    assert set(RUN_TABLES) == tables - {"method", "mode", "engine", "cluster"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            ARENA + "[entries.one.credits]\n",
            r"unknown key 'entries\.one\.credits'; did you mean 'entries\.one\.credit'",
        ),
        (ARENA.replace("seeds = 2", "seed = 2"), r"unknown key 'seed'; did you mean 'seeds'"),
        (
            ARENA.replace("seeds = 2", "seeds = 0"),
            r"toml: the configuration is refused: seeds = 0: give a number of at",
        ),
        (ARENA.replace("seeds = 2", "seeds = [1, 1]"), r"seeds = \(1, 1\): give a number"),
        (ARENA.replace("seeds = 2", "baseline = 'tow'"), r"baseline 'tow' is no entry; entries are one, two"),
        (ARENA + "[entries.'a b']\n", r"'a b' names a directory"),
        (ARENA + "[entries.'../up']\n", r"names a directory"),
        ('base = "base.toml"\n[entries]\n', r"key 'entries' is refused"),
        ("[entries.one]\n", r"key 'base' is refused: field required"),
    ],
)
def test_a_wrong_arena_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        arena_of(tmp_path, text)


def test_a_protocol_that_does_not_exist_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"entries\.two: key 'rollout\.protocol' = 'recat' is refused: did you mean 're"
    ):
        planned_runs(arena_of(tmp_path, ARENA + 'rollout = { protocol = "recat" }\n'), Places(tmp_path))
    with pytest.raises(ConfigError, match=r"cold_start\.recat: key 'rollout\.protocol' = 'recat' is refused"):
        check_arena(arena_of(tmp_path, ARENA + "[cold_start.recat]\n"), Places(tmp_path))


def test_a_prompt_that_cannot_be_used_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for entry, problem in (
        ('rollout = { prompt = "nope.toml" }\n', r"prompt 'nope\.toml'"),
        ('method = "rag"\nrollout = { max_rounds = 1 }\n', r"protocol 'rag' searches first; set rollout\.max_rounds"),
    ):
        with pytest.raises(ConfigError, match=problem):
            check_arena(arena_of(tmp_path, ARENA + entry), Places(tmp_path))


def test_a_wrong_key_of_an_entry_is_named_with_the_entry(tmp_path: Path) -> None:
    arena = arena_of(tmp_path, ARENA + "learner = { kl_cof = 0.2 }\n")
    with pytest.raises(
        ConfigError, match=r"entries\.two: unknown key 'learner\.kl_cof'; did you mean 'learner\.kl_coef'"
    ):
        planned_runs(arena, Places(tmp_path))
    arena = arena_of(tmp_path, ARENA + "learner = { clip_low = 2 }\n")
    with pytest.raises(ConfigError, match=r"entries\.two: key 'learner\.clip_low' = 2 is refused"):
        planned_runs(arena, Places(tmp_path))


def test_an_arena_may_extend_another_and_add_an_entry(tmp_path: Path) -> None:
    arena_of(tmp_path)
    (tmp_path / "more.toml").write_text(
        'extends = "arena.toml"\nseeds = 5\n[entries.three]\n[entries.two]\ntitle="B"\n'
    )
    arena = load_arena(tmp_path / "more.toml")
    assert list(arena.entries) == ["one", "two", "three"]
    assert (arena.seed_list, arena.title("two"), arena.title("three"), arena.first) == (
        tuple(range(5)),
        "B",
        "three",
        "one",
    )


def test_entries_of_a_protocol_share_its_cold_start(tmp_path: Path) -> None:
    text = (
        ARENA
        + 'rollout = { protocol = "react" }\n[entries.three]\nrollout = { protocol = "react" }\ncold_start = false\n'
    )
    text += '[cold_start.react]\nsft = { source = "expert", epochs = 7 }\n'
    arena, places = arena_of(tmp_path, text, "seeds=1"), Places(tmp_path / "out")
    assert [run.cold_start for run in planned_runs(arena, places)] == [None, "react", None]
    config = cold_start_config(arena, "react")
    assert (config.rollout.protocol, config.sft.epochs, config.learner.kl_coef) == ("react", 7, 0.1)
    places.cold_start("react").parent.mkdir(parents=True)
    places.cold_start("react").with_suffix(".json").write_text('{"checkpoint": "step-21"}')
    paths = [run.config.model.path for run in planned_runs(arena, places)]
    assert paths == ["tiny", str(tmp_path / "out" / "cold-starts" / "react" / "checkpoints" / "step-21"), "tiny"]


def test_a_run_that_was_started_otherwise_is_not_gone_on_with(tmp_path: Path) -> None:
    arena, places = arena_of(tmp_path), Places(tmp_path / "out")
    run = planned_runs(arena, places)[0]
    RunDirectory.create(run.path, dump_toml(run.config))
    check_arena(arena, places)
    check_arena(arena_of(tmp_path, ARENA, "steps=9", "name=other"), places)
    with pytest.raises(
        ConfigError, match=r"one\.seed0: was started with learner\.kl_coef = 0\.1, the arena now says 0\.3"
    ):
        check_arena(arena_of(tmp_path, ARENA + "[shared.learner]\nkl_coef = 0.3\n"), places)
    curriculum = ARENA + '[shared.environment]\nkind = "corpus-noise"\n'
    fresh = planned_runs(arena_of(tmp_path, curriculum), places)[1]
    RunDirectory.create(fresh.path, dump_toml(fresh.config))
    with pytest.raises(ConfigError, match=r"two\.seed0: was started with schedule\.steps = 4, the arena now says 9"):
        check_unchanged(fresh.path, planned_runs(arena_of(tmp_path, curriculum, "steps=9"), places)[1].config)
    other = run.config.model_copy(update={"model": run.config.model.model_copy(update={"path": "elsewhere"})})
    check_unchanged(run.path, other, cold_start="react")
    with pytest.raises(ConfigError, match=r"model\.path = 'tiny', the arena now says 'elsewhere'"):
        check_unchanged(run.path, other)


# Runs whose figures are known.


def question_line(name: str, em: float, f1: float) -> bytes:
    row: dict[str, Any] = {"schema": SCHEMA, "normalisation": NORMALISATION, "set": "dev", "id": name, "question": "?"}
    row |= {"golds": ["a"], "type": None, "hops": None, "answer": "a", "em": em, "f1": f1, "cover_em": em}
    row |= {"coverage": None, "gold_passage_recall": None, "first_search_recall": None, "steps": 1, "searches": 0}
    row |= {"invalid": 0, "prompt_tokens": 1, "response_tokens": 1, "stop_reason": "answered", "error": None}
    return json.dumps(row).encode() + b"\n"


def scores(em: float, f1: float | None = None, coverage: float | None = None) -> dict[str, float | None]:
    return {"em": em, "f1": em if f1 is None else f1, "coverage": coverage}


def fill(
    run: Any, ems: list[float], tokens: int, *, measured: int = 0, answers: str | None = "", steps: int = 4
) -> None:
    """A run of the plan: EM at steps 0, 2 and 4, `tokens` a step, and "+-" for its answers at the end."""
    directory = RunDirectory.create(run.path, dump_toml(run.config))
    directory.log_metrics({"step": 0, "eval": scores(ems[0]), "seconds": {"eval": 1.0}})
    for step in range(1, steps + 1):
        row: dict[str, Any] = {"step": step, "prompt_tokens": 10.0 * step, "response_tokens": tokens}
        row |= {"measure_tokens": measured, "updates_skipped": int(step == 3), "parse_error_rate": 0.25}
        row["seconds"] = {"rollout": 2.0, "credit": 0.5, "learn": step, "total": 3.0 + step}
        if step % 2 == 0:
            row["eval"] = scores(ems[step // 2])
        directory.log_metrics(row)
    if answers is not None and steps == run.config.schedule.steps:
        directory.write_dev([question_line(f"q{i}", float(c == "+"), float(c == "+")) for i, c in enumerate(answers)])
        directory.write_summary({"steps": steps, "after": scores(ems[-1])})


@pytest.fixture
def two(tmp_path: Path) -> tuple[ArenaConfig, Places]:
    """Two entries under two seeds; the second generates twice as much a step, half of it by measuring."""
    arena, places = arena_of(tmp_path), Places(tmp_path / "out")
    one0, two0, one1, two1 = planned_runs(arena, places)
    fill(one0, [0.1, 0.2, 0.4], 100, answers="++--")
    fill(two0, [0.1, 0.4, 0.6], 100, measured=100, answers="+++-")
    fill(one1, [0.1, 0.3, 0.5], 100, answers="+---")
    fill(two1, [0.1, 0.5, 0.9], 100, measured=100, answers="+++-")
    return arena, places


def records_of(arena: ArenaConfig, places: Places) -> list[RunRecord]:
    return read_records(planned_runs(arena, places), places)


def test_a_record_counts_the_tokens_of_training_and_of_measuring(two: tuple[ArenaConfig, Places]) -> None:
    one, other, *_ = records_of(*two)
    assert [(point.step, point.tokens) for point in one.points] == [(0, 0), (2, 200), (4, 400)]
    assert [(point.step, point.tokens) for point in other.points] == [(0, 0), (2, 400), (4, 800)]
    assert (one.state, one.steps, one.skipped, one.parse_errors) == ("finished", 4, 1, 0.25)
    assert one.costs == {
        "prompt_tokens": 25.0,
        "response_tokens": 100.0,
        "measure_tokens": 0.0,
        "seconds.rollout": 2.0,
        "seconds.measure": 0.0,
        "seconds.credit": 0.5,
        "seconds.learn": 2.5,
    }
    assert other.costs["measure_tokens"] == 100.0


def test_scores_at_equal_tokens_lie_on_the_lines_between_evaluations(two: tuple[ArenaConfig, Places]) -> None:
    records = records_of(*two)
    assert common_tokens(records) == 400
    assert [record.at_tokens("em", 400) for record in records] == [0.4, 0.4, 0.5, 0.5]
    assert records[0].at_tokens("em", 50) == pytest.approx(0.125)  # a quarter of the way from 0.1 to 0.2
    assert records[1].at_tokens("em", 600) == pytest.approx(0.5)
    assert records[0].at_tokens("em", 401) is None
    assert records[0].at_tokens("coverage", 100) is None


def test_means_over_seeds_and_differences(two: tuple[ArenaConfig, Places]) -> None:
    arena, places = two
    table = arena_table(arena, records_of(arena, places))
    one, other = table["entries"]["one"], table["entries"]["two"]
    # t quantile .975 with one degree of freedom is 12.7062; the deviation of (0.4, 0.5) is 0.0707, over sqrt(2) 0.05.
    assert one["steps"]["em"] == pytest.approx(
        {"mean": 0.45, "low": 0.45 - 0.63531, "high": 0.45 + 0.63531, "count": 2, "p": None}, abs=1e-5
    )
    assert other["steps"]["em"]["mean"] == pytest.approx(0.75)
    assert other["tokens"]["em"]["mean"] == pytest.approx(0.45)
    assert (one["start"]["em"]["mean"], one["steps"]["coverage"], one["seeds"]) == (pytest.approx(0.1), None, 2)
    assert one["difference"] == {}
    difference = other["difference"]["seed_steps"]["em"]  # 0.2 and 0.4: t = 0.3 / 0.1 = 3
    assert (difference["mean"], difference["count"]) == (pytest.approx(0.3), 2)
    assert difference["p"] == difference["p_holm"] == pytest.approx(0.204833, abs=1e-6)  # 1 - 2 atan(3) / pi
    assert other["difference"]["seed_tokens"]["em"]["mean"] == pytest.approx(0.0)
    pooled = other["difference"]["question"]["em"]  # means over seeds: 1, .5, 0, 0 against 1, 1, 1, 0
    assert (pooled["mean"], pooled["count"]) == (pytest.approx(0.375), 4)
    assert pooled["p"] == pytest.approx(0.5, abs=0.03)  # half of the signs of (.5, 1) reach the sum
    assert table["ranking"] == ["two", "one"]
    assert (table["tokens"], table["states"], table["steps"]) == (400, {"finished": 4}, 4)
    (pair,) = table["pairs"]
    assert (pair["first"], pair["other"], pair["seed"]["mean"]) == ("one", "two", pytest.approx(0.3))
    assert other["cost"]["tokens_in_all"] == 800


def test_the_ranking_follows_the_budget(two: tuple[ArenaConfig, Places], tmp_path: Path) -> None:
    _, places = two
    (one,) = [run for run in planned_runs(arena_of(tmp_path), places) if run.name == "two.seed1"]
    rows = (one.path / "metrics.jsonl").read_text().replace('"em":0.5', '"em":0.1')  # its curve lags behind its end
    (one.path / "metrics.jsonl").write_text(rows)
    arena = arena_of(tmp_path, ARENA, "budget=tokens")
    assert arena_table(arena, records_of(arena, places))["ranking"] == ["one", "two"]
    arena = arena_of(tmp_path)
    assert arena_table(arena, records_of(arena, places))["ranking"] == ["two", "one"]


def test_only_shared_seeds_and_kept_answers_are_paired(two: tuple[ArenaConfig, Places]) -> None:
    records = records_of(*two)
    first, other = [r for r in records if r.entry == "one"], [r for r in records if r.entry == "two"]
    unfinished = [first[0], replace(first[1], state="under way", answers=None)]
    assert paired_by_seed(unfinished, other, at_end("em")).count == 1
    assert paired_by_seed(unfinished, other, at_end("em")).mean == pytest.approx(0.2)
    assert paired_by_seed(unfinished, other, at_end("em")).p is None
    assert pooled_by_question(unfinished, other, "em").mean == pytest.approx(0.25)
    assert paired_by_seed(first[:1], other[1:], at_end("em")) is None
    assert pooled_by_question(first[:1], other[1:], "em") is None
    assert paired_by_seed(first, other, at_tokens("em", None)) is None


def test_curves_by_steps_and_by_tokens(two: tuple[ArenaConfig, Places]) -> None:
    own = [record for record in records_of(*two) if record.entry == "one"]
    places, means, low, high = by_step(own, "em")
    assert (places, means) == ([0, 2, 4], pytest.approx([0.1, 0.25, 0.45]))
    assert low[0] == high[0] == pytest.approx(0.1)
    assert high[2] == pytest.approx(0.45 + 0.63531)
    places, means, _, _ = by_tokens(own, "em")
    assert (places[0], places[-1], means[12]) == (0, 400, pytest.approx(0.25))
    assert by_tokens(own, "coverage")[0] == []


def test_t_statistics() -> None:
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 2.484138, 2 + 2.484138), abs=1e-6)
    with pytest.raises(ValueError, match="at least two"):
        t_interval([1.0])
    assert paired_t([1.0, 2.0, 3.0]) == pytest.approx(0.07418, abs=1e-6)
    assert (paired_t([0.0, 0.0]), paired_t([0.5, 0.5]), paired_t([1.0])) == (1.0, None, None)


# The report, whole and half-finished.


def test_the_report_of_a_finished_arena(two: tuple[ArenaConfig, Places]) -> None:
    arena, places = two
    table = write_arena_report(arena, places.root)
    assert json.loads((places.root / "table.json").read_text()) == table
    text = (places.root / "report.md").read_text()
    assert "4 runs of 4 steps (seeds 0, 1): 4 finished." in text
    assert "| two | 2 | 10.0 | 75.0 [" in text
    assert r"| One \| first | 2 | 10.0 | 45.0 [-18.5 to 108.5] |" in text
    assert "## After equally many generated tokens: 400" in text
    assert re.search(r"\| two \| 2 \| \+30\.0 \[[^]]*\] \| 0\.205 \|", text)
    assert "| two | 25 | 100 | 100 | 800 | 2.00 | 0.00 | 0.50 | 2.50 |" in text
    assert "1 updates skipped as not finite" in text
    assert "![Learning curves](curves.svg)" in text
    assert b"<svg" in (places.root / "curves.svg").read_bytes()
    page = (places.root / "report.html").read_text()
    assert "data:image/svg+xml;base64," in page
    assert "<script" not in page


def test_names_from_a_configuration_stay_text(tmp_path: Path) -> None:
    arena = arena_of(tmp_path, ARENA.replace("One | first", "<b>$x_1$</b>"))
    runs = planned_runs(arena, Places(tmp_path / "out"))
    fill(runs[0], [0.1, 0.2, 0.4], 100, answers="+")
    write_arena_report(arena, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;$x_1$&lt;/b&gt;" in page


def test_the_report_of_an_arena_that_is_under_way(two: tuple[ArenaConfig, Places], tmp_path: Path) -> None:
    _, places = two
    arena = arena_of(tmp_path, ARENA, "seeds=4")
    late = {run.name: run for run in planned_runs(arena, places)}
    fill(late["one.seed2"], [0.1, 0.9, 0.9], 100, steps=3)
    with (late["one.seed2"].path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":4,"rew')  # its writer is at work
    fill(late["two.seed2"], [0.1, 0.9, 0.9], 100, steps=1)
    places.failure("two.seed2").parent.mkdir(parents=True)
    places.failure("two.seed2").write_text('{"exit_code": 75, "message": "parse errors; stopped"}')
    table = write_arena_report(arena, places.root)
    assert table["states"] == {"finished": 4, "under way": 1, "stopped": 1, "waiting": 2}
    assert (table["entries"]["one"]["seeds"], table["entries"]["one"]["steps"]["em"]["mean"]) == (
        2,
        pytest.approx(0.45),
    )
    assert table["entries"]["one"]["cost"]["prompt_tokens"] == pytest.approx((25 + 25 + 20) / 3)
    assert table["tokens"] == 400
    text = (places.root / "report.md").read_text()
    assert "8 runs of 4 steps (seeds 0, 1, 2, 3): 4 finished, 1 under way, 1 stopped, 2 waiting." in text
    assert "| one.seed2 | under way | step 3 of 4" in text
    assert "| two.seed2 | stopped | step 1 of 4; exit code 75: parse errors; stopped (log: " in text
    assert "| two.seed3 | waiting | step 0 of 4 |" in text


def test_the_report_of_an_arena_without_a_run(tmp_path: Path) -> None:
    arena = arena_of(tmp_path)
    table = write_arena_report(arena, tmp_path / "out")
    assert (table["tokens"], table["states"]) == (None, {"waiting": 4})
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| two | 0 | – | – | – | – |" in text
    assert not (tmp_path / "out" / "curves.svg").exists()


def test_a_failed_cold_start_stops_its_entries(tmp_path: Path) -> None:
    arena = arena_of(tmp_path, ARENA + '[cold_start.factagent]\nsft = { source = "expert" }\n', "seeds=1")
    places = Places(tmp_path / "out")
    places.failure("cold-start.factagent").parent.mkdir(parents=True)
    places.failure("cold-start.factagent").write_text('{"exit_code": 65, "message": "no trajectory"}')
    assert {record.state for record in records_of(arena, places)} == {"stopped"}


def test_test_questions_that_are_not_there_are_no_look_at_them(two: tuple[ArenaConfig, Places]) -> None:
    arena, places = two
    with pytest.raises(UsageError, match=r"test\.path is missing: name the file"):
        confirm(arena, places.root, ["one"])
    absent = arena.model_copy(update={"test": arena.test.model_copy(update={"path": places.root / "no.jsonl"})})
    with pytest.raises(UsageError, match=r"test\.path: no test questions at .*no\.jsonl"):
        confirm(absent, places.root, ["one"])
    assert not (places.root / "confirm.json").exists()


def test_no_difference_has_no_sign(tmp_path: Path) -> None:
    arena, places = arena_of(tmp_path, ARENA, "seeds=1"), Places(tmp_path / "out")
    for run in planned_runs(arena, places):
        fill(run, [0.1, 0.2, 0.4], 100, answers="++--")
    write_arena_report(arena, places.root)
    text = (places.root / "report.md").read_text()
    assert "| two | +0.0 (" in text
    assert "-0.0" not in text


def test_a_report_into_a_file_is_refused(tmp_path: Path) -> None:
    arena = arena_of(tmp_path)
    with pytest.raises(UsageError, match=r"base\.toml cannot be a directory for output: it is a file"):
        write_arena_report(arena, tmp_path / "base.toml")
    assert (tmp_path / "base.toml").read_text() == BASE


def test_more_steps_than_asked_for_are_refused(two: tuple[ArenaConfig, Places], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one\.seed0 has 4 steps and the arena asks for 2; raise 'steps'"):
        check_arena(arena_of(tmp_path, ARENA, "steps=2"), two[1])
