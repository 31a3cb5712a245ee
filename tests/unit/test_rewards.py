"""Answer metrics against the conformance vectors of methods.md, section 14."""

from __future__ import annotations

import pytest

from factagent.rewards import cover_em, exact_match, f1, normalize_answer


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The U.S.A.", "usa"),
        ("An apple-pie", "applepie"),
        ("A.B. the Great", "ab great"),
        ("St. Paul's", "st pauls"),
        ("1,000", "1000"),
        ("The The", ""),
        ("St. Paul’s", "st paul’s"),
        ("a–b", "–b"),  # the dash survives; the article before it goes
        ("  many \t\n blanks ", "many blanks"),
        ("Beyoncé", "beyoncé"),
        ("theatre another", "theatre another"),
        ("", ""),
    ],
)
def test_normalize_answer(text: str, normalized: str) -> None:
    assert normalize_answer(text) == normalized


def test_normalization_deletes_punctuation_before_articles() -> None:
    # "t.h.e" becomes an article only because punctuation goes first; "a-b" becomes a word.
    assert normalize_answer("t.h.e end") == "end"
    assert normalize_answer("a-b") == "ab"


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("the obama", ["Obama"], 1.0),
        ("Obama!", ["Bush", "obama"], 1.0),
        ("Barack Obama", ["Obama"], 0.0),
        ("", ["Obama"], 0.0),
        ("Obama", [], 0.0),
        ("The The", ["the the"], 1.0),
    ],
)
def test_exact_match(prediction: str, golds: list[str], score: float) -> None:
    assert exact_match(prediction, golds) == score


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("Barack Hussein Obama", ["Barack Obama"], 0.8),
        ("yes", ["yes it is"], 0.0),
        ("yes it is", ["yes"], 0.0),
        ("yes", ["Yes."], 1.0),
        ("noanswer", ["noanswer found"], 0.0),
        ("no", ["no way", "no"], 1.0),
        ("New York New York", ["New York"], 2 / 3),
        ("", ["anything"], 0.0),
        ("", ["The The"], 0.0),
        ("anything", [], 0.0),
        ("red car", ["blue car", "red car now"], 0.8),
    ],
)
def test_f1(prediction: str, golds: list[str], score: float) -> None:
    assert f1(prediction, golds) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("it was Barack Obama", ["Obama"], 1.0),
        ("Obama", ["Barack Obama"], 0.0),
        ("anything", ["The The"], 0.0),  # the guard: the normalised gold is empty
        ("The The", ["The The"], 1.0),
        ("anything", ["The The", "thing"], 1.0),
        ("", ["Obama"], 0.0),
        ("Obama", [], 0.0),
    ],
)
def test_cover_em(prediction: str, golds: list[str], score: float) -> None:
    assert cover_em(prediction, golds) == score


@pytest.mark.parametrize("metric", [exact_match, f1, cover_em])
def test_a_bare_string_is_one_gold(metric: object) -> None:
    assert callable(metric)
    assert metric("Obama", "Obama") == 1.0
    assert metric("b", "Obama") == 0.0
