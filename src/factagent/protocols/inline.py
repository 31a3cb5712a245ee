"""Protocols in tags whose observations stand inside the assistant's turn: one growing text, no fact store.

What they share: one user message with the question, replies cut and read by a reader of tags, and what comes back put
right behind the reply's own tokens. An endpoint that takes messages only gets the same texts as user messages.

Actions are read from replies only: tags in a passage are broken before they are shown, and prompts are never parsed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from string import Template
from typing import ClassVar

from factagent.errors import ConfigError
from factagent.protocols.base import ContextKind
from factagent.protocols.prompts import SLOTS, PromptSpec
from factagent.protocols.questions import normalised_question
from factagent.protocols.state import State
from factagent.types import Action, Invalid, Message, Step


@dataclass(frozen=True)
class InlineProtocol(ABC):
    """The part that Search-R1, AutoRefine, ZeroSearch and ReSearch have in common.

    Raises:
        ConfigError: the prompt hides the question, the observations or (a full one) the tags, or asks for a state
            that is not kept here.
    """

    prompt: PromptSpec
    name: str
    stop: tuple[str, ...]
    observation_tokens: int | None
    context: ContextKind = "append"
    asserts: bool = False
    opens_with_search: bool = False
    invalid_ends: bool = False

    tags: ClassVar[tuple[str, ...]] = ()
    """The tags that a full prompt must tell the policy of."""

    def __post_init__(self) -> None:
        self.prompt.check_slots("user", {"question"}, {"question", "round", "max_rounds"})
        self.prompt.check_slots("observed", {"observation"}, SLOTS["observed"])
        told = self.prompt.system + self.prompt.user
        for tag in self.tags:
            if self.prompt.style == "full" and tag not in told:
                raise ConfigError(f"prompt '{self.prompt.name}': does not name {tag}, which protocol {self.name} reads")

    def render(self, state: State) -> tuple[Message, ...]:
        """The conversation so far; it extends that of the round before by a reply and what it brought."""
        prompt = self.prompt
        question = normalised_question(state.question.text)
        messages = [*prompt.render_system(), prompt.render_user(question, "", "", "", 1, state.max_rounds)]
        for index, step in enumerate(state.steps):
            messages.append(Message("assistant", self.cut(step.generation.text)))
            messages.append(Message("user", self._feedback(step, index + 2, state.max_rounds)))
        return tuple(messages)

    def continuation(self, state: State) -> str | None:
        """What the last reply brought, as it stands behind it in the assistant's turn."""
        return self._feedback(state.steps[-1], state.round, state.max_rounds) if state.steps else None

    @abstractmethod
    def cut(self, text: str) -> str:
        """What counts of a reply; the rest is not shown again."""

    @abstractmethod
    def parse(self, text: str, state: State) -> Action:
        """The action of a reply, whatever the state; total over any string."""

    def _feedback(self, step: Step, next_round: int, last: int) -> str:
        prompt, action = self.prompt, step.action
        rounds = {"round": next_round, "max_rounds": last}
        if isinstance(action, Invalid):
            detail = prompt.quote(action.detail)
            return Template(prompt.refused).substitute(reason=action.reason, detail=detail, **rounds)
        shown = prompt.render_observation(step.observation)
        return Template(prompt.observed).substitute(observation=shown, **rounds)
