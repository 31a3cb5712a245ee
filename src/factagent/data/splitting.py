"""Cut a document's text into passages of about a hundred words, at the ends of paragraphs and sentences.

Deterministic: the same text and settings give the same passages. Words are runs of visible characters; in scripts
without blanks (Chinese, Japanese) each character counts as a word, and a run of a hundred characters as another.
"""

from __future__ import annotations

import re

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\s{_CJK}]{{1,100}}")
_SENTENCE_END = re.compile(r"(?<=[.!?…][\"'”’)\]])\s+|(?<=[.!?…])\s+|(?<=[。！？])\s*")
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")


def split_text(text: str, words: int = 100) -> list[str]:
    """The passages of a text: at most `words` words each, line breaks within a paragraph become blanks.

    A passage ends before the sentence that would make it too long, and at the end of a paragraph once it is half full.
    A sentence longer than `words` is cut between words. Paragraphs in a passage are separated by a line break. A last
    passage of less than a quarter joins the one before it, which then has at most a quarter more than `words`.

    Args:
        text: paragraphs, separated by blank lines.
        words: size of a passage, at least 1.
    """
    passages: list[str] = []
    sizes: list[int] = []
    current, size = "", 0
    for paragraph in _PARAGRAPH_END.split(text.strip()):
        break_before = "\n"
        for piece in _pieces(paragraph, words):
            count = count_words(piece)
            if size and size + count > words:
                passages.append(current)
                sizes.append(size)
                current, size = "", 0
            current = f"{current}{break_before if size else ''}{piece}"
            size += count
            break_before = " "
        if size * 2 >= words:
            passages.append(current)
            sizes.append(size)
            current, size = "", 0
    if passages and size and size * 4 < words:
        passages[-1] = f"{passages[-1]}\n{current}"
    elif size:
        passages.append(current)
    return passages


def count_words(text: str) -> int:
    """The number of words by which passages are measured."""
    return sum(1 for _ in _WORD.finditer(text))


def _pieces(paragraph: str, words: int) -> list[str]:
    """The sentences of a paragraph, those that are too long cut."""
    pieces: list[str] = []
    for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
        spans = [match.span() for match in _WORD.finditer(sentence)]
        for start in range(0, len(spans), words):
            last = min(start + words, len(spans)) - 1
            pieces.append(sentence[spans[start][0] : spans[last][1]])
    return pieces
