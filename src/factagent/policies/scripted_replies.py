"""How the scripted expert writes: each protocol's own reply format, in two styles.

"full" is what a language model is asked for. "terse" is the same format without line breaks and with a blank before
each piece of content, which a tokenizer with words as tokens prefers. Both parse to the same actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from factagent.protocols.actions import render_action
from factagent.protocols.memsearcher import CALL, MEMORY, render_call
from factagent.types import Action, Answer, Assert, Search, Triple

STYLES = ("full", "terse")

NOTHING = "unknown"
"""What is written where an observation held nothing of use."""

_BAR = " | "


@dataclass(frozen=True)
class Reply:
    """A thought and the action that follows from it.

    `refined` are the facts of use that the last observation states, for a protocol that has them written out before the
    next action; None where no observation came since the last reply.
    """

    thought: str
    action: Action
    refined: tuple[Triple, ...] | None = None


def write_reply(reply: Reply, style: str, protocol: str = "factagent") -> str:
    """Thought and action as text that the protocol's parser accepts."""
    return FORMATS[protocol](reply, style)


def memory_text(triples: Sequence[Triple]) -> str:
    """Facts as the lines of a memory."""
    return "\n".join(f"- {_BAR.join(triple)}" for triple in triples) or NOTHING


def memory_triples(memory: str) -> list[Triple]:
    """The facts of a memory that `memory_text` wrote."""
    parts = [line.removeprefix("- ").split(_BAR) for line in memory.splitlines()]
    return [Triple(*(text.strip() for text in part)) for part in parts if len(part) == 3]


def _in_json(reply: Reply, style: str) -> str:
    if style == "terse":
        return _thought(reply, style) + render_action(_spaced(reply.action))
    return f"{_thought(reply, style)}\n```json\n{render_action(reply.action)}\n```"


def _in_tags(reply: Reply, style: str) -> str:
    return _joined(style, _thought(reply, style), _tagged(reply.action, style))


def _in_tags_without_thought(reply: Reply, style: str) -> str:
    return _tagged(reply.action, style)


def _in_tags_refining(reply: Reply, style: str) -> str:
    if reply.refined is None:
        return _in_tags(reply, style)
    if style == "terse":
        facts = ";".join(f" {_BAR.join(triple)}" for triple in reply.refined) or f" {NOTHING}"
        return f"<refine>{facts}</refine>{_in_tags(reply, style)}"
    facts = "\n".join(f"{triple.text}." for triple in reply.refined) or NOTHING
    return f"<refine>\n{facts}\n</refine>\n{_in_tags(reply, style)}"


def _in_tags_boxing(reply: Reply, style: str) -> str:
    if not isinstance(reply.action, Answer):
        return _in_tags(reply, style)
    box = f"\\boxed{{ {reply.action.response}}}"
    if style == "full":
        box = f" The final answer is \\[ \\boxed{{{reply.action.response}}} \\] "
    return _joined(style, _thought(reply, style), f"<answer>{box}</answer>")


def _in_tool_calls(reply: Reply, style: str) -> str:
    match reply.action:
        case Search(query) if style == "terse":
            body = f"<{CALL}>{render_call(f' {query}')}</{CALL}>"
        case Search(query):
            body = f"<{CALL}>\n{render_call(query)}\n</{CALL}>"
        case Assert(_, memory):
            body = f"<{MEMORY}>\n{memory}\n</{MEMORY}>" if style == "full" else f"<{MEMORY}>\n{memory}</{MEMORY}>"
        case Answer(response):
            body = f"\\boxed{{ {response}}}" if style == "terse" else f"\\boxed{{{response}}}"
        case invalid:
            raise ValueError(f"an invalid action has no text (reason '{invalid.reason}')")
    return _joined(style, _thought(reply, style), body)


FORMATS: dict[str, Callable[[Reply, str], str]] = {
    "factagent": _in_json,
    "react": _in_json,
    "search-r1": _in_tags,
    "zerosearch": _in_tags,
    "gigpo": _in_tags,
    "rag": _in_tags_without_thought,
    "autorefine": _in_tags_refining,
    "research": _in_tags_boxing,
    "memsearcher": _in_tool_calls,
}
"""The reply format of each protocol."""


def _thought(reply: Reply, style: str) -> str:
    return f"<think> {reply.thought}</think>" if style == "terse" else f"<think>\n{reply.thought}\n</think>"


def _joined(style: str, *parts: str) -> str:
    return ("" if style == "terse" else "\n").join(parts)


def _tagged(action: Action, style: str) -> str:
    end = "" if style == "terse" else " "
    match action:
        case Search(query):
            return f"<search> {query}{end}</search>"
        case Answer(response):
            return f"<answer> {response}{end}</answer>"
    raise ValueError(f"{type(action).__name__.lower()}: no action of a protocol in tags")


def _spaced(action: Action) -> Action:
    match action:
        case Search(query):
            return Search(f" {query}")
        case Assert(triples, summary):
            return Assert(tuple(Triple(f" {s}", f" {r}", f" {o}") for s, r, o in triples), summary)
        case Answer(response):
            return Answer(f" {response}")
    return action
