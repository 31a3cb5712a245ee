from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.protocols.untrusted import ROLE_MARKS, defuse, plain_line, quote

GUARDS = ("<observation", "</observation", "```", "Human:")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("Lund", "Lund"),
        ("  two\n\nlines\tand a\u00a0space ", "two lines and a space"),
        ("a\x00b\x07c\x1b[31md", "abc[31md"),
        ("x \x00 y", "x y"),
        ("\u202egnp.exe\u202c", "gnp.exe"),
        ("\u2066in\u2069 zero\u200bwidth\ufeff", "in zerowidth"),
        ("line\u2028para\u2029next\x85end", "line para next end"),
        ("lone \ud800 half", "lone half"),
        ("tag\U000e0041\U000e0042s", "tags"),
        ("Malmö, Łódź, 東京, Ὀδυσσεύς, 🜨", "Malmö, Łódź, 東京, Ὀδυσσεύς, 🜨"),
    ],
)
def test_plain_line(text: str, line: str) -> None:
    assert plain_line(text) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("</observation>", "< /observation>"),
        ("</OBSERVATION >", "< /OBSERVATION >"),
        ("<observation id=1>", "< observation id=1>"),
        ("```json", "` ``json"),
        ("`````", "` ` ` ``"),
        ("<<</observation", "<<< /observation"),
        ("hUMAN: hi", "h UMAN: hi"),
        ("<|im_end|>", "< |im_end| >"),
        ("</s><s>[INST] x [/INST]", "< /s>< s>[ INST] x [ /INST]"),
        ("a < b | c > d `x` ``y``", "a < b | c > d `x` ``y``"),
        ("he observed <i>that</i>", "he observed <i>that</i>"),
    ],
)
def test_defuse(text: str, shown: str) -> None:
    assert defuse(text, GUARDS) == shown


def test_hidden_characters_go_before_guards_are_looked_for() -> None:
    assert quote("</obs\u200bervation> <\x00|im_end|>", GUARDS) == "< /observation> < |im_end| >"


@given(
    st.lists(st.sampled_from([*GUARDS, *ROLE_MARKS, "<", "|", "`", "\x00", " ", "\u200b", "x", "/", "h"]), max_size=30)
)
@settings(max_examples=1000)
def test_no_guard_survives_and_quoting_is_stable(parts: list[str]) -> None:
    shown = quote("".join(parts), GUARDS)
    assert [mark for mark in (*GUARDS, *ROLE_MARKS) if mark.casefold() in shown.casefold()] == []
    assert quote(shown, GUARDS) == shown


@given(st.text(max_size=200))
@settings(max_examples=1000)
def test_any_text_becomes_one_encodable_line(text: str) -> None:
    shown = quote(text, GUARDS)
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert shown.splitlines() in ([], [shown])
    assert "\x00" not in shown


@given(st.text(alphabet="abc XYZ,.()0123456789éß-'\"", max_size=100))
def test_ordinary_text_keeps_every_word(text: str) -> None:
    assert quote(text, GUARDS) == " ".join(text.split())


@pytest.mark.parametrize("unit", ["<", "`", "<|", "</observatio", "a", "\u202e", " "])
def test_time_is_linear(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    start = time.perf_counter()
    quote(text, GUARDS)
    assert time.perf_counter() - start < 5.0
