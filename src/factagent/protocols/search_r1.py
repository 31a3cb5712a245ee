"""Search-R1's protocol: tags instead of JSON, one growing conversation, no fact store (methods.md, sections 3.1-3.4).

A reply counts up to the first `</search>`, else to the first `</answer>`; the leftmost closed pair of tags in it is the
action. So an answer before a search ends the episode. Actions are read from replies only: tags in a passage are broken
before they are shown, and prompts are never parsed. What comes back stands behind the reply, in the same turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from factagent.protocols.inline import InlineProtocol
from factagent.protocols.prompts import PromptSpec, load_prompt
from factagent.protocols.queries import read_query
from factagent.protocols.state import State
from factagent.protocols.tags import cut_behind, first_block
from factagent.types import Action, Answer, Invalid

SEARCH, ANSWER = "search", "answer"

ROUNDS = 5
"""Its budget: four searches, then a reply whose search is not sent any more."""

STOP = (f"</{SEARCH}>", f"</{ANSWER}>")
"""A local reply ends here: what the original samples behind them, it drops."""

OBSERVATION_TOKENS = 500
"""Tokens of what comes back, its tags included: long passages cost the closing one, as in the original."""

NO_TAGS = "no_tags"
"""Reason of a reply without a closed pair of tags."""


def cut_reply(text: str) -> str:
    """What counts of a reply; the rest is not shown again."""
    return cut_behind(text, (SEARCH, ANSWER))


def parse_tags(text: str) -> Action:
    """The action of a reply: total over any string. An empty answer is an answer; queries are `read_query`'s."""
    block = first_block(cut_reply(text), (SEARCH, ANSWER))
    if block is None:
        return Invalid(NO_TAGS, "neither <search>...</search> nor <answer>...</answer>")
    if block.name == ANSWER:
        return Answer(block.content.strip())
    return read_query(block.content)


@dataclass(frozen=True)
class SearchR1Protocol(InlineProtocol):
    """Replies are cut and read as the original does it; see the module."""

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("search-r1-full"))
    name: str = "search-r1"
    stop: tuple[str, ...] = STOP
    observation_tokens: int | None = OBSERVATION_TOKENS

    tags: ClassVar[tuple[str, ...]] = (f"<{SEARCH}>", f"<{ANSWER}>")

    def cut(self, text: str) -> str:
        """See `cut_reply`."""
        return cut_reply(text)

    def parse(self, text: str, state: State) -> Action:
        """The leftmost action of the reply, whatever the state."""
        return parse_tags(text)
