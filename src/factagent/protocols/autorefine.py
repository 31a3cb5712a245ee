"""AutoRefine's protocol: Search-R1's loop, and evidence written out before the next action (methods.md, section 6).

What a search brings stands between `<documents>` and `</documents>`; the policy is asked to distil it between
`<refine>` and `</refine>` at the beginning of its next reply. The loop does not insist on that: rewards may.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from factagent.protocols.prompts import PromptSpec, load_prompt
from factagent.protocols.search_r1 import SearchR1Protocol

REFINE = "refine"

ROUNDS = 6
"""Its budget in training: five searches, then a reply whose search is not sent any more."""

OBSERVATION_TOKENS = 512
"""Tokens of what comes back, its tags included, as in its training."""


@dataclass(frozen=True)
class AutoRefineProtocol(SearchR1Protocol):
    """Replies are cut and read as Search-R1's; what stands between refine tags is reasoning to the parser."""

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("autorefine-full"))
    name: str = "autorefine"
    observation_tokens: int | None = OBSERVATION_TOKENS

    tags: ClassVar[tuple[str, ...]] = (*SearchR1Protocol.tags, f"<{REFINE}>")
