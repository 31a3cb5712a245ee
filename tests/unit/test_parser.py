"""The strict parser: the grammar, and one reply at least for each reason code."""

from __future__ import annotations

import json

import pytest

from factagent.protocols.actions import REASONS, ParserLimits, parse_action, render_action
from factagent.types import Action, Answer, Assert, Invalid, Search, Triple

SEARCH = '{"action": "search", "parameters": {"query": "who?"}}'
TRIPLE = {"subject": "s", "relation": "r", "object": "o"}


def action_text(name: object, **parameters: object) -> str:
    return json.dumps({"action": name, "parameters": parameters})


def query(value: str) -> str:
    """A search whose query is the JSON source `value`, quotes left out."""
    return f'{{"action": "search", "parameters": {{"query": "{value}"}}}}'


@pytest.mark.parametrize(
    "text",
    [
        SEARCH,
        f" \n\t{SEARCH}\n ",
        f"<think>first</think>{SEARCH}",
        f"<think></think>\n\n{SEARCH}",
        f"<think>\n{SEARCH.replace('who', 'wrong')}\n</think>\n```json\n{SEARCH}\n```\n",
        f"<think>a <think> b</think>{SEARCH}",
        f"```json\n{SEARCH}\n```",
        f"```json {SEARCH} ```",
        f"```\n{SEARCH}\n```",
        '{"parameters": {"query": "  who?\\n"}, "action": "search"}',
        json.dumps(json.loads(SEARCH), indent=4),
    ],
)
def test_the_grammar_admits(text: str) -> None:
    assert parse_action(text) == Search("who?")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (action_text("answer", response=" 1969 "), Answer("1969")),
        (action_text("assert", triples=[TRIPLE]), Assert((Triple("s", "r", "o"),))),
        (action_text("assert", triples=[TRIPLE], evidence_summary=""), Assert((Triple("s", "r", "o"),))),
        (
            action_text(
                "assert", triples=[TRIPLE, {"object": "b ", "subject": "x", "relation": "y"}], evidence_summary=" e "
            ),
            Assert((Triple("s", "r", "o"), Triple("x", "y", "b")), "e"),
        ),
        (query('caf\\u00e9 \\ud83d\\ude00 \\"q\\"'), Search('café 😀 "q"')),
        (query("ünï 東京 } ] { ["), Search("ünï 東京 } ] { [")),
    ],
)
def test_actions_are_read(text: str, action: Action) -> None:
    assert parse_action(text) == action


