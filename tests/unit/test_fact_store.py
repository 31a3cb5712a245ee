from __future__ import annotations

from factagent.protocols.fact_store import FactStore, fact_key
from factagent.types import Assert, Fact, Triple

A, B = Triple("Anna", "born in", "Lund"), Triple("Lund", "in", "Sweden")


def test_an_empty_store() -> None:
    assert len(FactStore()) == 0
    assert FactStore().facts == ()


def test_add_returns_a_new_store_and_leaves_the_old_one() -> None:
    old = FactStore()
    new = old.add(Assert((A,), "why"), assert_step=3, source_step=2)
    assert old.facts == ()
    assert new.facts == (Fact(A, 3, 2, "why"),)


def test_facts_stand_in_the_order_of_assertion() -> None:
    store = FactStore().add(Assert((B, A)), 1, 0).add(Assert((Triple("x", "y", "z"),)), 2, None)
    assert [fact.triple.subject for fact in store.facts] == ["Lund", "Anna", "x"]
    assert [(fact.assert_step, fact.source_step) for fact in store.facts] == [(1, 0), (1, 0), (2, None)]


def test_a_repeat_keeps_the_first_provenance() -> None:
    store = FactStore().add(Assert((A,), "first"), 1, 0)
    assert store.add(Assert((A, B), "second"), 5, 4).facts == (Fact(A, 1, 0, "first"), Fact(B, 5, 4, "second"))


def test_a_repeat_inside_one_assert_counts_once() -> None:
    assert len(FactStore().add(Assert((A, A, B, A)), 1, 0)) == 2


def test_identity_ignores_case_and_blanks_only() -> None:
    assert fact_key(Triple(" ANNA ", "born  in", "Lund\n")) == fact_key(A) == ("anna", "born in", "lund")
    assert fact_key(Triple("Straße", "in", "x")) == fact_key(Triple("STRASSE", "in", "x"))
    assert fact_key(Triple("Lund", "born in", "Anna")) != fact_key(A)
    assert fact_key(Triple("Anna born", "in", "Lund")) != fact_key(A)
    assert fact_key(Triple("Anna", "born in", "Lund.")) != fact_key(A)


def test_an_assert_that_adds_nothing_gives_an_equal_store() -> None:
    store = FactStore().add(Assert((A,)), 1, 0)
    assert store.add(Assert((A,)), 2, 0) == store
