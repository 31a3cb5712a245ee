"""Rows of results, the summary over sets, its tables, and comparisons between evaluations."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from factagent.cli import main
from factagent.errors import DataError, UsageError
from factagent.evaluation import compare as module
from factagent.evaluation.compare import compare, holm, mcnemar, sign_flip
from factagent.evaluation.compare_tables import comparison_markdown
from factagent.evaluation.config import EvalConfig
from factagent.evaluation.intervals import bootstrap_mean
from factagent.evaluation.paper import load_paper, paper_sizes
from factagent.evaluation.results import EvalDirectory, read_results
from factagent.evaluation.rows import ResultRow, line_of
from factagent.evaluation.runner import score
from factagent.evaluation.summary import summarise_sets
from factagent.evaluation.tables import markdown
from factagent.records import group_to_record, record_to_group
from factagent.types import Answer, Generation, Group, Question, Search, Step, StopReason, Trajectory

CONFIG = EvalConfig.model_validate({"retriever": {"corpus": "c.jsonl"}, "sets": [{"name": "s", "path": "q.jsonl"}]})
FAILED = StopReason.RETRIEVAL_FAILED


def question(name="q1", **more):
    return Question(name, f"What is {name}?", ("Prague",), **more)


def played(answer="Prague", reason=StopReason.ANSWERED):
    generation = Generation("x", (1,) * 10, (1, 2, 3), (0.0,) * 3, prompt_tokens=10)
    steps = [Step(Search("a"), generation)]
    return Trajectory((*steps, *([Step(Answer(answer), generation)] if answer else [])), reason)


def row_of(name="s", asked=None, answer="Prague", reason=StopReason.ANSWERED, error=None):
    return ResultRow.of(name, score(asked or question(), played(answer, reason)), error)


def graded(name, count, right, failed=0):
    """Rows of a set: so many questions, so many right, so many failed."""
    good, bad, broken = row_of(name), row_of(name, answer="Rome"), row_of(name, answer=None, reason=FAILED)
    rows = [replace(good if i < right else bad, id=f"q{i}") for i in range(count)]
    return rows + [replace(broken, id=f"f{i}") for i in range(failed)]


def summary_of(seed=0, **sets):
    return summarise_sets(sets, {name: len(rows) for name, rows in sets.items()}, seed)


# Rows.


def test_a_row_is_read_as_it_was_written(tmp_path):
    asked = question("é\n", type="chain", hops=2, supporting_titles=("T",))
    result = score(asked, played("Rome"))
    row = ResultRow.of("nq", result)
    failed = row_of("nq", question("f"), None, FAILED, "server http://x: refused")
    run = EvalDirectory(tmp_path)
    run.create("seed = 1\n", {"kind": "bm25"})
    run.append([line_of(row, result), line_of(failed, score(question("f"), played(None, FAILED)))])
    assert list(read_results(tmp_path)) == [row, failed]
    assert (failed.failed, failed.error, failed.answer) == (True, "server http://x: refused", None)
    first = json.loads((tmp_path / "results.jsonl").read_bytes().splitlines()[0])
    # The documented fields, in this order.
    assert " ".join(first) == (
        "schema normalisation set id question golds type hops answer em f1 cover_em coverage gold_passage_recall "
        "first_search_recall steps searches invalid prompt_tokens response_tokens stop_reason error trajectory"
    )
    assert (first["gold_passage_recall"], first["response_tokens"]) == (0.0, 6)
    # The trajectory is a record's, without token ids but with their number.
    group = Group(asked, (played("Rome"),))
    lean = group_to_record(group, token_ids=False, messages=False)
    assert first["trajectory"] == lean["trajectories"][0]
    (again,) = record_to_group({**lean, "trajectories": [first["trajectory"]]}).trajectories
    assert score(asked, again).response_tokens == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "results.jsonl:1: field 'schema': is 2, and this version of factagent reads 1"),
        ({"normalisation": 9}, "field 'normalisation': is 9, and this version"),
        ({"em": "1"}, "field 'em': must be a number, found '1'"),
        ({"em": None}, "field 'em': is null"),
        ({"stop_reason": "bored"}, "field 'stop_reason': must be one of answered"),
        ({"steps": 1.5}, "field 'steps': must be a whole number"),
        ({"golds": [1]}, r"field 'golds\[0\]': must be a string"),
    ],
)
def test_a_malformed_row_is_named_with_its_place(tmp_path, change, message):
    run = EvalDirectory(tmp_path)
    run.create("", {})
    line = json.loads(line_of(row_of(), score(question(), played())))
    (tmp_path / "results.jsonl").write_text(json.dumps(line | change) + "\n")
    with pytest.raises(DataError, match=message):
        list(read_results(tmp_path))


# Summary.


def test_averages_weigh_questions_or_sets_and_leave_failures_out():
    summary = summary_of(a=graded("a", 30, 15, failed=4), b=graded("b", 10, 10), c=graded("c", 0, 0, failed=3))
    assert (summary["questions"], summary["scored"], summary["failed"]) == (47, 40, 7)
    assert summary["stop_reasons"] == {"answered": 40, "retrieval_failed": 7}
    assert (summary["sets"]["a"]["n"], summary["sets"]["a"]["failed"], summary["sets"]["a"]["em"]) == (30, 4, 0.5)
    assert summary["sets"]["c"] == {"questions": 3, "n": 0, "failed": 3, "by_hop": {}, "by_type": {}}
    averages = summary["averages"]
    assert averages.keys() == {"weighted", "macro"}
    assert averages["weighted"]["em"] == pytest.approx(25 / 40)
    assert averages["macro"]["em"] == pytest.approx((0.5 + 1.0) / 2)
    a = bootstrap_mean([float(i < 15) for i in range(30)], 0)
    assert (summary["sets"]["a"]["low"], summary["sets"]["a"]["high"]) == (a.low, a.high)
    # The other set has no spread: the interval of the macro average is half as wide.
    width = averages["macro"]["high"] - averages["macro"]["low"]
    assert width == pytest.approx((a.high - a.low) / 2, abs=0.01)


def test_the_seven_sets_are_averaged_by_their_full_sizes_too():
    """FactAgent-7B's row, with 1,000 questions a set: 51.22 by full sizes, 45.99 over sets."""
    (row,) = [row for row in load_paper().rows if (row.size, row.method) == ("7B", "FactAgent")]
    sets = {name: graded(name, 1000, round(10 * em)) for name, em in row.em.items()}
    summary = summary_of(**sets)
    averages = summary["averages"]
    assert round(100 * averages["paper_weighted"]["em"], 2) == 51.22
    assert round(100 * averages["macro"]["em"], 2) == 45.99
    assert averages["weighted"]["em"] == pytest.approx(averages["macro"]["em"])
    text = markdown(CONFIG, summary)
    ours, theirs = (
        next(line for line in text.splitlines() if line.startswith(f"| {name}")) for name in ("this", "7B FactAgent |")
    )
    assert ours.split("|")[2:] == theirs.split("|")[2:]


