"""Naive RAG: the question is searched once, then one reply answers it (methods.md, section 10).

The search is the episode's own (`opens_with_search`); the policy's reply is an answer in tags, or it ends the episode
with the stop reason `no_answer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from factagent.errors import ConfigError
from factagent.protocols.base import ContextKind, Plain
from factagent.protocols.prompts import PromptSpec, load_prompt
from factagent.protocols.questions import normalised_question
from factagent.protocols.search_r1 import ANSWER, NO_TAGS
from factagent.protocols.state import State
from factagent.protocols.tags import first_block
from factagent.types import Action, Answer, Invalid, Message

ROUNDS = 2
"""The search and the answer."""


@dataclass(frozen=True)
class RagProtocol(Plain):
    """Context `rebuild`: passages and question in one user message.

    Raises:
        ConfigError: the prompt hides the question, the observation or (a full one) the tag, or asks for a state that
            is not kept here.
    """

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("rag-full"))
    name: str = "rag"
    context: ContextKind = "rebuild"
    stop = (f"</{ANSWER}>",)
    opens_with_search = True
    invalid_ends = True

    def __post_init__(self) -> None:
        prompt = self.prompt
        needed = {"question", "observation"}
        prompt.check_slots("user", needed, needed)
        if prompt.style == "full" and f"<{ANSWER}>" not in prompt.system + prompt.user:
            raise ConfigError(f"prompt '{prompt.name}': does not name <{ANSWER}>, which protocol {self.name} reads")

    def render(self, state: State) -> tuple[Message, ...]:
        """System text, then one user message with what the search of the question brought."""
        prompt = self.prompt
        question = normalised_question(state.question.text)
        shown = prompt.render_observation(state.observation)
        return (*prompt.render_system(), prompt.render_user(question, "", "", shown, 1, state.max_rounds))

    def parse(self, text: str, state: State) -> Action:
        """The first answer block; total over any string."""
        block = first_block(text, (ANSWER,))
        return Invalid(NO_TAGS, "no <answer>...</answer>") if block is None else Answer(block.content.strip())
