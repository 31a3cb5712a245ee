"""Scores of a question, coverage of gold facts, and the summary by hops and type."""

from __future__ import annotations

import pytest

from factagent.evaluation.intervals import wilson_interval
from factagent.evaluation.runner import evaluate, gold_coverage, score, summarise
from factagent.protocols import build_protocol
from factagent.protocols.actions import render_action
from factagent.retrieval.base import RetrievalError
from factagent.rollout import RolloutSettings
from factagent.types import (
    Answer,
    Assert,
    Generation,
    Invalid,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

WROTE, WRITTEN = Triple("Kafka", "wrote", "The Trial"), Triple("The Trial", "was written by", "Kafka")
BORN, DIED = Triple("Kafka", "was born in", "Prague"), Triple("Kafka", "died in", "Kierling")


def question(name="q", *, hops=2, kind="chain", evidences=(WROTE, BORN), variants=((WRITTEN,), ())):
    variants = variants if evidences else ()
    return Question(name, "Where?", ("Prague", "Praha"), kind, hops, evidences=evidences, evidence_variants=variants)


def played(*actions, reason=StopReason.ANSWERED):
    generation = Generation("x", (1,) * 10, (1, 2, 3), (0.0,) * 3, prompt_tokens=10)
    return Trajectory(tuple(Step(action, generation) for action in actions), reason)


@pytest.mark.parametrize(
    ("asserted", "expected"),
    [
        ((), 0.0),
        ((WROTE,), 0.5),
        ((WRITTEN,), 0.5),  # another wording of the same gold triple
        ((WROTE, WRITTEN), 0.5),  # stated twice, counted once
        ((WRITTEN, BORN), 1.0),
        ((Triple(" the trial", "Was written  by", "KAFKA"), BORN), 1.0),  # compared as the store compares
        ((DIED,), 0.0),
        ((Triple("Prague", "was born in", "Kafka"),), 0.0),  # turned round, it is another statement
    ],
)
def test_coverage_counts_gold_triples_in_any_listed_wording(asserted, expected):
    actions = [Assert(asserted)] if asserted else []
    assert gold_coverage(question(), played(*actions, Answer("Prague"))) == expected


def test_coverage_over_several_asserts_without_variants_and_without_annotation():
    plain = question(variants=())
    assert gold_coverage(plain, played(Assert((WROTE,)), Search("x"), Assert((BORN,)))) == 1.0
    assert gold_coverage(plain, played(Assert((WRITTEN,)))) == 0.0
    assert gold_coverage(question(evidences=()), played(Assert((WROTE,)))) is None


def test_scores_and_costs_of_a_question():
    actions = (Search("a"), Invalid("no_json"), Search("b"), Assert((BORN,)), Answer("old Praha"))
    result = score(question(), played(*actions))
    assert (result.em, result.f1, result.cover_em, result.coverage) == (0.0, pytest.approx(2 / 3), 1.0, 0.5)
    assert (result.steps, result.searches, result.invalid) == (5, 2, 1)
    assert (result.prompt_tokens, result.response_tokens) == (50, 15)


@pytest.mark.parametrize("last", [Search("a"), Answer("")])
def test_no_answer_scores_nothing(last):
    result = score(question(), played(last, reason=StopReason.OUT_OF_ROUNDS))
    assert (result.em, result.f1, result.cover_em) == (0.0, 0.0, 0.0)


def test_summary_by_hops_and_type_leaves_failures_out_and_counts_them():
    right, wrong = played(Assert((WROTE, BORN)), Answer("Prague")), played(Search("a"), Invalid("x"), Answer("Rome"))
    failed = played(Search("a"), reason=StopReason.RETRIEVAL_FAILED)
    results = [
        score(question("a", hops=1), right),
        score(question("b", hops=2), right),
        score(question("c", hops=2, kind="shared"), wrong),
        score(question("d", hops=2), failed),
        score(question("e", hops=None, kind=None, evidences=()), wrong),
    ]
    summary = summarise(results)
    assert (summary["n"], summary["failed"], summary["em"]) == (4, 1, 0.5)
    assert (summary["low"], summary["high"]) == wilson_interval(2, 4)
    assert summary["coverage"] == pytest.approx((1 + 1 + 0) / 3)  # the one without annotation has none
    assert summary["steps"] == pytest.approx((2 + 2 + 3 + 3) / 4)
    assert summary["parse_error_rate"] == pytest.approx(2 / 10)
    assert summary["prompt_tokens"] == pytest.approx(25.0)
    assert {hops: (row["n"], row["em"]) for hops, row in summary["by_hop"].items()} == {
        "1": (1, 1.0),
        "2": (2, 0.5),
        "unknown": (1, 0.0),
    }
    assert {kind: (row["n"], row["em"]) for kind, row in summary["by_type"].items()} == {
        "chain": (2, 1.0),
        "shared": (1, 0.0),
        "unknown": (1, 0.0),
    }
    assert summary["by_hop"]["unknown"]["coverage"] is None


def test_summary_of_nothing():
    assert summarise([]) == {"n": 0, "failed": 0, "by_hop": {}, "by_type": {}}
    failed = score(question(), played(reason=StopReason.TIMEOUT))
    assert summarise([failed]) == {"n": 0, "failed": 1, "by_hop": {}, "by_type": {}}


class Shelf:
    def __init__(self, broken=""):
        self.broken = broken

    def search(self, queries, top_k):
        if self.broken and any(self.broken in query for query in queries):
            raise RetrievalError("down")
        return [(Passage("p", "Kafka", "Kafka was born in Prague."),) for _ in queries]


class Script:
    """Searches for the question's id, then answers Prague."""

    def __init__(self):
        self.keys = []

    def generate(self, requests):
        self.keys += [request.key for request in requests]
        return [Generation(self.reply(request)) for request in requests]

    def reply(self, request):
        if request.state.round == 1:
            return render_action(Search(request.state.question.id))
        return render_action(Answer("Prague"))


def test_questions_are_played_in_batches_and_come_back_in_order():
    questions, seen, policy = [question(f"q{i}") for i in range(5)], [], Script()
    protocol = build_protocol("factagent", "factagent-terse")
    settings = RolloutSettings(group_size=1)
    results = evaluate(
        questions, protocol, policy, Shelf(), settings, batch_size=2, progress=lambda done: seen.append(len(done))
    )
    assert [result.question.id for result in results] == [f"q{i}" for i in range(5)]
    assert seen == [2, 4, 5]
    assert all(result.em == 1.0 and result.steps == 2 for result in results)
    assert len(set(policy.keys)) == 10  # each draw has a name of its own
    broken = evaluate(questions, protocol, Script(), Shelf("q3"), settings, batch_size=2)
    summary = summarise(broken)
    assert (summary["n"], summary["failed"], summary["em"]) == (3, 2, 1.0)  # a retrieval error ends its batch
