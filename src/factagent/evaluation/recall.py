"""Gold-passage recall: did the searches of an episode bring what the question needs?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from factagent.credit.entities import normalise_text
from factagent.types import Passage, Question, Trajectory


class Recall(NamedTuple):
    """Shares in [0, 1] of the question's gold titles."""

    episode: float
    """Among the passages of all searches."""
    first_search: float
    """Among those of the first search that returned: recall@k of the first query."""


def gold_passage_recall(question: Question, trajectory: Trajectory) -> Recall | None:
    """Shares of the question's `supporting_titles` that were retrieved; None where the data set names none.

    Titles are compared without case, accents and punctuation. An episode that never searched has found nothing.
    """
    gold = _titles(question.supporting_titles)
    if not gold:
        return None
    observed = [step.observation.passages for step in trajectory.steps if step.observation is not None]
    first = _found(gold, observed[0]) if observed else 0.0
    return Recall(_found(gold, [passage for passages in observed for passage in passages]), first)


def _found(gold: frozenset[str], passages: Iterable[Passage]) -> float:
    return len(gold & _titles(passage.title for passage in passages)) / len(gold)


def _titles(titles: Iterable[str]) -> frozenset[str]:
    # A title of nothing but signs ("!!!") stays as it is.
    return frozenset(normalise_text(title) or title.strip() for title in titles)
