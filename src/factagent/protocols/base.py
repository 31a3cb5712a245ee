"""What a protocol is: what the policy reads, what counts as an action, and how context grows."""

from __future__ import annotations

from typing import Literal, Protocol

from factagent.protocols.prompts import PromptSpec
from factagent.protocols.state import State
from factagent.types import Action, Message

ContextKind = Literal["rebuild", "append"]


class AgentProtocol(Protocol):
    """A protocol renders states and parses replies; it does no I/O and keeps nothing between calls.

    `context` says how prompts of one trajectory relate (methods.md, section 0). With `rebuild`, each round's prompt is
    made anew from the state, and each step is one training sample. With `append`, the prompt of a round is the prompt
    of the round before, the reply to it, and new messages: `render` must return a list that extends the earlier one,
    and the trajectory is one training sample whose observation tokens are masked.
    """

    @property
    def name(self) -> str:
        """The name under which `build_protocol` knows it."""
        ...

    @property
    def context(self) -> ContextKind:
        """How prompts of one trajectory relate."""
        ...

    @property
    def prompt(self) -> PromptSpec:
        """The templates that it fills."""
        ...

    def render(self, state: State) -> tuple[Message, ...]:
        """The messages that the policy reads in this state."""
        ...

    def parse(self, text: str, state: State) -> Action:
        """The action that a reply means in this state; total over any string."""
        ...
