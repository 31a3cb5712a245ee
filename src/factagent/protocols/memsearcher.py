"""MemSearcher's protocol: a memory that the policy rewrites after every search (methods.md, section 12.1).

A turn has two generations. In the first the policy reads question and memory, and searches with a tool call or gives
its answer in a box. In the second it reads, behind that reply, what the search returned, and writes the memory of the
next turn; everything else is dropped. Each generation is a round of the episode and a training sample of its own.

The memory is the summary of an `Assert` without triples, so it stands in the record like any other evidence, and no
rule takes it for facts. The original begins each reply with a forced `<think>`; here the policy writes it, since what
it did not sample must not be trained on. How many passages a search returns, the environment says, not the call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from string import Template

from factagent.errors import ConfigError
from factagent.protocols.actions import DEFAULT_LIMITS
from factagent.protocols.base import ContextKind, Plain
from factagent.protocols.boxed import last_boxed
from factagent.protocols.prompts import SLOTS, PromptSpec, load_prompt
from factagent.protocols.queries import read_query
from factagent.protocols.state import State
from factagent.protocols.tags import first_block
from factagent.types import Action, Answer, Assert, Invalid, Message, Search, Step

TOOL = "wikipedia_search"
CALL, MEMORY = "tool_call", "memory"

ROUNDS = 9
"""Its budget of five turns: four searches, each with an update of the memory, and a last reply."""

NO_CALL = "no_call"
"""Reason of a reply with neither a tool call nor a box."""

BAD_CALL = "bad_call"
"""Reason of a tool call that is not the JSON of a search."""


def render_call(query: str) -> str:
    """The JSON of a search."""
    return json.dumps({"name": TOOL, "arguments": {"query": query}}, ensure_ascii=False)


def parse_turn(text: str) -> Action:
    """A search or an answer: total over any string.

    What the first think block holds is not read. A tool call goes before a box.
    """
    body = _after_thinking(text)
    if (block := first_block(body, (CALL,))) is not None:
        return _read_call(block.content)
    answer = last_boxed(body)
    return Invalid(NO_CALL, "neither a tool call nor a box") if answer is None else Answer(answer)


def parse_memory(text: str) -> Assert:
    """The memory that a reply leaves: that of its first block; none where it has no block."""
    block = first_block(_after_thinking(text), (MEMORY,))
    return Assert((), block.content.strip() if block else "")


def updates_memory(state: State) -> bool:
    """Whether the next generation writes the memory: the last one was a search."""
    return bool(state.steps) and isinstance(state.steps[-1].action, Search)


def memory_of(state: State) -> str:
    """The memory in this state, as the policy wrote it; empty before the first update."""
    return next((step.action.summary for step in reversed(state.steps) if isinstance(step.action, Assert)), "")


@dataclass(frozen=True)
class MemSearcherProtocol(Plain):
    """Context `rebuild`: question and memory, and between a search and its memory also that exchange.

    Raises:
        ConfigError: the prompt hides the question, the memory, the observation or (a full one) a tag, or asks for what
            is not shown here.
    """

    prompt: PromptSpec = field(default_factory=lambda: load_prompt("memsearcher-full"))
    name: str = "memsearcher"
    context: ContextKind = "rebuild"

    def __post_init__(self) -> None:
        prompt = self.prompt
        prompt.check_slots("user", {"question", "memory"}, {"question", "memory", "round", "max_rounds"})
        prompt.check_slots("memorise", {"observation"}, SLOTS["memorise"])
        told = prompt.system + prompt.user + prompt.memorise
        for tag in (f"<{CALL}>", f"<{MEMORY}>", "\\boxed{"):
            if prompt.style == "full" and tag not in told:
                raise ConfigError(f"prompt '{prompt.name}': does not name {tag}, which this protocol reads")

    def render(self, state: State) -> tuple[Message, ...]:
        """System text, question and memory; behind it the last reply where it searched or was no action."""
        prompt = self.prompt
        lines = [prompt.quote(line) for line in memory_of(state).splitlines()]
        user = Template(prompt.user).substitute(
            question=prompt.quote(state.question.text),
            memory="\n".join(lines) or prompt.no_memory,
            round=state.round,
            max_rounds=state.max_rounds,
        )
        return (*prompt.render_system(), Message("user", user), *self._exchange(state))

    def parse(self, text: str, state: State) -> Action:
        """The memory after a search, else a search or an answer."""
        return parse_memory(text) if updates_memory(state) else parse_turn(text)

    def _exchange(self, state: State) -> tuple[Message, ...]:
        last = state.steps[-1] if state.steps else Step(Assert(()))
        rounds = {"round": state.round, "max_rounds": state.max_rounds}
        prompt, action = self.prompt, last.action
        if isinstance(action, Search):
            content = Template(prompt.memorise).substitute(
                call=prompt.quote(render_call(action.query)),
                query=prompt.quote(action.query),
                observation=prompt.render_observation(last.observation),
                **rounds,
            )
        elif isinstance(action, Invalid):
            detail = prompt.quote(action.detail)
            content = Template(prompt.refused).substitute(reason=action.reason, detail=detail, **rounds)
        else:
            return ()
        return (Message("assistant", last.generation.text), Message("user", content))


def _after_thinking(text: str) -> str:
    head, mark, tail = text.partition("</think>")
    return tail if mark else head


def _read_call(content: str) -> Action:
    if len(content) > DEFAULT_LIMITS.text_bytes:
        return Invalid(BAD_CALL, f"more than {DEFAULT_LIMITS.text_bytes} characters")
    try:
        call = json.loads(content, strict=False)
    except (ValueError, RecursionError):
        return Invalid(BAD_CALL, "not JSON")
    match call:
        case {"name": "wikipedia_search", "arguments": {"query": str(query)}}:
            return read_query(query)
    return Invalid(BAD_CALL, f'not of the form {{"name": "{TOOL}", "arguments": {{"query": "..."}}}}')
