"""ZeroSearch's protocol: Search-R1's loop over documents that have no titles (methods.md, section 7).

The documents of its training come from a simulator (`retrieval.simulated`). With a retriever whose texts do not repeat
their titles, give it a prompt file whose `passage` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from factagent.protocols.prompts import PromptSpec, load_prompt
from factagent.protocols.search_r1 import SearchR1Protocol

ROUNDS = 6
"""Its budget: five searches, then a reply whose search is not sent any more."""

OBSERVATION_TOKENS = 2048
"""Tokens of what comes back, its tags included."""


@dataclass(frozen=True)
class ZeroSearchProtocol(SearchR1Protocol):
    """Replies are cut and read as Search-R1's; more of the documents is shown."""

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("zerosearch-full"))
    name: str = "zerosearch"
    observation_tokens: int | None = OBSERVATION_TOKENS
