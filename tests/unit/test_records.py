"""Groups as records: exact round trip, and refusals that name the field."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.credit.assign import ClusterCredit, GroupCredit, StepCredit, TrajectoryCredit
from factagent.errors import DataError
from factagent.records import dumps, group_to_record, loads, record_to_group, to_plain
from factagent.types import (
    Answer,
    Assert,
    Generation,
    Group,
    Invalid,
    Message,
    Observation,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)


def is_utf16(text):
    """False where two lone surrogates stand side by side: every JSON reader takes them for one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") == text


# Any text that JSON can tell, lone surrogates included: policies write what they like.
TEXT = st.text(st.characters(exclude_categories=()), max_size=6).filter(is_utf16)
TRIPLES = st.builds(Triple, TEXT, TEXT, TEXT)
INTS = st.integers(0, 2**63 - 1)
FLOATS = st.floats(allow_nan=False)


def tuples(items, size=2):
    return st.lists(items, max_size=size).map(tuple)


ACTIONS = st.one_of(
    st.builds(Search, TEXT),
    st.builds(Assert, tuples(TRIPLES), TEXT),
    st.builds(Answer, TEXT),
    st.builds(Invalid, TEXT, TEXT),
)
GENERATIONS = st.builds(Generation, TEXT, tuples(INTS), tuples(INTS), tuples(FLOATS), TEXT, INTS)
OBSERVATIONS = st.builds(Observation, TEXT, tuples(st.builds(Passage, TEXT, TEXT, TEXT, FLOATS)))
STEPS = st.builds(Step, ACTIONS, GENERATIONS, st.none() | OBSERVATIONS)
TRAJECTORIES = st.builds(
    Trajectory, tuples(STEPS), st.sampled_from(StopReason), INTS, tuples(tuples(st.builds(Message, TEXT, TEXT)), 2)
)
QUESTIONS = st.builds(
    Question, TEXT, TEXT, tuples(TEXT), st.none() | TEXT, st.none() | INTS, tuples(TEXT), tuples(TRIPLES),
    tuples(tuples(TRIPLES)),
)  # fmt: skip
GROUPS = st.builds(Group, QUESTIONS, tuples(TRAJECTORIES))

GROUP = Group(
    Question("q1", "Who?", ("Ann",), "bridge", 2, ("A",), (Triple("a", "r", "b"),), ((Triple("a", "R", "b"),),)),
    (
        Trajectory(
            (
                Step(
                    Search("x"),
                    Generation("t", (1, 2), (3,), (-0.1,), "length", 2),
                    Observation("x", (Passage("p", "P", "txt", 1.5),)),
                ),
                Step(Assert((Triple("a", "r", "b"),), "s")),
                Step(Invalid("no_json", "at 0")),
                Step(Answer("Ann")),
            ),
            StopReason.ANSWERED,
            4,
            ((Message("user", "hi"),),),
        ),
    ),
)


@settings(max_examples=1000, deadline=None)
@given(GROUPS)
def test_round_trip_is_exact_for_everything(group):
    line = dumps(group_to_record(group))
    assert b"\n" not in line
    back = record_to_group(loads(line))
    assert back == group
    assert repr(back) == repr(group)
    assert dumps(group_to_record(back)) == line


def test_the_record_is_the_documented_one():
    record = group_to_record(GROUP, step=7)
    assert list(record) == ["schema", "step", "question", "trajectories", "credit"]
    assert (record["schema"], record["step"], record["credit"]) == (1, 7, None)
    assert record["question"]["evidences"] == [["a", "r", "b"]]
    steps = record["trajectories"][0]["steps"]
    assert steps[0]["action"] == {"action": "search", "query": "x"}
    assert steps[0]["observation"]["passages"] == [{"id": "p", "title": "P", "text": "txt", "score": 1.5}]
    assert steps[1]["action"] == {"action": "assert", "triples": [["a", "r", "b"]], "summary": "s"}
    assert steps[2]["action"] == {"action": "invalid", "reason": "no_json", "detail": "at 0"}
    assert record["trajectories"][0]["stop_reason"] == "answered"


def test_parts_can_be_left_out():
    lean = record_to_group(group_to_record(GROUP, token_ids=False, passage_text=False, messages=False))
    first = lean.trajectories[0].steps[0]
    assert (first.generation.response_ids, first.generation.logprobs) == ((), ())
    assert (first.generation.text, first.generation.prompt_tokens) == ("t", 2)
    assert first.observation.passages == (Passage("p", "P", "", 1.5),)
    assert lean.trajectories[0].messages == ()
    assert lean.trajectories[0].steps[1:] == GROUP.trajectories[0].steps[1:]


def test_odd_floats_survive():
    step = Step(Answer("a"), Generation("", (), (1, 2, 3), (math.nan, -math.inf, -1.0)))
    group = replace(GROUP, trajectories=(Trajectory((step,)),))
    logprobs = record_to_group(loads(dumps(group_to_record(group)))).trajectories[0].steps[0].generation.logprobs
    assert math.isnan(logprobs[0])
    assert logprobs[1:] == (-math.inf, -1.0)


