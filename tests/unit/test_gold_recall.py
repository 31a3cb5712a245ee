"""Recall of gold passages: over the episode, and by the first search."""

from __future__ import annotations

import pytest

from factagent.evaluation.recall import gold_passage_recall
from factagent.types import Answer, Observation, Passage, Question, Search, Step, Trajectory

GOLD = ("The Trial", "Franz Kafka")


def asked(*titles):
    return Question("q", "?", ("a",), supporting_titles=titles)


def searched(*found):
    """A trajectory that searched and saw these titles, a tuple a search; None: the search did not return."""
    steps = [
        Step(
            Search("x"),
            observation=None if each is None else Observation("x", tuple(Passage(t, t, "text") for t in each)),
        )
        for each in found
    ]
    return Trajectory((*steps, Step(Answer("a"))))


@pytest.mark.parametrize(
    ("found", "episode", "first"),
    [
        ((("The Trial", "Franz Kafka"),), 1.0, 1.0),
        ((("The Trial",), ("Franz Kafka",)), 1.0, 0.5),
        ((("Prague",), ("Franz Kafka", "Franz Kafka")), 0.5, 0.0),
        (((), ("The Trial",)), 0.5, 0.0),
        ((None, ("The Trial",)), 0.5, 0.5),  # a search that did not return is no first search
        (((),), 0.0, 0.0),
        ((), 0.0, 0.0),  # never searched
    ],
)
def test_shares_of_the_gold_titles(found, episode, first):
    assert gold_passage_recall(asked(*GOLD), searched(*found)) == (episode, first)


def test_titles_are_compared_without_quotes_case_and_accents():
    question = asked("Café de Flore", "café de flore", "!!!")
    assert gold_passage_recall(question, searched(('"CAFE DE FLORE"',))) == (0.5, 0.5)
    assert gold_passage_recall(question, searched(("!!!", "Cafe de Flore"))) == (1.0, 1.0)
    assert gold_passage_recall(question, searched(("???",))) == (0.0, 0.0)


def test_no_annotation_no_recall():
    assert gold_passage_recall(asked(), searched(("The Trial",))) is None
