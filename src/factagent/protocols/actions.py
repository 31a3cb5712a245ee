"""Actions as text: the strict parser and its inverse.

A reply is, between optional blanks:

    [<think>...</think>]  one JSON object, bare or inside one ```json fence

and the object is one of

    {"action": "search", "parameters": {"query": str}}
    {"action": "assert", "parameters": {"triples": [{"subject": str, "relation": str, "object": str}, ...],
                                        "evidence_summary": str (optional)}}
    {"action": "answer", "parameters": {"response": str}}

Anything else is `Invalid` with one of the codes of `REASONS`. The parser is total over any string and linear in its
length: the size is checked first, nesting before decoding, and no pattern backtracks (reliability.md, R14).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from factagent.types import Action, Answer, Assert, Invalid, Search, Triple

REASONS = {
    "empty": "nothing but blanks",
    "too_long": "the reply exceeds the limit in bytes",
    "unclosed_think": "<think> without </think>",
    "no_json": "no JSON object after the reasoning",
    "leading_text": "text between the reasoning and the JSON object",
    "unclosed_fence": "the ``` fence is not closed",
    "trailing_text": "text after the JSON object or its fence",
    "too_deep": "more nested brackets than the limit",
    "bad_json": "the object is not JSON, or is cut off",
    "duplicate_key": "a key stands twice in one object",
    "not_finite": "NaN, Infinity or a number too large for a float",
    "not_an_object": "the JSON value is no object",
    "missing_field": "a field of the schema is missing",
    "unknown_field": "a field that the schema does not have",
    "unknown_action": "an action other than search, assert and answer",
    "wrong_type": "a field holds a value of another type",
    "empty_field": "a field holds nothing but blanks",
    "field_too_long": "a field exceeds the limit in characters",
    "control_character": "a field holds a control character, line breaks included",
    "bidi_control": "a field holds a character that changes the direction of text",
    "lone_surrogate": "a field holds half of a surrogate pair",
    "no_triples": "an assert without triples",
    "too_many_triples": "an assert with more triples than the limit",
}
"""Reason code -> meaning. Codes are stable: run files and metrics count them."""

_THINK, _END_THINK, _FENCE = "<think>", "</think>", "```"
# Possessive, hence linear: a string (closed or not) is consumed once and never given back.
_BRACKET_OR_STRING = re.compile(r'[\[\]{}]|"(?:[^"\\]|\\.?)*+"?', re.DOTALL)
_FORBIDDEN = (
    ("lone_surrogate", re.compile("[\ud800-\udfff]")),
    ("control_character", re.compile("[\x00-\x1f\x7f-\x9f]")),
    ("bidi_control", re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")),
)


@dataclass(frozen=True, slots=True)
class ParserLimits:
    """What a reply may hold at most: bytes (UTF-8), characters a field, triples an assert, nested brackets."""

    text_bytes: int = 64 * 1024
    field_chars: int = 512
    triples: int = 32
    nesting: int = 8


DEFAULT_LIMITS = ParserLimits()


class _RefusedError(Exception):
    """Carries the `Invalid` out of the depth at which it was found; never leaves this module."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.action = Invalid(reason, detail)


def parse_action(text: str, limits: ParserLimits = DEFAULT_LIMITS) -> Action:
    """Read a reply as one action.

    Total: any string gives an action, `Invalid(reason, detail)` where the reply is none; nothing is raised. What the
    first think block holds is never read as an action. Outer blanks of fields are stripped.
    """
    try:
        return _read_action(_read_object(text, limits), limits)
    except _RefusedError as refused:
        return refused.action


