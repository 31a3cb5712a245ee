"""LLDS-MA: which tokens spell an answer, and how firmly they are held."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from factagent.errors import DataError
from factagent.train.answer_weights import answer_factor, answer_span, answer_weighted
from factagent.train.config import LearnerConfig
from factagent.train.samples import Sample, collate, step_samples, trajectory_sample
from factagent.types import Answer, Generation, Group, Question, Search, Step, StopReason, Trajectory

PAPER = LearnerConfig(llds_coef=0.2, llds_answer="paper")
SCRIPT = LearnerConfig(llds_coef=0.2, llds_answer="script", llds_answer_coef=0.1)
WORDS = ["<answer>", " Franz", " Kafka", "</answer>", " find", "<search>", "</search>", " Ka", "fka", '"', "\\", "é"]


def decode(ids):
    return "".join(WORDS[i] for i in ids)


def ids_of(*words):
    return tuple(WORDS.index(word) for word in words)


SEARCH = ids_of(" find", "<search>", " Kafka", "</search>")
REPLY = ids_of(" Kafka", "<answer>", " Franz", " Kafka", "</answer>")


def trajectory(searches, answer="Franz Kafka", stop=StopReason.ANSWERED):
    """Searches, then an answer (or one search more), as one growing row."""
    steps, read = [], (90, 91)
    for _ in range(searches):
        steps.append(Step(Search("kafka"), Generation(decode(SEARCH), read, SEARCH, (-1.0,) * 4)))
        read = (*read, *SEARCH, 92, 93)
    if answer is not None:
        steps.append(Step(Answer(answer), Generation(decode(REPLY), read, REPLY, (-1.0,) * 5)))
    return Trajectory(tuple(steps), stop)


def weighted(trajectories, config, append=True):
    """The samples of one group with the weights of a configuration."""
    group = Group(Question("q", "Who?", ("Franz Kafka",)), tuple(trajectories))
    samples = []
    for member, one in enumerate(trajectories):
        ones = [1.0] * len(one.steps)
        rows = [trajectory_sample(one, ones, 0)] if append else step_samples(one, ones, 0)
        samples += [Sample(**(vars_of(row) | {"member": member})) for row in rows]
    return answer_weighted([group], samples, decode, config)


def vars_of(sample):
    return {name: getattr(sample, name) for name in sample.__dataclass_fields__}


@pytest.mark.parametrize(("searches", "factor"), [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5), (2.0, 1.0), (3.5, 1.0)])
def test_the_factor_of_the_paper(searches, factor):
    assert answer_factor(searches, PAPER) == factor


@pytest.mark.parametrize(("searches", "factor"), [(0.0, 0.0), (1.0, 0.0), (2.0, 0.5), (3.0, 1.0), (9.0, 1.0)])
def test_the_factor_of_the_script(searches, factor):
    assert answer_factor(searches, SCRIPT) == pytest.approx(factor)


def test_the_span_is_the_tokens_that_spell_the_answer_at_its_last_mention():
    assert answer_span(REPLY, "Franz Kafka", decode) == (2, 4)
    assert answer_span(REPLY, "Kafka", decode) == (3, 4)
    split = ids_of("<answer>", " Ka", "fka", "</answer>")
    assert answer_span(split, "Kafka", decode) == (1, 3)
    assert answer_span(split, "fk", decode) == (2, 3)  # a part of a token is the token
    assert answer_span(ids_of(" Kafka", "</answer>", "<answer>"), "Kafka", decode) == (0, 1)


def test_an_answer_in_json_is_found_as_json_spells_it():
    quoted = ids_of(" find", '"', " Kafka", "\\", '"', " Franz", "\\", '"', '"')
    assert json.loads(decode(quoted[1:])) == ' Kafka" Franz"'
    assert answer_span(quoted, 'Kafka" Franz"', decode) == (2, 8)


def test_an_answer_that_is_spelled_otherwise_counts_as_the_whole_reply():
    assert answer_span(REPLY, "the author of the book", decode) == (0, 5)


def test_weights_of_appended_rows():
    one, two = weighted([trajectory(1), trajectory(0)], PAPER)  # V = 1/2, factor 1/4
    assert one.llds_weights.tolist() == [1.0] * 4 + [1.0] * 2 + [1.0, 1.0, 0.25, 0.25, 1.0]
    assert two.llds_weights.tolist() == [1.0, 1.0, 0.25, 0.25, 1.0]
    batch = collate([one, two])
    masked = batch["llds_weights"][batch["loss_mask"]].tolist()
    assert masked == [1.0] * 6 + [0.25, 0.25, 1.0] + [1.0, 1.0, 0.25, 0.25, 1.0]


def test_weights_of_one_row_a_step_stand_in_the_answers_row():
    rows = weighted([trajectory(1), trajectory(0)], PAPER, append=False)
    assert [None if row.llds_weights is None else row.llds_weights.tolist() for row in rows] == [
        None,
        [1.0, 1.0, 0.25, 0.25, 1.0],
        [1.0, 1.0, 0.25, 0.25, 1.0],
    ]


def test_a_trajectory_without_an_answer_keeps_its_weights_and_counts_in_the_mean():
    lost, found = weighted([trajectory(3, None, StopReason.OUT_OF_ROUNDS), trajectory(0)], PAPER)
    assert lost.llds_weights is None
    assert found.llds_weights.tolist() == [1.0, 1.0, 0.75, 0.75, 1.0]


@pytest.mark.parametrize("config", [LearnerConfig(llds_coef=0.2), LearnerConfig(llds_answer="paper")])
def test_where_it_is_off_nothing_changes(config):
    assert [row.llds_weights for row in weighted([trajectory(1), trajectory(0)], config)] == [None, None]
    assert answer_weighted([], [], decode, PAPER) == []


def test_weights_of_another_length_are_refused():
    (row,) = weighted([trajectory(0)], LearnerConfig())
    with pytest.raises(DataError, match="'llds_weights' has 2 entries for 5 response tokens"):
        Sample(**(vars_of(row) | {"llds_weights": np.ones(2)}))