@pytest.mark.parametrize(
    ("rollout", "shown"),
    [
        ({}, ", greedy;"),
        ({"top_p": 0.9}, ", greedy;"),
        ({"temperature": 0.7}, ", temperature 0.7;"),
        ({"temperature": 1.0, "top_p": 0.95}, ", temperature 1, top-p 0.95;"),
    ],
)
def test_the_report_says_how_replies_were_decoded(rollout, shown):
    config = EvalConfig.model_validate(CONFIG.model_dump() | {"rollout": rollout})
    assert shown in markdown(config, summary_of(s=graded("s", 3, 1))).splitlines()[2]


def test_nothing_scored_gives_no_average():
    summary = summary_of(a=graded("a", 0, 0, failed=2))
    assert summary["averages"] == {}
    assert "0 of 2 questions scored. 2 failed and are in no mean." in markdown(CONFIG, summary)


def test_a_summary_is_a_function_of_rows_and_seed():
    rows = {"a": graded("a", 40, 13), "b": graded("b", 20, 3)}
    assert summary_of(**rows) == summary_of(**rows)
    assert any(summary_of(seed=seed, **rows) != summary_of(**rows) for seed in (1, 2, 3))


# Tables.


def test_the_papers_rows_stand_beside_sets_of_its_names_only():
    assert "Beside the paper" not in markdown(CONFIG, summary_of(**{"nq.train": graded("nq.train", 5, 1)}))
    text = markdown(CONFIG, summary_of(mine=graded("mine", 5, 1), bamboogle=graded("bamboogle", 125, 36)))
    assert "| method | Bamboogle | weighted | macro |" in text
    assert "| this: tiny | 28.8 |" in text
    assert "| 3B GiGPO * | 28.8 |" in text
    assert "Bamboogle as printed: 3B 64.1, 7B 68.9." in text
    assert "scored parts of the sets" not in text
    part = markdown(CONFIG, summary_of(nq=graded("nq", 5, 1)))
    assert f"nq 5 of {paper_sizes()['nq']}" in part
    assert "GiGPO *" not in part


