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
    and the trajectory is one training sample whose observation tokens are masked. Where `continuation` gives a text,
    that text follows the reply inside the assistant's own turn, and a policy with tokens reads it instead of messages.
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

    @property
    def asserts(self) -> bool:
        """Whether the policy can keep facts."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings behind which a local sampler ends a reply; they stay in it. Empty: only end tokens end a reply."""
        ...

    @property
    def observation_tokens(self) -> int | None:
        """What follows a reply inside the assistant's turn is cut to this many tokens; None: never."""
        ...

    @property
    def opens_with_search(self) -> bool:
        """Whether the question itself is searched before the policy is asked for anything."""
        ...

    @property
    def invalid_ends(self) -> bool:
        """Whether a reply without a valid action ends the episode instead of costing a round."""
        ...

    def render(self, state: State) -> tuple[Message, ...]:
        """The messages that the policy reads in this state."""
        ...

    def continuation(self, state: State) -> str | None:
        """The raw text behind the last reply's own tokens, inside the assistant's turn.

        None before the first reply, and in protocols that answer each reply with a message of its own.
        """
        ...

    def parse(self, text: str, state: State) -> Action:
        """The action that a reply means in this state; total over any string."""
        ...


class Plain:
    """What most protocols are like: no asserts, nothing special at a reply's end, observations as messages.

    A protocol names what differs, without an annotation: these are traits of its kind, not settings of an instance.
    """

    asserts: bool = False
    stop: tuple[str, ...] = ()
    observation_tokens: int | None = None
    opens_with_search: bool = False
    invalid_ends: bool = False

    def continuation(self, state: State) -> str | None:
        """None: what comes back is a message, or part of a prompt made anew."""
        return None