def render_action(action: Action) -> str:
    """The canonical JSON of an action, compact; `parse_action` reads it back (an empty summary is left out).

    Raises:
        ValueError: the action is `Invalid`.
    """
    match action:
        case Search(query):
            parameters: dict[str, object] = {"query": query}
        case Answer(response):
            parameters = {"response": response}
        case Assert(triples, summary):
            parameters = {"triples": [triple._asdict() for triple in triples]}
            if summary:
                parameters["evidence_summary"] = summary
        case _:
            raise ValueError(f"an invalid action has no JSON form (reason '{action.reason}')")
    name = type(action).__name__.lower()
    return json.dumps({"action": name, "parameters": parameters}, ensure_ascii=False, separators=(",", ":"))


def _refuse(reason: str, detail: str) -> NoReturn:
    raise _RefusedError(reason, detail)


def _read_object(text: str, limits: ParserLimits) -> dict[str, object]:
    """The one JSON object of a reply."""
    if len(text) > limits.text_bytes or len(text.encode("utf-8", "surrogatepass")) > limits.text_bytes:
        _refuse("too_long", f"more than {limits.text_bytes} bytes")
    body = _after_thinking(text.strip())
    fenced = body.startswith(_FENCE)
    if fenced:
        body = body.removeprefix(_FENCE).removeprefix("json").lstrip()
    value, rest = _decode(body, limits)
    if not isinstance(value, dict):
        _refuse("not_an_object", f"found {_kind(value)}")
    if fenced:
        if not rest:
            _refuse("unclosed_fence", "the reply ends inside the fence")
        rest = rest.removeprefix(_FENCE).lstrip()
    if rest:
        _refuse("trailing_text", f"after the object: {_quote(rest)}")
    return value


def _after_thinking(text: str) -> str:
    if not text:
        _refuse("empty", "the reply is empty")
    if not text.startswith(_THINK):
        return text
    end = text.find(_END_THINK)
    if end < 0:
        _refuse("unclosed_think", "the reply ends inside <think>")
    return text[end + len(_END_THINK) :].lstrip()


def _decode(body: str, limits: ParserLimits) -> tuple[object, str]:
    """Decode the JSON value at the start of `body`; return it with what follows, blanks stripped."""
    if not body.startswith("{"):
        return _decode_other(body, limits)
    _check_nesting(body, limits.nesting)
    try:
        value, end = _DECODER.raw_decode(body)
    except json.JSONDecodeError as error:
        _refuse("bad_json", f"{error.msg} at character {error.pos} of the object")
    return value, body[end:].lstrip()


def _decode_other(body: str, limits: ParserLimits) -> tuple[object, str]:
    """What stands where the object should: another JSON value, text before an object, or text alone."""
    if body.startswith("["):
        _check_nesting(body, limits.nesting)
    with suppress(json.JSONDecodeError):
        value, end = _DECODER.raw_decode(body)
        rest = body[end:].lstrip()
        if not rest or rest.startswith(_FENCE):
            return value, rest
    if "{" in body:
        _refuse("leading_text", f"before the object: {_quote(body)}")
    _refuse("no_json", f"found {_quote(body)}" if body else "nothing after the reasoning")


def _check_nesting(body: str, limit: int) -> None:
    if body.count("{") + body.count("[") <= limit:
        return
    depth = 0
    for match in _BRACKET_OR_STRING.finditer(body):
        symbol = match[0]
        if symbol in "{[":
            depth += 1
            if depth > limit:
                _refuse("too_deep", f"more than {limit} nested brackets at character {match.start()} of the object")
        elif symbol in "}]":
            depth -= 1
            if depth == 0:
                return


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        _refuse("duplicate_key", f"the key {_quote(repeated)} stands twice")
    return fields


def _finite(digits: str) -> float:
    # Integers come here too: int() refuses thousands of digits, and no field of the schema is a number.
    value = float(digits)
    return value if math.isfinite(value) else _refuse("not_finite", f"the number {_quote(digits)}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_float=_finite,
    parse_int=_finite,
    parse_constant=lambda name: _refuse("not_finite", name),
    strict=False,  # raw control characters get their own reason
)


