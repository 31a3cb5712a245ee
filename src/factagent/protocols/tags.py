"""Replies written in tags, `<search>...</search>`: one reader for every protocol that uses them.

All functions are total over any string and linear in its length: no pattern backtracks, and a closing tag that is not
there is looked for once. Tags are matched as they are written, in lower case and without attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class TagBlock(NamedTuple):
    """`<name>content</name>`; `start` and `end` bound it in the text, tags included."""

    name: str
    content: str
    start: int
    end: int


def iter_blocks(text: str, names: tuple[str, ...]) -> Iterator[TagBlock]:
    r"""The blocks of these names from left to right, none inside another.

    A block runs from an opening tag to the first closing tag of its name behind it. An opening tag without one is text.
    These are the matches of the pattern `<(a|b)>(.*?)</\1>` with line breaks included, its contents unstripped.
    """
    last_close = {name: text.rfind(f"</{name}>") for name in names}
    position = 0
    for opening in _openings(names).finditer(text):
        name = opening[1]
        if opening.start() < position or opening.end() > last_close[name]:
            continue
        close = text.index(f"</{name}>", opening.end())
        position = close + len(name) + 3
        yield TagBlock(name, text[opening.end() : close], opening.start(), position)


def first_block(text: str, names: tuple[str, ...]) -> TagBlock | None:
    """The leftmost block of these names, or None."""
    return next(iter_blocks(text, names), None)


def cut_behind(text: str, names: tuple[str, ...]) -> str:
    """The text up to the first closing tag of the first of these names that is closed at all; else the whole text."""
    for name in names:
        head, close, _ = text.partition(f"</{name}>")
        if close:
            return head + close
    return text


@lru_cache(maxsize=64)
def _openings(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"<({'|'.join(map(re.escape, names))})>")
