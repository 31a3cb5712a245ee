"""Text that others wrote, made fit to stand in a prompt as data: one visible line that holds no delimiter.

Passages come from a corpus that anyone may have edited, and the policy copies from them into queries, facts and
summaries, so all of these pass through here. What a passage says can still mislead a policy; what it cannot do is
end its block, open a turn of the conversation, or hide text from a reader.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

ROLE_MARKS = (
    *("<|", "|>", "<｜", "｜>"),
    *("[INST", "[/INST", "<<SYS", "<</SYS"),
    *("<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<start_of_turn", "<end_of_turn"),
    *("<think", "</think", "<tool_", "</tool_"),
)
"""Beginnings (or ends) of the special tokens with which chat templates mark roles, turns, thoughts and tools. A
tokenizer may read them as such wherever they stand, hence they are defused in every prompt."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs"})
"""Unicode categories without a shape of their own: control (NUL, escape), format (bidi overrides, zero-width, tag
characters) and lone surrogates (which no UTF-8 encoder accepts)."""


def plain_line(text: str) -> str:
    """One line of visible text: runs of white space become one blank, hidden characters are dropped."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    visible = "".join(char for char in line if unicodedata.category(char) not in _HIDDEN)
    return " ".join(visible.split())


def defuse(text: str, guards: tuple[str, ...]) -> str:
    """Put a blank after the first character of every guard and role mark in `text`, whatever their case.

    No guard is left afterwards: guards hold no blank, so one that stood in the result would have stood in `text`
    without a blank put into it. Guards that overlap are all found, because a match takes one character only.

    Args:
        text: any text.
        guards: the delimiters of a prompt, each of two characters or more, without white space.
    """
    return _guard_pattern(guards).sub(r"\g<0> ", text)


def quote(text: str, guards: tuple[str, ...]) -> str:
    """`plain_line`, then `defuse`: the order matters, since a dropped character may join the halves of a guard."""
    return defuse(plain_line(text), guards)


@lru_cache(maxsize=64)
def _guard_pattern(guards: tuple[str, ...]) -> re.Pattern[str]:
    tails: dict[str, list[str]] = {}
    for guard in (*ROLE_MARKS, *guards):
        tails.setdefault(guard[0], []).append(re.escape(guard[1:]))
    return re.compile("|".join(f"{re.escape(head)}(?={'|'.join(rest)})" for head, rest in tails.items()), re.IGNORECASE)
