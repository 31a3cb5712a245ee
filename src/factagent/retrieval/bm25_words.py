"""The words that BM25 counts: one pinned tokeniser for passages and queries."""

from __future__ import annotations

import re

from factagent.retrieval.manifest import BM25Settings, Tokeniser

# Lucene's default English list.
STOP_WORDS_EN = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with",
    )
)
_WORD = re.compile(Tokeniser().pattern)


def tokenise(text: str, settings: BM25Settings) -> list[str]:
    """Lower-case words of `text`, by the pinned tokeniser (`manifest.Tokeniser`)."""
    words: list[str] = _WORD.findall(text.lower())
    return words if settings.stop_words == "none" else [word for word in words if word not in STOP_WORDS_EN]
