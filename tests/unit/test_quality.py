from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from factagent.cli import main
from factagent.credit import adversaries, ranking
from factagent.credit.assign import assign_credit
from factagent.credit.config import CreditConfig
from factagent.credit.encoders import load_encoder
from factagent.credit.gigpo import GigpoConfig
from factagent.credit.measured import Measured
from factagent.credit.options import OPTIONS, named_options
from factagent.credit.quality import cells, gold_of, kind_of, quality
from factagent.credit.rule_choice import AnyRule
from factagent.errors import ConfigError, DataError, UsageError
from factagent.runs import RunDirectory
from factagent.types import (
    Answer,
    Assert,
    Group,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

BASE = CreditConfig(encoder="exact")
EXACT = load_encoder("exact")
GOLD = Triple("Anna", "was born in", "Oslo")
WORDED = Triple("Oslo", "is the birthplace of", "Anna")


def question(number: int) -> Question:
    return Question(
        f"q{number}",
        "Where?",
        ("Oslo",),
        supporting_titles=("Anna",),
        evidences=(GOLD,),
        evidence_variants=((WORDED,),),
    )


def member(answer: str, *triples: Triple, title: str = "Anna", stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    search = Step(Search("anna"), observation=Observation("anna", (Passage("1", title, "text"),)))
    return Trajectory((search, *(Step(Assert((triple,))) for triple in triples), Step(Answer(answer))), stop)


def noise(number: int) -> Triple:
    return Triple(f"Noise {chr(97 + number)}", "lies in", f"Place {chr(97 + number)}")


def saved_groups() -> list[Group]:
    """Twelve questions; gold is asserted by most, noise by one each; a third of the groups fails throughout."""
    groups = []
    for number in range(12):
        answers = ("Rome",) * 4 if number % 3 == 0 else ("Oslo", "Oslo", "Rome", "Rome")
        facts = ((GOLD,), (WORDED,), (GOLD, noise(number)), (noise(number + 12),))
        titles = ("Anna", "Anna", "Anna", "Rome")
        members = (member(a, *f, title=t) for a, f, t in zip(answers, facts, titles, strict=True))
        groups.append(Group(question(number), tuple(members)))
    return groups


def brute_auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positives for n in negatives]
    return sum(wins) / len(wins)


def test_auc_counts_pairs_and_ties_as_half() -> None:
    score = np.array([0.9, 0.5, 0.5, 0.1, 0.5])
    positive = np.array([True, True, False, False, False])
    wins = ranking.pair_wins(score, positive, np.array([0, 1, 1, 0, 2]), np.array([0, 1, 1, 0, 2]), 3)
    estimate = ranking.pooled_auc(wins, np.ones((1, 3)))
    assert estimate.value == brute_auc([0.9, 0.5], [0.5, 0.1, 0.5]) == 5 / 6
    assert (estimate.low, estimate.high) == (estimate.value, estimate.value)
    assert ranking.within_auc(wins, np.ones((1, 3))).value == (1.0 + 0.5) / 2


def test_bootstrap_weights_equal_repeating_the_questions() -> None:
    random = np.random.default_rng(3)
    score, positive = random.integers(0, 5, 40).astype(float), random.random(40) < 0.4
    place = random.integers(0, 6, 40)
    wins = ranking.pair_wins(score, positive, place, place, 6)
    weight = np.array([2.0, 0.0, 1.0, 3.0, 0.0, 0.0])
    repeated = [i for q in range(6) for _ in range(int(weight[q])) for i in np.flatnonzero(place == q)]
    expected = brute_auc([score[i] for i in repeated if positive[i]], [score[i] for i in repeated if not positive[i]])
    assert ranking.pooled_auc(wins, weight[None, :]).low == pytest.approx(expected)


def test_auc_without_positives_is_not_a_number() -> None:
    wins = ranking.pair_wins(np.ones(2), np.zeros(2, dtype=bool), np.zeros(2, dtype=int), np.zeros(2, dtype=int), 1)
    assert np.isnan(ranking.pooled_auc(wins, np.ones((4, 1))).value)


def test_scores_equal_but_for_rounding_tie() -> None:
    places = np.zeros(2, dtype=int)
    wins = ranking.pair_wins(np.array([0.1 + 0.2, 0.3]), np.array([True, False]), places, places, 1)
    assert ranking.pooled_auc(wins, np.ones((1, 1))).value == 0.5


def test_bootstrap_draws_as_many_questions_as_there_are_and_is_seeded() -> None:
    weights = ranking.bootstrap_weights(7, 5, seed=1)
    assert weights.sum(axis=1).tolist() == [7.0] * 5
    assert np.array_equal(weights, ranking.bootstrap_weights(7, 5, seed=1))
    assert not np.array_equal(weights, ranking.bootstrap_weights(7, 5, seed=2))


@pytest.mark.parametrize(
    ("triple", "expected"),
    [
        (GOLD, True),
        (WORDED, True),
        (Triple("ANNA", "was born in", "Oslo."), True),
        (Triple("Oslo", "was born in", "Anna"), False),
        (noise(0), False),
    ],
)
def test_gold_asserts_are_the_listed_wordings_in_their_orientation(triple: Triple, expected: bool) -> None:
    assert gold_of(question(0)).is_gold(Step(Assert((noise(1), triple)))) is expected


@pytest.mark.parametrize(("title", "expected"), [("anna", True), ("Annapolis", False)])
def test_gold_searches_returned_a_supporting_title(title: str, expected: bool) -> None:
    step = Step(Search("x"), observation=Observation("x", (Passage("9", "Other", ""), Passage("1", title, ""))))
    assert gold_of(question(0)).is_gold(step) is expected
    assert gold_of(question(0)).is_gold(Step(Search("x"))) is False


def test_kind_counts_only_members_without_failure() -> None:
    failed = member("Oslo", GOLD, stop=StopReason.TIMEOUT)
    right, wrong = member("Oslo", GOLD), member("Rome", GOLD)
    kinds = [
        kind_of(Group(question(0), group)) for group in ((wrong, failed), (right, failed), (right, wrong), (failed,))
    ]
    assert kinds == ["all-fail", "all-pass", "mixed", "all-fail"]


def test_areas_agree_with_pairs_counted_by_hand() -> None:
    groups = saved_groups()
    rows = list(quality(groups, {"paper": BASE}, EXACT, adversaries=()))
    assert len(rows) == cells({"paper": BASE}, ()) == 8
    row = next(row for row in rows if (row["steps"], row["kind"]) == ("assert", "mixed"))
    credits = assign_credit(groups, BASE, EXACT)
    gold = gold_of(question(0))
    scores: dict[bool, list[float]] = {True: [], False: []}
    within = []
    for group, credit in zip(groups, credits, strict=True):
        if kind_of(group) != "mixed":
            continue
        here: dict[bool, list[float]] = {True: [], False: []}
        for trajectory, record in zip(group.trajectories, credit.trajectories, strict=True):
            for step, ledger in zip(trajectory.steps, record.steps, strict=True):
                if isinstance(step.action, Assert):
                    here[gold.is_gold(step)].append(round(ledger.advantage, 12))
        scores = {flag: scores[flag] + here[flag] for flag in scores}
        within.append(brute_auc(here[True], here[False]))
    assert (row["positives"], row["negatives"]) == (24, 16)
    assert row["auc"] == pytest.approx(brute_auc(scores[True], scores[False]), abs=1e-6)
    assert row["auc_within"] == pytest.approx(np.mean(within), abs=1e-6)


def test_symmetric_prior_misleads_where_all_fail_and_centred_is_silent() -> None:
    configs = named_options(BASE, ["outcome-only", "paper", "centred", "centred + consensus"])
    rows = quality(saved_groups(), configs, EXACT, adversaries=())
    area = {row["credit"]: row["auc"] for row in rows if row["steps"] == "assert" and row["kind"] == "all-fail"}
    assert area["outcome-only"] == area["centred"] == 0.5
    assert isinstance(area["paper"], float)
    assert area["paper"] < 0.5
    # Two of three gold asserts win; the wording that one member chose ties with the noise.
    assert area["centred + consensus"] == pytest.approx(5 / 6, abs=1e-6)


def test_no_group_of_a_kind_gives_null_not_a_number() -> None:
    row = next(
        row for row in quality(saved_groups(), {"paper": BASE}, EXACT, adversaries=()) if row["kind"] == "all-pass"
    )
    assert (row["positives"], row["auc"], row["low"], row["auc_within"]) == (0, None, None, None)


def test_without_gold_there_is_nothing_to_judge() -> None:
    group = Group(Question("q", "?", ("Oslo",)), (member("Oslo", GOLD),))
    with pytest.raises(DataError, match="gold"):
        list(quality([group], {"paper": BASE}, EXACT))


@pytest.mark.parametrize("name", list(adversaries.ADVERSARIES))
def test_adversaries_add_one_assert_and_keep_every_outcome(name: str) -> None:
    groups = saved_groups()
    attacks = adversaries.attack(groups, adversaries.ADVERSARIES[name], seed=5)
    assert attacks == adversaries.attack(groups, adversaries.ADVERSARIES[name], seed=5)
    before, after = (assign_credit(g, BASE, EXACT) for g in (groups, [item.group for item in attacks]))
    for group, item, old, new in zip(groups, attacks, before, after, strict=True):
        assert item.adversaries
        gold = gold_of(group.question)
        for i, (honest, rewritten) in enumerate(zip(group.trajectories, item.group.trajectories, strict=True)):
            if i not in item.adversaries:
                assert rewritten == honest
                continue
            assert rewritten.steps[:2] + rewritten.steps[3:] == honest.steps
            assert isinstance(rewritten.steps[2].action, Assert)
            assert name == "paraphrase-spam" or not gold.is_gold(rewritten.steps[2])
        outcomes = [[(t.outcome, t.success) for t in credit.trajectories] for credit in (old, new)]
        assert outcomes[0] == outcomes[1]


def test_common_false_fact_is_one_fact_of_all_members_and_majority_spares_one() -> None:
    groups = saved_groups()
    for name, size in (("common-false-fact", 4), ("majority-false-fact", 3)):
        item = adversaries.attack(groups, adversaries.ADVERSARIES[name], seed=0)[1]
        assert len(item.adversaries) == size
        inserted = {item.group.trajectories[i].steps[2].action for i in item.adversaries}
        assert len(inserted) == 1


def test_members_that_never_assert_are_no_opening() -> None:
    group = Group(question(0), (member("Oslo"), member("Oslo", GOLD, stop=StopReason.TIMEOUT)))
    for adversary in adversaries.ADVERSARIES.values():
        (item,) = adversaries.attack([group], adversary, seed=0)
        assert (item.group, item.adversaries) == (group, ())


def test_gains_of_spam_follow_the_prior() -> None:
    configs = named_options(BASE, ["outcome-only", "paper", "centred", "centred, leave-one-out"])
    rows = list(quality(saved_groups(), configs, EXACT, adversaries=["false-fact-spam"]))
    gain = {row["credit"]: row["gain"] for row in rows if row["table"] == "gain" and row["kind"] == "all-fail"}
    assert gain["outcome-only"] == gain["centred"] == gain["centred, leave-one-out"] == 0.0
    assert isinstance(gain["paper"], float)
    assert gain["paper"] > 0.1
    assert {row["groups"] for row in rows} == {"original", "false-fact-spam"}
    assert len(rows) == cells(configs, ["false-fact-spam"])


def test_options_change_the_base_and_can_be_spelled_out() -> None:
    base = BASE.model_copy(update={"orientation": "strict"})
    configs = named_options(base, ["centred, 5", "mine:prior=centred,consensus=0.1,entities=false"])
    assert configs["centred, 5"] == base.model_copy(update={"prior": "centred", "process_weight": 5.0})
    mine = configs["mine"]
    assert (mine.prior, mine.consensus, mine.entities, mine.orientation) == ("centred", 0.1, False, "strict")
    assert list(named_options(base)) == list(OPTIONS)
    assert named_options(base)["paper"] == base


@pytest.mark.parametrize("item", ["papre", "x:omega=1", "x:attribution=3", "x:prior"])
def test_wrong_options_are_configuration_errors(item: str) -> None:
    with pytest.raises(ConfigError, match=item.split(":")[0]):
        named_options(BASE, [item])


@pytest.fixture
def saved_run(tmp_path: Path) -> Path:
    run = RunDirectory.create(tmp_path / "run", "")
    for number, group in enumerate(saved_groups()):
        run.log_group(number % 2, group, passage_text=False)
    return run.path


def test_command_prints_json_lines_and_shows_tables(saved_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--credit", "paper", "--credit", "mine:prior=centred", "--resamples", "50"]
    assert main(["credit-quality", str(saved_run), *flags]) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert len(rows) == 2 * 4 * (2 + 3 * 4)
    assert {row["credit"] for row in rows} == {"paper", "mine"}
    assert {row["groups"] for row in rows} == {"original", *adversaries.ADVERSARIES}
    assert "original groups" in printed.err
    assert "gains over its honest self" in printed.err


def test_command_selects_a_step_and_leaves_adversaries_out(saved_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["credit-quality", str(saved_run), "--credit", "paper", "--step", "1", "--no-adversaries"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 8
    everything = next(row for row in rows if (row["steps"], row["kind"]) == ("search", "all"))
    assert everything["positives"] + everything["negatives"] == 6 * 4


def test_command_refuses_what_is_no_run_or_holds_no_groups(
    saved_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["credit-quality", str(tmp_path / "nothing")]) == 2
    assert main(["credit-quality", str(saved_run), "--step", "9"]) == 65
    assert "no saved groups of step 9" in capsys.readouterr().err


def searching(answer: str, title: str) -> Trajectory:
    """A member of a protocol without asserts."""
    search = Step(Search("anna"), observation=Observation("anna", (Passage("1", title, "text"),)))
    return Trajectory((search, Step(Answer(answer))))


def searching_groups() -> list[Group]:
    members = (searching("Oslo", "Anna"), searching("Oslo", "Anna"), searching("Rome", "Rome"))
    return [Group(question(number), members) for number in range(4)]


def test_groups_without_asserts_are_judged_by_their_searches() -> None:
    groups = searching_groups()
    assert kind_of(groups[0], needs_facts=False) == "mixed"
    configs = named_options(BASE.model_copy(update={"needs_facts": False}), ["outcome", "gigpo", "gigpo, omega 0"])
    rows = list(quality(groups, configs, EXACT))
    assert len(rows) == cells(configs, list(adversaries.ADVERSARIES), asserts=False) == 3 * 4
    assert {(row["table"], row["steps"], row["groups"]) for row in rows} == {("auc", "search", "original")}
    mixed = {row["credit"]: row["auc_within"] for row in rows if row["kind"] == "mixed"}
    assert mixed == {"outcome": 1.0, "gigpo": 1.0, "gigpo, omega 0": 1.0}


def test_options_of_other_rules_keep_what_was_set_and_every_rule_knows() -> None:
    assert named_options(BASE, ["gigpo"])["gigpo"] == GigpoConfig()
    base = CreditConfig(encoder="exact", outcome="em", needs_facts=False, process_weight=2.0)
    expected = GigpoConfig(outcome="em", needs_facts=False, omega=0.0)
    assert named_options(base, ["gigpo, omega 0"])["gigpo, omega 0"] == expected
    assert named_options(base, ["x:rule=e-grpo,alpha=0.5"])["x"].model_dump()["alpha"] == 0.5
    assert named_options(base, ["vine"])["vine"].needs == "values"
    assert not any(config.needs for config in named_options(base).values())


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("x:rule=gigop", "key 'rule'"),
        ("x:rule=gigpo,alpha=1", "key 'alpha'"),
        ("x:rule=gigpo,omega=-1", "key 'omega'"),
        ("x:rule=gae,lam=2", "key 'lam'"),
    ],
)
def test_wrong_options_of_other_rules(item: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"credit option 'x': {problem}"):
        named_options(BASE, [item])


def test_measured_rules_judge_the_groups_as_they_are() -> None:
    groups = saved_groups()
    configs = named_options(BASE, ["outcome", "vine"])
    for rule in ("vine", "gae"):
        with pytest.raises(UsageError, match=rf"rule '{rule}' needs measurements \(values\)"):
            list(quality(groups, named_options(BASE, [rule]), EXACT))

    def flat(groups: Sequence[Group], config: AnyRule) -> Measured | None:
        return Measured(values=[[np.zeros(len(t.steps) + 1) for t in group.trajectories] for group in groups])

    rows = list(quality(groups, configs, EXACT, measure=flat))
    assert len(rows) == cells(configs, list(adversaries.ADVERSARIES))
    assert {row["groups"] for row in rows if row["credit"] == "vine"} == {"original"}
    # Values of 0 leave everything to the last step: searches and asserts tie.
    assert {row["auc"] for row in rows if row["credit"] == "vine" and row["kind"] == "all"} == {0.5}


def test_no_adversary_gains_where_facts_are_not_looked_at() -> None:
    configs = named_options(BASE, ["outcome", "e-grpo", "reinforce"])
    rows = [row for row in quality(saved_groups(), configs, EXACT) if row["table"] == "gain"]
    assert {row["gain"] for row in rows if row["attacked"]} == {0.0}


def test_command_judges_other_rules_and_protocols(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(tmp_path / "run", "")
    for group in searching_groups():
        run.log_group(1, group)
    flags = ["--credit", "outcome", "--credit", "gigpo", "--resamples", "50"]
    assert main(["credit-quality", str(run.path), *flags]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 2 * 4
    assert {row["auc_within"] for row in rows if row["kind"] == "mixed"} == {1.0}
