"""How a method shows a question.

Readers keep the text of a question as its file has it. A protocol whose published policies were trained on normalised
questions (Search-R1, and the methods that took over its data) applies this when it renders its prompt.
"""

from __future__ import annotations


def normalised_question(text: str) -> str:
    """The question without outer blanks, and with a question mark at its end (Search-R1's data preparation)."""
    text = text.strip()
    return text if text.endswith("?") else f"{text}?"