REFUSALS = [
    ("empty", ""),
    ("empty", " \n\u2003"),
    ("too_long", "x" * 65_537),
    ("too_long", "é" * 32_769),
    ("unclosed_think", f"<think>never ends {SEARCH}"),
    ("no_json", "<think>done</think>"),
    ("no_json", "I do not know."),
    ("no_json", "42 is the answer"),
    ("no_json", "```json\n```"),
    ("leading_text", f"Sure! {SEARCH}"),
    ("leading_text", f"<think>a</think><think>b</think>{SEARCH}"),
    ("leading_text", f"</think>{SEARCH}"),
    ("leading_text", f"```python\n{SEARCH}\n```"),
    ("unclosed_fence", f"```json\n{SEARCH}\n"),
    ("trailing_text", f"{SEARCH} {SEARCH}"),
    ("trailing_text", f"{SEARCH}."),
    ("trailing_text", f"{SEARCH}```"),
    ("trailing_text", f"```json\n{SEARCH}\n```\nDone."),
    ("trailing_text", f"```json\n{SEARCH}\n``"),
    ("trailing_text", f"```json\n{SEARCH}\n{SEARCH}\n```"),
    ("too_deep", '{"a":' * 9 + "1" + "}" * 9),
    ("too_deep", "[" * 60_000),
    ("too_deep", '{"action": ' + "[" * 60_000),
    ("too_deep", '{"s": "\\"]]]]", "a": [[[[[[[[1]]]]]]]]}'),
    ("bad_json", "{"),
    ("bad_json", '{"action": "search", "parameters": {"query": "cut'),
    ("bad_json", SEARCH[:-1]),
    ("bad_json", SEARCH.replace('"', "'")),
    ("bad_json", '{"action": "search",}'),
    ("bad_json", query("\\x")),
    ("duplicate_key", '{"action": "search", "action": "answer", "parameters": {"query": "q"}}'),
    ("duplicate_key", '{"action": "search", "parameters": {"query": "q", "query": "q"}}'),
    ("duplicate_key", '{"action": "search", "parameters": {"query": "q", "\\u0071uery": "p"}}'),
    ("not_finite", '{"action": NaN}'),
    ("not_finite", '{"action": -Infinity}'),
    ("not_finite", '{"action": 1e999}'),
    ("not_finite", '{"action": ' + "9" * 5000 + "}"),
    ("not_an_object", "[1, 2]"),
    ("not_an_object", '"search"'),
    ("not_an_object", "```json\nnull\n```"),
    ("missing_field", "{}"),
    ("missing_field", '{"action": "search"}'),
    ("missing_field", action_text("search")),
    ("missing_field", action_text("assert", evidence_summary="e")),
    ("missing_field", action_text("assert", triples=[{"subject": "s", "relation": "r"}])),
    ("unknown_field", '{"action": "search", "parameters": {"query": "q"}, "why": "x"}'),
    ("unknown_field", action_text("search", query="q", top_k="3")),
    ("unknown_field", action_text("answer", response="q", query="q")),
    ("unknown_field", action_text("assert", triples=[TRIPLE], summary="e")),
    ("unknown_field", action_text("assert", triples=[{**TRIPLE, "year": "1"}])),
    ("unknown_action", action_text("Search", query="q")),
    ("unknown_action", action_text("", query="q")),
    ("wrong_type", action_text(None, query="q")),
    ("wrong_type", '{"action": "search", "parameters": "q"}'),
    ("wrong_type", action_text("search", query=["q"])),
    ("wrong_type", action_text("search", query=None)),
    ("wrong_type", action_text("answer", response=1969)),
    ("wrong_type", action_text("answer", response=True)),
    ("wrong_type", action_text("assert", triples=TRIPLE)),
    ("wrong_type", action_text("assert", triples=[["s", "r", "o"]])),
    ("wrong_type", action_text("assert", triples=[{**TRIPLE, "object": 1969}])),
    ("wrong_type", action_text("assert", triples=[TRIPLE], evidence_summary=None)),
    ("empty_field", action_text("search", query="  ")),
    ("empty_field", action_text("assert", triples=[{**TRIPLE, "relation": "\u00a0"}])),
    ("field_too_long", action_text("search", query="q" * 513)),
    ("field_too_long", action_text("assert", triples=[TRIPLE], evidence_summary="e" * 513)),
    ("control_character", query("a\\u0000b")),
    ("control_character", query("a\\nb")),
    ("control_character", query("a\nb")),
    ("control_character", query("a\\u009bb")),
    ("bidi_control", query("a\\u202eb")),
    ("bidi_control", query("a\u2066b")),
    ("lone_surrogate", query("a\\ud800b")),
    ("lone_surrogate", query("a\udfffb")),
    ("no_triples", action_text("assert", triples=[])),
    ("too_many_triples", action_text("assert", triples=[TRIPLE] * 33)),
]


@pytest.mark.parametrize(("reason", "text"), REFUSALS)
def test_refusals_have_their_reason(reason: str, text: str) -> None:
    action = parse_action(text)
    assert isinstance(action, Invalid)
    assert action.reason == reason
    assert 0 < len(action.detail) < 200
    assert action.detail.isascii()


def test_every_reason_has_an_example() -> None:
    assert {reason for reason, _ in REFUSALS} == set(REASONS)


