"""Answer metrics against a second implementation, written from methods.md 2.4 without regular expressions."""

from __future__ import annotations

import random
import string

from hypothesis import example, given, settings
from hypothesis import strategies as st

from factagent.rewards import cover_em, exact_match, f1, normalize_answer

WORDS = [
    "a",
    "an",
    "the",
    "The",
    "yes",
    "no",
    "noanswer",
    "Yes.",
    "Obama",
    "New",
    "York",
    "1,000",
    "é",
    "O’Neil",
    "a.",
    "İ",
    "the-",
]
ANSWERS = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
    st.text(alphabet="aAnNtThHeE .-'_yYesSoO", max_size=12),
)


def is_word(char: str) -> bool:
    r"""What `\w` means: alphanumeric or underscore."""
    return char == "_" or char.isalnum()


def slow_normalize(text: str) -> str:
    kept = [char for char in text.lower() if char not in string.punctuation]
    pieces: list[str] = []
    for char in kept:
        if pieces and is_word(char) == is_word(pieces[-1][-1]):
            pieces[-1] += char
        else:
            pieces.append(char)
    return " ".join("".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split())


def slow_f1(prediction: str, gold: str) -> float:
    left, right = slow_normalize(prediction), slow_normalize(gold)
    for closed in ("yes", "no", "noanswer"):
        if (left == closed) != (right == closed):
            return 0.0
    remaining = right.split()
    total = len(left.split()) + len(remaining)
    common = 0
    for token in left.split():
        if token in remaining:
            remaining.remove(token)
            common += 1
    return 2 * common / total if common else 0.0


def slow_scores(prediction: str, golds: list[str]) -> tuple[float, float, float]:
    em = cover = best = 0.0
    left = slow_normalize(prediction)
    for gold in golds:
        right = slow_normalize(gold)
        em = max(em, float(left == right))
        cover = max(cover, float(left.find(right) >= 0 if right != "" else left == ""))
        best = max(best, slow_f1(prediction, gold))
    return em, best, cover


def agrees(prediction: str, golds: list[str]) -> bool:
    em, best, cover = slow_scores(prediction, golds)
    same = exact_match(prediction, golds) == em and cover_em(prediction, golds) == cover
    return same and abs(f1(prediction, golds) - best) <= 1e-12


@settings(max_examples=2000)
@given(ANSWERS, st.lists(ANSWERS, max_size=3))
@example("The The", ["the the", ""])
@example("", [""])
def test_metrics_agree_with_the_slow_ones(prediction: str, golds: list[str]) -> None:
    assert normalize_answer(prediction) == slow_normalize(prediction)
    assert agrees(prediction, golds)


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_order_of_the_metrics(prediction: str, golds: list[str]) -> None:
    em = exact_match(prediction, golds)
    assert cover_em(prediction, golds) >= em
    assert 0.0 <= f1(prediction, golds) <= 1.0
    if em and normalize_answer(prediction):
        assert f1(prediction, golds) == 1.0


@given(ANSWERS)
def test_normalization_only_leaves_what_it_may(text: str) -> None:
    normalized = normalize_answer(text)
    assert not set(normalized) & set(string.punctuation)
    assert normalized == " ".join(normalized.split())


def test_parity_on_ten_thousand_pairs() -> None:
    """R17: at least 10,000 answer pairs, with Unicode, empties and articles, agree without exception."""
    draw = random.Random(17)
    letters = "aAbethn THE.,'-é’ ÅßŒ東京 0123 yesno\u00a0\u2003_"
    disagreements = []
    for _ in range(10_000):
        prediction, gold = ("".join(draw.choices(letters, k=draw.randrange(14))) for _ in range(2))
        if draw.random() < 0.5:
            gold = prediction + draw.choice(["", " the", "!", " x", " yes"])
        if not agrees(prediction, [gold]):
            disagreements.append((prediction, gold))
    assert disagreements == []
