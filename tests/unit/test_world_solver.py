from __future__ import annotations

import pytest

from factagent.data.world.solver import FactTable, chance_of, solve
from factagent.types import Triple

TABLE = FactTable(
    Triple(*text.split("|"))
    for text in (
        "Red Bay|was directed by|Ann",
        "Ann|directed|Red Bay",  # the same fact again, inverse
        "Blue Bay|was directed by|Bob",
        "Green Bay|was not directed by|Bob",
        "Red Bay|came out in|1950",
        "1960|was the release year of|Blue Bay",
        "Green Bay|was released in|1950",
        "Red Bay|starred|Cid",
        "Red Bay|has in its cast|Dee",
        "Dee|starred in|Blue Bay",
        "Blue Bay|starred|Eve",
        "Ann|was married to|Eve",
        "Ann|was born in the year|1901",
        "Bob|had the birth year|1900",
    )
)


def names(*values: str) -> list[object]:
    return ["names", list(values)]


def test_wordings_of_one_fact_are_one_fact() -> None:
    assert TABLE.objects("Red Bay", "directed_by") == ["Ann"]
    assert TABLE.subjects("Ann", "directed_by") == ["Red Bay"]
    assert sorted(TABLE.objects("Blue Bay", "starring")) == ["Dee", "Eve"]


def test_a_negated_statement_is_no_fact() -> None:
    assert TABLE.objects("Green Bay", "directed_by") == []
    assert TABLE.subjects("Bob", "directed_by") == ["Blue Bay"]


def test_a_symmetric_fact_holds_both_ways() -> None:
    assert TABLE.only("Eve", "spouse") == "Ann"
    assert TABLE.only("Ann", "spouse") == "Eve"


def test_only_refuses_several_objects() -> None:
    assert TABLE.only("Red Bay", "starring") is None


def test_programs() -> None:
    director_spouse = ["follow", ["follow", names("Red Bay"), "directed_by", False], "spouse", False]
    assert solve(director_spouse, TABLE) == {"Eve"}
    casts = ["both", *(["follow", names(film), "starring", False] for film in ("Red Bay", "Blue Bay"))]
    assert solve(casts, TABLE) == {"Dee"}
    same_year = ["follow", ["follow", names("Red Bay"), "released_in", False], "released_in", True]
    assert solve(["both", names("Green Bay", "Blue Bay"), same_year], TABLE) == {"Green Bay"}
    assert solve(["extreme", "last", ["Red Bay", "Blue Bay"], ["released_in"]], TABLE) == {"Blue Bay"}
    assert solve(["extreme", "first", ["Red Bay", "Blue Bay"], ["directed_by", "born_year"]], TABLE) == {"Blue Bay"}


def test_a_tie_or_a_gap_has_no_answer() -> None:
    assert solve(["extreme", "first", ["Red Bay", "Green Bay"], ["released_in"]], TABLE) == set()
    assert solve(["extreme", "last", ["Red Bay", "Unknown"], ["released_in"]], TABLE) == set()


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown program"):
        solve(["guess"], TABLE)


def test_chance_is_one_over_the_names_on_offer() -> None:
    assert chance_of(["extreme", "first", ["a", "b", "c"], ["released_in"]]) == 1 / 3
    assert chance_of(["both", names("a", "b", "c", "d"), names("a")]) == 0.25
    assert chance_of(["follow", names("a"), "spouse", False]) == 0.0
    assert chance_of(["both", ["follow", names("a"), "starring", False], names("b")]) == 0.0
