"""Search-R1's protocol: tags instead of JSON, one growing conversation, no fact store (methods.md, sections 3.1-3.4).

A reply counts up to the first `</search>`, else to the first `</answer>`; the leftmost closed pair of tags in it is the
action. So an answer before a search ends the episode. Actions are read from replies only: tags in a passage are broken
before they are shown, and prompts are never parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from string import Template

from factagent.errors import ConfigError
from factagent.protocols.actions import DEFAULT_LIMITS
from factagent.protocols.base import ContextKind
from factagent.protocols.prompts import SLOTS, PromptSpec, load_prompt
from factagent.protocols.questions import normalised_question
from factagent.protocols.state import State
from factagent.protocols.tags import cut_behind, first_block
from factagent.protocols.untrusted import plain_line
from factagent.types import Action, Answer, Invalid, Message, Search, Step

SEARCH, ANSWER = "search", "answer"

ROUNDS = 5
"""Its budget: four searches, then a reply whose search is not sent any more."""

NO_TAGS = "no_tags"
"""Reason of a reply without a closed pair of tags."""

EMPTY_FIELD = "empty_field"
FIELD_TOO_LONG = "field_too_long"


def cut_reply(text: str) -> str:
    """What counts of a reply; the rest is not shown again."""
    return cut_behind(text, (SEARCH, ANSWER))


def parse_tags(text: str) -> Action:
    """The action of a reply: total over any string.

    An empty answer is an answer. A query becomes one line of visible text; an empty one, and one of more characters
    than any parser here takes, is invalid (the original sends both to its server).
    """
    block = first_block(cut_reply(text), (SEARCH, ANSWER))
    if block is None:
        return Invalid(NO_TAGS, "neither <search>...</search> nor <answer>...</answer>")
    if block.name == ANSWER:
        return Answer(block.content.strip())
    query = plain_line(block.content)
    if not query:
        return Invalid(EMPTY_FIELD, "the query is empty")
    if len(query) > DEFAULT_LIMITS.field_chars:
        return Invalid(
            FIELD_TOO_LONG, f"the query has {len(query)} characters; at most {DEFAULT_LIMITS.field_chars} are allowed"
        )
    return Search(query)


@dataclass(frozen=True)
class SearchR1Protocol:
    """Context `append`: each reply, cut, and what came back join the conversation.

    Raises:
        ConfigError: the prompt hides the question, the observations or (a full one) the tags, or asks for a state
            that is not kept here.
    """

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("search-r1-full"))
    name: str = "search-r1"
    context: ContextKind = "append"

    def __post_init__(self) -> None:
        self.prompt.check_slots("user", {"question"}, {"question", "round", "max_rounds"})
        self.prompt.check_slots("observed", {"observation"}, SLOTS["observed"])
        told = self.prompt.system + self.prompt.user
        for tag in (f"<{SEARCH}>", f"<{ANSWER}>"):
            if self.prompt.style == "full" and tag not in told:
                raise ConfigError(f"prompt '{self.prompt.name}': does not name {tag}, which this protocol reads")

    def render(self, state: State) -> tuple[Message, ...]:
        """The conversation so far; it extends that of the round before by a reply and what it brought."""
        prompt = self.prompt
        question = normalised_question(state.question.text)
        messages = [*prompt.render_system(), prompt.render_user(question, "", "", "", 1, state.max_rounds)]
        for index, step in enumerate(state.steps):
            messages.append(Message("assistant", cut_reply(step.generation.text)))
            messages.append(Message("user", self._feedback(step, index + 2, state.max_rounds)))
        return tuple(messages)

    def parse(self, text: str, state: State) -> Action:
        """The leftmost action of the reply, whatever the state."""
        return parse_tags(text)

    def _feedback(self, step: Step, next_round: int, last: int) -> str:
        prompt, action = self.prompt, step.action
        rounds = {"round": next_round, "max_rounds": last}
        if isinstance(action, Invalid):
            detail = prompt.quote(action.detail)
            return Template(prompt.refused).substitute(reason=action.reason, detail=detail, **rounds)
        shown = prompt.render_observation(step.observation)
        return Template(prompt.observed).substitute(observation=shown, **rounds)
