from __future__ import annotations

import dataclasses

import pytest

from factagent.types import (
    Answer,
    Assert,
    Fact,
    Generation,
    Invalid,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

A, B, C = Triple("Anna", "born in", "Lund"), Triple("Lund", "in", "Sweden"), Triple("Anna", "wrote", "Rain")


def test_triple_is_a_plain_tuple_with_a_text() -> None:
    assert A == ("Anna", "born in", "Lund")
    assert A.text == "Anna born in Lund"


def test_records_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Question("1", "q", ("a",)).text = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Step(Search("x")).observation = Observation("x", ())  # type: ignore[misc]


def test_records_compare_by_value_and_hash() -> None:
    assert Passage("1", "t", "x") == Passage("1", "t", "x", 0.0)
    assert len({Step(Search("a")), Step(Search("a")), Step(Answer("a"))}) == 2


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        (StopReason.ANSWERED, False),
        (StopReason.OUT_OF_ROUNDS, False),
        (StopReason.PROMPT_TOO_LONG, False),
        (StopReason.RETRIEVAL_FAILED, True),
        (StopReason.POLICY_FAILED, True),
        (StopReason.TIMEOUT, True),
    ],
)
def test_only_infrastructure_ends_are_failures(reason: StopReason, failure: bool) -> None:
    assert reason.is_failure is failure


def test_every_stop_reason_is_classified() -> None:
    assert {str(reason) for reason in StopReason if reason.is_failure} == {
        "retrieval_failed",
        "policy_failed",
        "timeout",
    }


@pytest.mark.parametrize(
    ("steps", "answer"),
    [
        ((), None),
        ((Step(Search("q")),), None),
        ((Step(Answer("early")), Step(Search("q"))), None),
        ((Step(Search("q")), Step(Answer("Lund"))), "Lund"),
        ((Step(Answer("")),), ""),
        ((Step(Invalid("no_json", "answer: Lund"), Generation("answer: Lund")),), None),
    ],
)
def test_answer_is_that_of_the_last_step_only(steps: tuple[Step, ...], answer: str | None) -> None:
    assert Trajectory(steps).answer == answer


def test_facts_keep_order_repeats_and_provenance() -> None:
    steps = (
        Step(Assert((C,))),
        Step(Search("one")),
        Step(Invalid("no_json")),
        Step(Assert((A, B), "seen")),
        Step(Assert((A,))),
        Step(Search("two")),
        Step(Search("three")),
        Step(Assert((C,), "late")),
    )
    assert Trajectory(steps).facts == (
        Fact(C, 0, None),
        Fact(A, 3, 1, "seen"),
        Fact(B, 3, 1, "seen"),
        Fact(A, 4, 1),
        Fact(C, 7, 6, "late"),
    )


def test_a_trajectory_without_steps_has_no_facts() -> None:
    assert Trajectory((), StopReason.TIMEOUT).facts == ()


def test_repr_of_a_trajectory_leaves_the_prompts_out() -> None:
    assert "messages" not in repr(Trajectory(()))
