"""Laws of the parser: total over any string, inverse of rendering, blind to thoughts (reliability.md, R14)."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.protocols.actions import DEFAULT_LIMITS, REASONS, parse_action, render_action
from factagent.types import Action, Answer, Assert, Invalid, Search, Triple

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
# No categories C (controls, surrogates, private use, bidi controls among the formats) and no outer blanks.
FIELDS = st.text(alphabet=st.characters(exclude_categories=["C"]), min_size=1, max_size=30).map(str.strip).filter(bool)
TRIPLES = st.builds(Triple, FIELDS, FIELDS, FIELDS)
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Search, FIELDS),
    st.builds(Answer, FIELDS),
    st.builds(Assert, st.lists(TRIPLES, min_size=1, max_size=4).map(tuple), st.just("") | FIELDS),
)
THOUGHTS = st.text(max_size=40).map(lambda text: text.replace("</think>", ""))
BLANKS = st.text(alphabet=" \t\r\n", max_size=4)
MARKS = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        ":",
        "```",
        "```json",
        "<think>",
        "</think>",
        "NaN",
        "1e999",
        "null",
        "\\ud800",
    ]
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["action", "parameters", "query", "triples", "subject", "relation", "object", "response", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A rendered action with a few cuts, doublings and insertions."""
    text = draw(st.sampled_from(["", "<think>t</think>", "```json\n"])) + render_action(draw(ACTIONS))
    text += draw(st.sampled_from(["", "\n```", "."]))
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        piece = draw(st.one_of(MARKS, st.text(max_size=3), st.just(text[start:end]), st.just("")))
        keep = draw(st.booleans())
        text = text[:start] + piece + text[start if keep else end :]
    return text


def check_total(text: str) -> None:
    action = parse_action(text)
    assert parse_action(text) == action
    if isinstance(action, Invalid):
        assert action.reason in REASONS
        assert action.detail.isascii()
        assert len(action.detail) < 200
    else:
        check_limits(action)
        assert parse_action(render_action(action)) == action


def check_limits(action: Action) -> None:
    match action:
        case Search(text) | Answer(text):
            fields = [text]
        case Assert(triples, summary):
            assert 1 <= len(triples) <= DEFAULT_LIMITS.triples
            fields = [field for triple in triples for field in triple]
            assert summary == summary.strip()
            assert len(summary) <= DEFAULT_LIMITS.field_chars
    for field in fields:
        assert field == field.strip() != ""
        assert len(field) <= DEFAULT_LIMITS.field_chars
        assert not any(unicodedata.category(char) in ("Cc", "Cs") or char in BIDI for char in field)


@settings(max_examples=2000)
@given(st.text())
def test_total_over_text(text: str) -> None:
    check_total(text)


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_total_over_surrogates_too(text: str) -> None:
    check_total(text)
    check_total('{"action":"search","parameters":{"query":"' + text + '"}}')


@settings(max_examples=1500)
@given(mutated())
def test_total_over_mutated_actions(text: str) -> None:
    check_total(text)


@given(st.lists(MARKS | st.text(max_size=3), max_size=30).map("".join))
def test_total_over_soups_of_marks(text: str) -> None:
    check_total(text)


@given(JSON_VALUES)
def test_total_over_json(value: object) -> None:
    check_total(json.dumps(value))


@given(ACTIONS, THOUGHTS, BLANKS, BLANKS, st.booleans(), st.booleans())
def test_rendered_actions_are_read_back(
    action: Action, thought: str, before: str, after: str, thinks: bool, fenced: bool
) -> None:
    text = render_action(action)
    if fenced:
        text = f"```json{before}{text}{after}```"
    if thinks:
        text = f"<think>{thought}</think>{before}{text}"
    assert parse_action(before + text + after) == action


@given(ACTIONS, st.text(min_size=1).filter(lambda text: text.strip() != ""))
def test_nothing_may_follow(action: Action, tail: str) -> None:
    refused = parse_action(render_action(action) + tail)
    assert isinstance(refused, Invalid)
    assert refused.reason == "trailing_text"


@given(ACTIONS, st.data())
def test_no_proper_prefix_is_an_action(action: Action, data: st.DataObject) -> None:
    text = render_action(action)
    prefix = text[: data.draw(st.integers(0, len(text) - 1))]
    assert isinstance(parse_action(prefix), Invalid)
