"""FactAgent's protocol: a fresh prompt a round, with question, fact store and last observation only (section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from factagent.protocols.actions import parse_action
from factagent.protocols.base import ContextKind, Plain
from factagent.protocols.prompts import SLOTS, PromptSpec, load_prompt
from factagent.protocols.state import State
from factagent.types import Action, Assert, Invalid, Message

ASSERT_BEFORE_OBSERVATION = "assert_before_observation"


def parse_in_state(text: str, state: State) -> Action:
    """Parse a reply, and refuse an assert before any observation: there is nothing yet that it could distil."""
    action = parse_action(text)
    if isinstance(action, Assert) and state.observation is None:
        return Invalid(ASSERT_BEFORE_OBSERVATION, "an assert needs an observation: search first")
    return action


@dataclass(frozen=True)
class FactAgentProtocol(Plain):
    """Context `rebuild`: the prompt's length stays bounded by the store and one observation.

    Raises:
        ConfigError: the prompt hides the question, the facts or the observation.
    """

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("factagent-full"))
    name: str = "factagent"
    context: ContextKind = "rebuild"
    asserts = True

    def __post_init__(self) -> None:
        self.prompt.check_slots("user", {"question", "facts", "observation"}, SLOTS["user"] - {"history", "memory"})

    def render(self, state: State) -> tuple[Message, ...]:
        """System text, then one user message made from the state."""
        prompt = self.prompt
        user = prompt.render_user(
            state.question.text,
            prompt.render_facts(state.store.facts),
            prompt.render_queries(state.queries),
            prompt.render_observation(state.observation),
            state.round,
            state.max_rounds,
        )
        return (*prompt.render_system(), user)

    def parse(self, text: str, state: State) -> Action:
        """The strict JSON parser plus the rule on asserts."""
        return parse_in_state(text, state)