def test_tables_show_what_the_data_has():
    rows = [
        row_of("s", question("a", hops=2, type="a|b", supporting_titles=("T",))),
        row_of("s", question("b", hops=3), "Rome"),
    ]
    text = markdown(CONFIG, summary_of(s=rows))
    assert "| s | 2 | 1 | 100.0 | 20.7 to 100.0 | 100.0 |" in text  # Wilson: it has a width for one question
    assert "| s | a\\|b | 1 |" in text
    assert "| s | 0.0 | 0.0 | – |" in text
    bare = markdown(CONFIG, summary_of(s=graded("s", 3, 1)))
    assert "By number of hops" not in bare
    assert "Evidence" not in bare
    assert "| s | 2.00 | 1.00 | 0.0 | 20 | 6 |" in bare


# Tests of differences.


def test_mcnemar_is_the_binomial_test_of_the_disagreements():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 6) == pytest.approx(2 / 2**6)
    assert mcnemar(1, 8) == pytest.approx(2 * (1 + 9) / 2**9)
    assert mcnemar(8, 1) == mcnemar(1, 8)


def test_sign_flips_agree_with_all_flips():
    differences = np.array([0.5, 0.25, -0.1, 0.0, 0.75, 0.3, -0.2, 0.4])
    moved = differences[differences != 0]
    sums = [
        abs(sum(s * d for s, d in zip(signs, moved, strict=True))) for signs in itertools.product((1, -1), repeat=7)
    ]
    exact = np.mean([total >= abs(moved.sum()) - 1e-9 for total in sums])
    assert sign_flip(differences, 0, 40_000) == pytest.approx(exact, abs=0.01)
    assert sign_flip(differences, 3) == sign_flip(differences, 3)
    assert sign_flip(np.zeros(4), 0) == 1.0
    assert sign_flip(np.full(60, 0.1), 0) == pytest.approx(1 / (1 + module.FLIPS))


def test_sign_flips_in_blocks_are_as_many(monkeypatch):
    monkeypatch.setattr(module, "_FLIP_BLOCK", 7)
    assert 0 < sign_flip(np.array([0.5, 0.2, -0.4]), 0, 1000) <= 1


def test_holm_multiplies_and_never_decreases():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


# Comparisons.


def write(path, rows, **summary):
    """A finished evaluation with these (set, question, answer, stop reason)."""
    run, kept, lines = EvalDirectory(path), {}, []
    path.mkdir(parents=True)
    run.create("", {})
    for name, asked, answer, reason in rows:
        result = score(asked, played(answer, reason))
        kept.setdefault(name, []).append(ResultRow.of(name, result))
        lines.append(line_of(kept[name][-1], result))
    run.append(lines)
    whole = summarise_sets(kept, {name: len(each) for name, each in kept.items()}, 0)
    run.write_report({**whole, **summary}, "")
    return path


def answers(name, texts, failed=()):
    for index, text in enumerate(texts):
        yield name, question(f"q{index}"), text, FAILED if index in failed else StopReason.ANSWERED


