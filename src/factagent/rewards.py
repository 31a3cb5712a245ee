"""Answer metrics: exact match, token F1 and cover-EM, as Search-R1 and its descendants compute them.

The definitions are those of methods.md, section 2.4. They work on normalised text; all results lie in [0, 1].
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

NORMALISATION = 1
"""Version of `normalize_answer` and of the metrics on top of it; scores of different versions are never compared."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation, replace articles by a blank, collapse blanks; in that order.

    Curly quotes and dashes survive, accents and number formats are left alone (methods.md, section 2.4).
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 where the normalised prediction equals any normalised gold answer, else 0.0."""
    answer = normalize_answer(prediction)
    return float(any(answer == normalize_answer(gold) for gold in _as_list(golds)))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Token-multiset F1 of the normalised texts, the best over the gold answers.

    Where one side is exactly "yes", "no" or "noanswer" and the sides differ, that gold gives 0. An empty side gives 0.
    """
    answer = normalize_answer(prediction)
    return max((_f1_normalized(answer, normalize_answer(gold)) for gold in _as_list(golds)), default=0.0)


def f1_multiset(prediction: str, golds: Sequence[str]) -> float:
    """`f1` without the rule on "yes" and "no" (ZeroSearch's reward; methods.md, section 2.4)."""
    answer = normalize_answer(prediction)
    return max((_overlap(answer, normalize_answer(gold)) for gold in _as_list(golds)), default=0.0)


def cover_em(prediction: str, golds: Sequence[str]) -> float:
    """1.0 where any normalised gold is a substring of the normalised prediction (also called sub-EM), else 0.0.

    A gold that normalises to nothing ("The The") is a substring of every text; it counts only where the prediction
    normalises to nothing too, so that `cover_em >= exact_match` always holds.
    """
    answer = normalize_answer(prediction)
    normalized = (normalize_answer(gold) for gold in _as_list(golds))
    return float(any(gold in answer if gold else not answer for gold in normalized))


def _as_list(golds: Sequence[str]) -> Sequence[str]:
    return [golds] if isinstance(golds, str) else golds


def _f1_normalized(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS):
        return 0.0
    return _overlap(answer, gold)


def _overlap(answer: str, gold: str) -> float:
    answer_tokens, gold_tokens = answer.split(), gold.split()
    overlap = sum((Counter(answer_tokens) & Counter(gold_tokens)).values())
    if overlap == 0:
        return 0.0
    precision, recall = overlap / len(answer_tokens), overlap / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)
