"""Where the gold answer stands in a reply, and how states without a score are filled."""

from __future__ import annotations

import json

import numpy as np
import pytest

from factagent.errors import UsageError
from factagent.methods.igpo import _filled, answer_span
from factagent.protocols import PROTOCOLS, build_protocol
from factagent.protocols.state import State
from factagent.types import Answer, Question

GOLD = 'Åsa "Bo" Lund, 1,000 $'
JSON = ("factagent", "react")


@pytest.mark.parametrize("style", ["full", "terse"])
@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_the_gold_answer_is_written_as_the_protocol_reads_it(name: str, style: str) -> None:
    protocol = build_protocol(name, f"{name}-{style}")
    text, start, end = answer_span(protocol, GOLD)
    written = text[start:end]
    assert (json.loads(f'"{written}"') if name in JSON else written) == GOLD
    action = protocol.parse(text, State(Question("q", "who?", (GOLD,)), 8))
    assert isinstance(action, Answer)
    assert action.response.strip() == GOLD


def test_a_protocol_without_a_reply_format_is_refused() -> None:
    class Unknown(type(build_protocol("factagent", "factagent-full"))):  # type: ignore[misc]
        pass

    protocol = Unknown(name="mine")
    with pytest.raises(UsageError, match="protocol 'mine' has no reply format"):
        answer_span(protocol, GOLD)


@pytest.mark.parametrize(
    ("known", "filled"),
    [
        ([-2.0, -1.0], [-2.0, -1.0, -1.0]),
        ([None, -1.0], [-1.0, -1.0, -1.0]),
        ([-2.0, None, -1.0], [-2.0, -1.0, -1.0, -1.0]),
        ([-2.0, None], [-2.0, -2.0, -2.0]),
        ([None], [0.0, 0.0]),
        ([], [0.0]),
    ],
)
def test_steps_that_are_not_scored_gain_nothing(known: list[float | None], filled: list[float]) -> None:
    assert np.array_equal(_filled(known), np.array(filled))