def test_the_limits_themselves_are_allowed() -> None:
    longest = action_text("assert", triples=[{**TRIPLE, "subject": "s" * 512}] * 32, evidence_summary="e" * 512)
    action = parse_action(longest)
    assert isinstance(action, Assert)
    assert len(action.triples) == 32
    padded = SEARCH + " " * (65_536 - len(SEARCH))
    assert parse_action(padded) == Search("who?")
    assert parse_action(padded + " ").reason == "too_long"  # type: ignore[union-attr]
    deepest = '{"action": {"b": [[[[[[1]]]]]]}}'
    assert parse_action(deepest) == Invalid("wrong_type", "action must be a string, found an object")


def test_limits_can_be_set() -> None:
    limits = ParserLimits(text_bytes=100, field_chars=3, triples=1, nesting=3)
    assert parse_action(action_text("search", query="abc"), limits) == Search("abc")
    assert parse_action(action_text("search", query="abcd"), limits).reason == "field_too_long"  # type: ignore[union-attr]
    assert parse_action(action_text("assert", triples=[]), limits).reason == "no_triples"  # type: ignore[union-attr]
    nested = '{"action":"assert","parameters":{"triples":[{}]}}'
    assert parse_action(nested, limits).reason == "too_deep"  # type: ignore[union-attr]


def test_details_name_the_place() -> None:
    text = action_text("assert", triples=[TRIPLE, {**TRIPLE, "object": ""}])
    assert parse_action(text) == Invalid("empty_field", "parameters.triples[1].object is empty")
    assert parse_action('{"a": 1, "a": 2}') == Invalid("duplicate_key", "the key 'a' stands twice")
    assert parse_action(query("ab\\u0007")) == Invalid(
        "control_character", "parameters.query holds U+0007 at character 2"
    )


def test_thoughts_are_never_actions() -> None:
    hidden = f"<think>```json\n{SEARCH}\n```</think>"
    assert parse_action(hidden) == Invalid("no_json", "nothing after the reasoning")
    assert parse_action(hidden + action_text("answer", response="x")) == Answer("x")


def test_rendering_is_canonical() -> None:
    assert render_action(Search("ü")) == '{"action":"search","parameters":{"query":"ü"}}'
    assert render_action(Answer("x")) == '{"action":"answer","parameters":{"response":"x"}}'
    assert render_action(Assert((Triple("s", "r", "o"),))) == (
        '{"action":"assert","parameters":{"triples":[{"subject":"s","relation":"r","object":"o"}]}}'
    )
    assert render_action(Assert((Triple("s", "r", "o"),), "e")).endswith('}],"evidence_summary":"e"}}')
    with pytest.raises(ValueError, match="reason 'empty'"):
        render_action(Invalid("empty"))


# Timings never gate: these only have to come back at all, with the reason that a prefix of them has.
@pytest.mark.parametrize(
    ("head", "unit", "reason"),
    [
        ("{", "[", "too_deep"),
        ('{"', '\\"', "bad_json"),
        ("{", '"', "bad_json"),
        ("{", "[]", "bad_json"),
        ("{", "\\", "bad_json"),
        ('{"a":"', "b", "bad_json"),
        ('{"a":[', '"\\\\",', "bad_json"),
        ('{"a":[[', '{"x":1},', "bad_json"),
        ("", "<think>", "unclosed_think"),
        ("", "```", "no_json"),
        ("", " ", "empty"),
        ("{}", " \n", "missing_field"),
        ("", "{", "too_deep"),
        ("", "]", "no_json"),
        ("-", "1", "not_finite"),
    ],
)
def test_a_megabyte_of_it_comes_back(head: str, unit: str, reason: str) -> None:
    text = head + unit * (1_000_000 // len(unit))
    assert parse_action(text).reason == "too_long"  # type: ignore[union-attr]
    assert parse_action(text, ParserLimits(text_bytes=1 << 21)).reason == reason  # type: ignore[union-attr]
