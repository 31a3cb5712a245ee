"""Facts and the passages that they may come from."""

from __future__ import annotations

from factagent.evaluation.provenance import sourced_facts
from factagent.types import Answer, Assert, Observation, Passage, Search, Step, Trajectory, Triple

LUND = Passage("1", "Anna Berg", "Born in  LUND,\nshe left early.")
OSLO = Passage("2", "Oslo", "A city where Anna Berg met a man from Lund.")


def trajectory(*steps: Step) -> Trajectory:
    return Trajectory(steps)


def search(*passages: Passage) -> Step:
    return Step(Search("anna"), observation=Observation("anna", passages))


def keep(*triples: tuple[str, str, str]) -> Step:
    return Step(Assert(tuple(Triple(*triple) for triple in triples)))


def test_a_fact_comes_from_the_first_passage_with_its_subject_and_object() -> None:
    steps = search(LUND, OSLO), keep(("anna berg", "born in", "Lund")), Step(Answer("Lund"))
    (fact,) = sourced_facts(trajectory(*steps))
    assert fact.found
    assert fact.passage == LUND
    assert fact.candidates == (LUND, OSLO)


def test_both_ends_must_be_in_the_same_passage() -> None:
    parts = Passage("1", "Anna", "Anna Berg."), Passage("2", "Lund", "Lund.")
    (fact,) = sourced_facts(trajectory(search(*parts), keep(("Anna Berg", "born in", "Lund"))))
    assert not fact.found
    assert fact.passage is None


def test_the_latest_search_before_the_assert_counts() -> None:
    steps = search(LUND), search(Passage("3", "Bo", "Bo lives in Bergen.")), keep(("Anna Berg", "born in", "Lund"))
    (fact,) = sourced_facts(trajectory(*steps))
    assert fact.fact.source_step == 1
    assert not fact.found


def test_facts_without_a_search_and_empty_ends_are_not_found() -> None:
    (unread,) = sourced_facts(trajectory(keep(("a", "b", "c"))))
    assert (unread.passage, unread.candidates) == (None, ())
    (empty,) = sourced_facts(trajectory(search(LUND), keep(("", "born in", "Lund"))))
    assert not empty.found
    failed = Step(Search("x"))
    (lost,) = sourced_facts(trajectory(failed, keep(("a", "b", "c"))))
    assert lost.candidates == ()
