"""GiGPO's protocol: a fresh prompt a step that tells the history in text (methods.md, sections 4.1-4.3).

Of a past reply only its projected action is told again, not its reasoning, and with it what the search returned. A
reply that breaks the format is still acted on where an action can be taken out of it; `is_valid_reply` says that it
broke the format, for which GiGPO's credit rule charges.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from string import Template

from factagent.errors import ConfigError
from factagent.protocols.base import ContextKind, Plain
from factagent.protocols.prompts import SLOTS, PromptSpec, load_prompt
from factagent.protocols.questions import normalised_question
from factagent.protocols.search_r1 import ANSWER, SEARCH, cut_reply, parse_tags
from factagent.protocols.state import State
from factagent.protocols.tags import first_block
from factagent.types import Action, Invalid, Message, Search, Step

ROUNDS = 4
"""Its budget: three searches, then a reply whose search is not sent any more."""

# ASCII only: with Unicode's rules of case, the long s would pass for an s.
_TAG = re.compile(r"</?(?:search|answer)>", re.IGNORECASE | re.ASCII)
_OPENING = re.compile(r"<(?:search|answer)>", re.IGNORECASE | re.ASCII)


def project(text: str) -> str:
    """The part of a reply that is acted on, its tags in lower case; empty where there is none.

    The reply counts up to the first `</search>`, else to the first `</answer>`; in it the first search goes before the
    first answer, wherever they stand. Tags may be written in any case.
    """
    kept = cut_reply(_TAG.sub(lambda tag: tag[0].lower(), text))
    block = first_block(kept, (SEARCH,)) or first_block(kept, (ANSWER,))
    return kept[block.start : block.end] if block else ""


def parse_projected(text: str) -> Action:
    """The action of a reply: total over any string, and read from its projection alone."""
    return parse_tags(project(text))


def is_valid_reply(text: str) -> bool:
    """Whether a reply keeps the format: exactly one opening tag in the whole of it, and an action that can be taken.

    The rest of the reply counts here, also what stands behind the action. `<think>` is not looked at.
    """
    return len(_OPENING.findall(text)) == 1 and not isinstance(parse_projected(text), Invalid)


@dataclass(frozen=True)
class GiGPOProtocol(Plain):
    """Context `rebuild`: question and history in one user message.

    Raises:
        ConfigError: the prompt hides the question, the history or (a full one) the tags, or asks for what is not
            shown here.
    """

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("gigpo-full"))
    name: str = "gigpo"
    context: ContextKind = "rebuild"

    def __post_init__(self) -> None:
        prompt = self.prompt
        prompt.check_slots("user", {"question", "history"}, {"question", "history", "round", "max_rounds"})
        prompt.check_slots("history", {"entries"}, SLOTS["history"])
        told = set(Template(prompt.entry).get_identifiers())
        if not told & {"observation", "json"} or not told & {"action", "query"}:
            raise ConfigError(
                f"prompt '{prompt.name}': entry must contain $action or $query, and $observation or $json, under this "
                "protocol"
            )
        for tag in (f"<{SEARCH}>", f"<{ANSWER}>"):
            if prompt.style == "full" and tag not in prompt.system + prompt.user:
                raise ConfigError(f"prompt '{prompt.name}': does not name {tag}, which this protocol reads")

    def render(self, state: State) -> tuple[Message, ...]:
        """The question, and from the second step on everything that was searched and found."""
        prompt = self.prompt
        user = Template(prompt.user).substitute(
            question=prompt.quote(normalised_question(state.question.text)),
            history=self._history(state.steps),
            round=state.round,
            max_rounds=state.max_rounds,
        )
        return (*prompt.render_system(), Message("user", user))

    def parse(self, text: str, state: State) -> Action:
        """The projected action, whatever the state."""
        return parse_projected(text)

    def _history(self, steps: tuple[Step, ...]) -> str:
        if not steps:
            return ""
        entries = self.prompt.separator.join(self._entry(number, step) for number, step in enumerate(steps, 1))
        return Template(self.prompt.history).substitute(steps=len(steps), entries=entries)

    def _entry(self, number: int, step: Step) -> str:
        prompt = self.prompt
        if not isinstance(step.action, Search):
            return Template(prompt.invalid_entry).substitute(number=number)
        query = prompt.quote(step.action.query)
        shown = prompt.render_observation(step.observation)
        return Template(prompt.entry).substitute(
            number=number,
            action=f"<{SEARCH}>{query}</{SEARCH}>",
            query=query,
            observation=shown,
            json=json.dumps({"result": shown}),
        )