def test_only_shared_questions_that_nobody_failed_at_are_compared(tmp_path):
    first = write(tmp_path / "a", answers("s", ["Prague"] * 4 + ["Rome"] * 6 + [None], failed=[10]))
    other = write(tmp_path / "b", [*answers("s", ["Rome"] + ["Prague"] * 8), *answers("t", ["Prague"] * 3)])
    (found,) = compare([first, other])
    assert (found.shared, found.unshared, found.failed) == (9, 2 + 3, 0)
    whole, line = found.lines
    assert (whole.set, line.set, line.questions, line.wins, line.losses) == ("all", "s", 9, 5, 1)
    assert (line.em.first, line.em.other) == (pytest.approx(4 / 9), pytest.approx(8 / 9))
    assert line.em.difference == pytest.approx(4 / 9)
    assert line.em.low < line.em.difference < line.em.high
    assert line.em.p == line.em.p_holm == mcnemar(5, 1)
    assert [example["id"] for example in found.won] == ["q4", "q5", "q6", "q7", "q8"]
    assert found.lost == (
        {"set": "s", "id": "q0", "question": "What is q0?", "golds": ["Prague"], "first": "Prague", "other": "Rome"},
    )
    text = comparison_markdown([found])
    assert "9 questions shared, 5 not." in text
    assert "| s | 9 | 44.4 | 88.9 | +44.4 |" in text
    assert "Holm" not in text


def test_questions_at_which_a_server_failed_are_left_out_and_counted(tmp_path):
    first = write(tmp_path / "a", answers("s", ["Prague", None, "Rome"], failed=[1]))
    other = write(tmp_path / "b", answers("s", [None, "Prague", "Prague"], failed=[0]))
    (found,) = compare([first, other])
    assert (found.shared, found.failed, found.lines[0].questions, found.lines[0].wins) == (3, 2, 1, 1)
    down = write(tmp_path / "c", answers("s", [None] * 3, failed=[0, 1, 2]))
    with pytest.raises(DataError, match="a server failed at every shared question"):
        compare([first, down])


def test_several_runs_are_held_against_the_first_with_holms_correction(tmp_path):
    first = write(tmp_path / "a", answers("s", ["Rome"] * 12))
    runs = [write(tmp_path / str(n), answers("s", ["Prague"] * n + ["Rome"] * (12 - n))) for n in (6, 9)]
    few, many = compare([first, *runs])
    assert [each.lines[0].em.p for each in (few, many)] == [2 / 2**6, 2 / 2**9]
    assert [each.lines[0].em.p_holm for each in (few, many)] == [2 / 2**6, 2 * 2 / 2**9]
    assert "corrected by Holm" in comparison_markdown([few, many])
    assert compare([first, *runs], seed=1)[0].lines[0].f1.p == pytest.approx(few.lines[0].f1.p, abs=0.02)


def test_what_cannot_be_compared_is_refused(tmp_path):
    first = write(tmp_path / "a", answers("s", ["Prague"]))
    with pytest.raises(UsageError, match="1 evaluation to compare"):
        compare([first])
    with pytest.raises(DataError, match="share no question"):
        compare([first, write(tmp_path / "b", answers("t", ["Prague"]))])
    with pytest.raises(DataError, match=r"has normalisation 1, .*c has 2: not comparable"):
        compare([first, write(tmp_path / "c", answers("s", ["Prague"]), normalisation=2)])
    other = [("s", replace(question("q0"), answers=("Rome",)), "Rome", StopReason.ANSWERED)]
    with pytest.raises(DataError, match="question 'q0' of set 's' is not the same in both"):
        compare([first, write(tmp_path / "d", other)])
    (tmp_path / "a" / "summary.json").unlink()
    with pytest.raises(UsageError, match=r"has no summary\.json; finish the evaluation with: factagent eval --resume"):
        compare([first, tmp_path / "b"])


def test_the_command_prints_tables_or_json(tmp_path, capsys):
    first = write(tmp_path / "a", answers("s", ["Rome"] * 3))
    other = write(tmp_path / "b", answers("s", ["Prague"] * 3))
    assert main(["compare", str(first), str(other)]) == 0
    assert capsys.readouterr().out.startswith(f"# {other} against {first}\n\n3 questions shared, 0 not.\n")
    assert main(["compare", str(first), str(other), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["lines"][0]["em"]["p"] == 0.25
    assert main(["compare", str(first), str(write(tmp_path / "c", answers("t", ["Rome"])))]) == 65
