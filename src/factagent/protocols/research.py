r"""ReSearch's protocol: only a search interrupts the reply, and the answer stands in a box (methods.md, section 5).

The reply is one text that pauses behind each `</search>` and goes on behind `<result>...</result>`. A reply that ends
otherwise is the last one: its answer is the last `\boxed{...}` of its first answer block. A last reply without one
ends the episode too, with the stop reason `no_answer`. The original sets no limit on searches; `rollout.max_rounds`
does here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from factagent.protocols.boxed import last_boxed
from factagent.protocols.inline import InlineProtocol
from factagent.protocols.prompts import PromptSpec, load_prompt
from factagent.protocols.queries import read_query
from factagent.protocols.search_r1 import ANSWER, NO_TAGS, SEARCH
from factagent.protocols.state import State
from factagent.protocols.tags import cut_behind, first_block
from factagent.types import Action, Answer, Invalid

_OPEN, _CLOSE = f"<{SEARCH}>", f"</{SEARCH}>"

NO_BOX = "no_box"
"""Reason of an answer block without a closed box."""


def parse_boxed(text: str) -> Action:
    """The action of a reply: total over any string.

    A reply that closes a search is one, with what stands between the last `<search>` and the first `</search>`,
    whatever else it holds.
    """
    head, close, _ = text.partition(_CLOSE)
    if close:
        start = head.rfind(_OPEN)
        if start < 0:
            return Invalid(NO_TAGS, f"{_CLOSE} without {_OPEN}")
        return read_query(head[start + len(_OPEN) :])
    block = first_block(text, (ANSWER,))
    if block is None:
        return Invalid(NO_TAGS, "neither <search>...</search> nor <answer>...</answer>")
    boxed = last_boxed(block.content)
    return Invalid(NO_BOX, "the answer holds no closed box") if boxed is None else Answer(boxed)


@dataclass(frozen=True)
class ReSearchProtocol(InlineProtocol):
    """Replies end behind a search or where the policy ends them."""

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("research-full"))
    name: str = "research"
    stop: tuple[str, ...] = (_CLOSE,)
    observation_tokens: int | None = None
    invalid_ends: bool = True

    tags: ClassVar[tuple[str, ...]] = (_OPEN, f"<{ANSWER}>", "\\boxed{")

    def cut(self, text: str) -> str:
        """The reply up to its first search."""
        return cut_behind(text, (SEARCH,))

    def parse(self, text: str, state: State) -> Action:
        """The search or the boxed answer, whatever the state."""
        return parse_boxed(text)