def test_credit_of_any_dataclass_becomes_plain():
    @dataclass(frozen=True)
    class Ledger:
        potential: float
        by_kind: dict[str, float]

    @dataclass(frozen=True)
    class Credit:
        utilities: np.ndarray
        steps: tuple[Ledger, ...]
        triple: Triple
        members: frozenset[int]
        by_member: dict[int, np.float64]

    credit = Credit(
        np.array([0.125, -0.5]),
        (Ledger(0.1, {"parse": -0.1}),),
        Triple("a", "b", "c"),
        frozenset({3, 1}),
        {2: np.float64(0.5)},
    )
    expected = {
        "utilities": [0.125, -0.5],
        "steps": [{"potential": 0.1, "by_kind": {"parse": -0.1}}],
        "triple": ["a", "b", "c"],
        "members": [1, 3],
        "by_member": {"2": 0.5},
    }
    assert loads(dumps(group_to_record(GROUP, credit)))["credit"] == expected
    assert to_plain({"n": Counter("aab"), "none": None, "yes": True}) == {
        "n": {"a": 2, "b": 1},
        "none": None,
        "yes": True,
    }
    with pytest.raises(DataError, match="a value of type object has no JSON form"):
        to_plain({"x": object()})
    with pytest.raises(DataError, match="key must be a string or an integer"):
        to_plain({(1, 2): 3})


def test_the_credit_of_a_group_is_written_with_every_field():
    ledger = StepCredit(0.1, 0.1, 0.08, {"duplicate_search": -0.01}, 1.2)
    cluster = ClusterCredit(Triple("a", "r", "b"), (Triple("a", "r", "b"),), 3, 2.0, 0.625, 0.125, (0.2, 0.9))
    credit = GroupCredit(0.5, (cluster,), (TrajectoryCredit(1.0, 1.0, 0.9, (ledger,)),))
    written = loads(dumps(group_to_record(GROUP, credit)))["credit"]
    assert list(written) == [field.name for field in fields(GroupCredit)]
    assert written["baseline"] == 0.5
    assert written["clusters"][0]["representative"] == ["a", "r", "b"]
    assert written["clusters"][0]["interval"] == [0.2, 0.9]
    assert written["trajectories"][0]["steps"] == [
        {"potential": 0.1, "shaping": 0.1, "process": 0.08, "penalties": {"duplicate_search": -0.01}, "advantage": 1.2}
    ]


def broken(path, value):
    """The record of GROUP with the value at `path` replaced (or deleted, for `...`)."""
    record = copy.deepcopy(group_to_record(GROUP))
    *front, last = path
    place = record
    for key in front:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return record


STEP = ["trajectories", 0, "steps", 0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema"], 2, "field 'schema': 2; this version reads 1"),
        (["schema"], ..., "field 'schema': None"),
        (["question"], ..., "field 'question': missing"),
        (["extra"], 1, "field 'extra': unknown"),
        (["question", "text"], ..., r"field 'question\.text': missing"),
        (["question", "hops"], "two", r"field 'question\.hops': must be of type int, not 'two'"),
        (["question", "hops"], True, r"field 'question\.hops': must be of type int, not True"),
        (["question", "answers"], "Ann", r"field 'question\.answers': must be a list, not 'Ann'"),
        (["question", "answers"], ["Ann", 3], r"field 'question\.answers\[1\]': must be of type str, not 3"),
        (["question", "evidences", 0], ["a", "b"], r"field 'question\.evidences\[0\]': must be a list of 3"),
        (
            ["trajectories", 0, "stop_reason"],
            "bored",
            r"field 'trajectories\[0\]\.stop_reason': must be one of answered,",
        ),
        ([*STEP, "action"], {"action": "fly"}, r"steps\[0\]\.action\.action': must be one of search, assert"),
        ([*STEP, "action"], ["search"], r"steps\[0\]\.action\.action': must be one of"),
        ([*STEP, "action", "query"], ..., r"steps\[0\]\.action\.query': missing"),
        ([*STEP, "observation"], 5, r"steps\[0\]\.observation': must be an object, not 5"),
        ([*STEP, "generation", "logprobs"], ["x"], r"generation\.logprobs': must be of type float, not 'x'"),
        ([*STEP, "generation", "text"], "y" * 99, None),
        ([*STEP, "generation", "text"], ["y" * 99], r"generation\.text': must be of type str, not \['y+\.\.\.$"),
    ],
)
def test_malformed_records_name_the_field(path, value, message):
    record = broken(path, value)
    if message is None:
        assert record_to_group(record).trajectories[0].steps[0].generation.text == value
        return
    with pytest.raises(DataError, match=message):
        record_to_group(record)


def test_what_is_no_object_or_no_json_is_refused():
    with pytest.raises(DataError, match="must be a JSON object, not list"):
        record_to_group([1])
    with pytest.raises(DataError, match="not JSON"):
        loads(b'{"a": ')
    with pytest.raises(DataError, match="not JSON"):
        loads(b"[" * 100_000)
    with pytest.raises(DataError, match="cannot be written as JSON"):
        dumps({"n": 2**70})


def test_a_lone_surrogate_in_what_the_policy_wrote_is_kept():
    group = replace(GROUP, question=replace(GROUP.question, text="a\ud800b"))
    assert record_to_group(loads(dumps(group_to_record(group)))) == group


def test_a_field_that_came_later_is_written_only_where_it_says_something():
    """So that records of today without it are the bytes of version 1, and records of then still read."""
    counted = Generation("x", prompt_tokens=7, response_tokens=3)
    assert to_plain(counted)["response_tokens"] == 3
    assert "response_tokens" not in to_plain(Generation("x", prompt_tokens=7))
    group = Group(Question("q", "?", ("a",)), (Trajectory((Step(Answer("a"), counted), Step(Answer("a")))),))
    assert record_to_group(group_to_record(group)) == group


def test_a_record_without_ids_keeps_their_number():
    generation = Generation("x", (1, 2), (3, 4, 5), (0.0, 0.0, 0.0), prompt_tokens=2)
    group = Group(Question("q", "?", ("a",)), (Trajectory((Step(Answer("a"), generation),)),))
    (read,) = record_to_group(group_to_record(group, token_ids=False)).trajectories
    assert read.steps[0].generation.response_ids == ()
    assert read.steps[0].generation.sampled_tokens == generation.sampled_tokens == 3
