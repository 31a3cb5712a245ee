"""ReAct: the same actions, but the prompt carries the whole transcript (methods.md, section 10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import Template

from factagent.protocols.base import ContextKind, Plain
from factagent.protocols.factagent import parse_in_state
from factagent.protocols.prompts import SLOTS, PromptSpec, load_prompt
from factagent.protocols.state import State
from factagent.types import Action, Assert, Invalid, Message, Step


@dataclass(frozen=True)
class ReActProtocol(Plain):
    """Context `append`: each reply and what came back join the conversation; nothing is dropped.

    Raises:
        ConfigError: the prompt hides the question or the observations, or asks for a state that is not rebuilt here.
    """

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("react-full"))
    name: str = "react"
    context: ContextKind = "append"
    asserts = True

    def __post_init__(self) -> None:
        self.prompt.check_slots("user", {"question"}, {"question", "round", "max_rounds"})
        self.prompt.check_slots("observed", {"observation"}, SLOTS["observed"])

    def render(self, state: State) -> tuple[Message, ...]:
        """The conversation so far; it extends that of the round before by a reply and its feedback."""
        prompt = self.prompt
        messages = [*prompt.render_system(), prompt.render_user(state.question.text, "", "", "", 1, state.max_rounds)]
        for index, step in enumerate(state.steps):
            messages.append(Message("assistant", step.generation.text))
            messages.append(Message("user", self._feedback(step, index + 2, state.max_rounds)))
        return tuple(messages)

    def parse(self, text: str, state: State) -> Action:
        """The same actions and the same strictness as FactAgent's."""
        return parse_in_state(text, state)

    def _feedback(self, step: Step, next_round: int, last: int) -> str:
        rounds = {"round": next_round, "max_rounds": last}
        action = step.action
        if isinstance(action, Assert):
            return Template(self.prompt.asserted).substitute(count=len(action.triples), **rounds)
        if isinstance(action, Invalid):
            detail = self.prompt.quote(action.detail)
            return Template(self.prompt.refused).substitute(reason=action.reason, detail=detail, **rounds)
        return Template(self.prompt.observed).substitute(
            observation=self.prompt.render_observation(step.observation), **rounds
        )
