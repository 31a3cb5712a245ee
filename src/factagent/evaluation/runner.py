"""Run a policy on questions and score it: one row a question, aggregated afterwards (methods.md, section 11.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from factagent.evaluation.intervals import wilson_interval
from factagent.evaluation.recall import gold_passage_recall
from factagent.policies.base import Policy
from factagent.protocols.base import AgentProtocol
from factagent.protocols.fact_store import fact_key
from factagent.retrieval.base import Retriever
from factagent.rewards import cover_em, exact_match, f1
from factagent.rollout import RolloutSettings, sample_groups
from factagent.types import Invalid, Question, Search, Trajectory


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """One question's scores.

    `coverage` is the share of gold triples in the final store, `gold_passage_recall` and `first_search_recall` those of
    gold titles among the passages of all searches and of the first (see `recall`); None without annotations.
    """

    question: Question
    trajectory: Trajectory
    em: float
    f1: float
    cover_em: float
    coverage: float | None
    gold_passage_recall: float | None = None
    first_search_recall: float | None = None

    @property
    def type(self) -> str | None:
        """The question's type."""
        return self.question.type

    @property
    def hops(self) -> int | None:
        """The question's number of hops."""
        return self.question.hops

    @property
    def failed(self) -> bool:
        """Whether infrastructure failed, so that the scores say nothing."""
        return self.trajectory.stop_reason.is_failure

    @property
    def steps(self) -> int:
        """Rounds played."""
        return len(self.trajectory.steps)

    @property
    def searches(self) -> int:
        """Searches issued."""
        return sum(isinstance(step.action, Search) for step in self.trajectory.steps)

    @property
    def invalid(self) -> int:
        """Replies that were no valid action."""
        return sum(isinstance(step.action, Invalid) for step in self.trajectory.steps)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens over all rounds."""
        return sum(step.generation.prompt_tokens for step in self.trajectory.steps)

    @property
    def response_tokens(self) -> int:
        """Sampled tokens over all rounds."""
        return sum(step.generation.sampled_tokens for step in self.trajectory.steps)


if TYPE_CHECKING:
    from factagent.evaluation.rows import ResultRow

    Scored: TypeAlias = QuestionResult | ResultRow
    """What a summary reads: scores and costs of a question, with or without its trajectory."""


def gold_coverage(question: Question, trajectory: Trajectory) -> float | None:
    """Share of the question's gold triples that the final store states, in any of their listed wordings."""
    if not question.evidences:
        return None
    held = {fact_key(fact.triple) for fact in trajectory.facts}
    variants = question.evidence_variants or ((),) * len(question.evidences)
    met = [
        any(fact_key(wording) in held for wording in (gold, *others))
        for gold, others in zip(question.evidences, variants, strict=True)
    ]
    return sum(met) / len(met)


def score(question: Question, trajectory: Trajectory) -> QuestionResult:
    """Score a trajectory by its answer action; no answer scores 0."""
    answer = trajectory.answer or ""
    golds = question.answers
    recall = gold_passage_recall(question, trajectory)
    return QuestionResult(
        question,
        trajectory,
        exact_match(answer, golds) if answer else 0.0,
        f1(answer, golds) if answer else 0.0,
        cover_em(answer, golds) if answer else 0.0,
        gold_coverage(question, trajectory),
        recall.episode if recall else None,
        recall.first_search if recall else None,
    )


def evaluate(
    questions: Sequence[Question],
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever,
    settings: RolloutSettings,
    *,
    key: tuple[str | int, ...] = ("eval",),
    batch_size: int = 128,
    progress: Callable[[list[QuestionResult]], None] | None = None,
) -> list[QuestionResult]:
    """Play each question once and score it, `batch_size` questions in lock-step; results in the questions' order."""
    results: list[QuestionResult] = []
    for batch in _batches(questions, batch_size):
        groups = sample_groups(batch, protocol, policy, retriever, settings, key)
        results += [score(group.question, group.trajectories[0]) for group in groups]
        if progress is not None:
            progress(results)
    return results


def _batches(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    for start in range(0, len(questions), size):
        yield questions[start : start + size]


def summarise(results: Sequence[Scored]) -> dict[str, object]:
    """Means with 95 % intervals, overall, by hops and by type. Failures of infrastructure are counted and left out."""
    kept = [result for result in results if not result.failed]
    summary: dict[str, object] = {**_means(kept), "failed": len(results) - len(kept)}
    for name, label in (("by_hop", _hops), ("by_type", _type)):
        labels = sorted({label(result) for result in kept})
        summary[name] = {each: _means([r for r in kept if label(r) == each]) for each in labels}
    return summary


def _hops(result: Scored) -> str:
    return str(result.hops) if result.hops is not None else "unknown"


def _type(result: Scored) -> str:
    return result.type or "unknown"


def _means(results: Sequence[Scored]) -> dict[str, object]:
    """Means over questions; `low` and `high` are EM's 95 % Wilson interval; a mean of what no question has is None."""
    if not results:
        return {"n": 0}
    steps = sum(result.steps for result in results)
    low, high = wilson_interval(sum(result.em for result in results), len(results))
    return {
        "n": len(results),
        "em": float(np.mean([result.em for result in results])),
        "low": low,
        "high": high,
        "f1": float(np.mean([result.f1 for result in results])),
        "cover_em": float(np.mean([result.cover_em for result in results])),
        "coverage": _mean_of_known([result.coverage for result in results]),
        "gold_passage_recall": _mean_of_known([result.gold_passage_recall for result in results]),
        "first_search_recall": _mean_of_known([result.first_search_recall for result in results]),
        "steps": steps / len(results),
        "searches": float(np.mean([result.searches for result in results])),
        "parse_error_rate": sum(result.invalid for result in results) / max(1, steps),
        "prompt_tokens": float(np.mean([result.prompt_tokens for result in results])),
        "response_tokens": float(np.mean([result.response_tokens for result in results])),
    }


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