def _read_action(fields: dict[str, object], limits: ParserLimits) -> Action:
    name = _field(fields, "action", "")
    if not isinstance(name, str):
        _refuse("wrong_type", f"action must be a string, found {_kind(name)}")
    if name not in _READERS:
        _refuse("unknown_action", f"action {_quote(name)}; known are {', '.join(_READERS)}")
    parameters = _field(fields, "parameters", "")
    _refuse_unknown(fields, ("action", "parameters"), "")
    if not isinstance(parameters, dict):
        _refuse("wrong_type", f"parameters must be an object, found {_kind(parameters)}")
    return _READERS[name](parameters, limits)


def _read_search(parameters: dict[str, object], limits: ParserLimits) -> Action:
    query = _text(parameters, "query", "parameters.", limits)
    _refuse_unknown(parameters, ("query",), "parameters.")
    return Search(query)


def _read_answer(parameters: dict[str, object], limits: ParserLimits) -> Action:
    response = _text(parameters, "response", "parameters.", limits)
    _refuse_unknown(parameters, ("response",), "parameters.")
    return Answer(response)


def _read_assert(parameters: dict[str, object], limits: ParserLimits) -> Action:
    items = _field(parameters, "triples", "parameters.")
    _refuse_unknown(parameters, ("triples", "evidence_summary"), "parameters.")
    if not isinstance(items, list):
        _refuse("wrong_type", f"parameters.triples must be a list, found {_kind(items)}")
    if not items:
        _refuse("no_triples", "parameters.triples is empty")
    if len(items) > limits.triples:
        _refuse("too_many_triples", f"{len(items)} triples; at most {limits.triples} are allowed")
    triples = tuple(_read_triple(item, f"parameters.triples[{i}]", limits) for i, item in enumerate(items))
    return Assert(triples, _text(parameters, "evidence_summary", "parameters.", limits, optional=True))


def _read_triple(item: object, at: str, limits: ParserLimits) -> Triple:
    if not isinstance(item, dict):
        _refuse("wrong_type", f"{at} must be an object, found {_kind(item)}")
    triple = Triple(*(_text(item, name, f"{at}.", limits) for name in Triple._fields))
    _refuse_unknown(item, Triple._fields, f"{at}.")
    return triple


_READERS = {"search": _read_search, "assert": _read_assert, "answer": _read_answer}


def _field(fields: dict[str, object], name: str, at: str) -> object:
    if name not in fields:
        _refuse("missing_field", f"{at}{name} is missing")
    return fields[name]


def _refuse_unknown(fields: dict[str, object], allowed: tuple[str, ...], at: str) -> None:
    unknown = next((name for name in fields if name not in allowed), None)
    if unknown is not None:
        _refuse("unknown_field", f"{at or 'the object: '}{_quote(unknown)}; allowed are {', '.join(allowed)}")


def _text(fields: dict[str, object], name: str, at: str, limits: ParserLimits, *, optional: bool = False) -> str:
    """A string field, stripped and within the limits."""
    if optional and name not in fields:
        return ""
    value = _field(fields, name, at)
    if not isinstance(value, str):
        _refuse("wrong_type", f"{at}{name} must be a string, found {_kind(value)}")
    text = value.strip()
    if not text and not optional:
        _refuse("empty_field", f"{at}{name} is empty")
    if len(text) > limits.field_chars:
        _refuse("field_too_long", f"{at}{name} has {len(text)} characters; at most {limits.field_chars} are allowed")
    for reason, pattern in _FORBIDDEN:
        if match := pattern.search(text):
            _refuse(reason, f"{at}{name} holds U+{ord(match[0]):04X} at character {match.start()}")
    return text


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", float: "a number", bool: "true or false"}
    return kinds.get(type(value), "null")


def _quote(text: str) -> str:
    """The start of a piece of a reply, in at most 60 ASCII characters, for a detail."""
    quoted = ascii(text[:60])
    return quoted if len(quoted) <= 60 and len(text) <= 60 else quoted[:57] + "..."
