r"""Answers in a box, `\boxed{...}`: the form of ReSearch and MemSearcher."""

from __future__ import annotations

_BOX = "\\boxed{"


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` of a text holds, outer blanks stripped; None without one, or if it is not closed.

    Braces inside are kept as long as they pair. Total over any string, and linear in its length.
    """
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth = 0
    for position in range(start + len(_BOX) - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len(_BOX) : position].strip()
    return None
