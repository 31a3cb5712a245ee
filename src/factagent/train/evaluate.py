"""Evaluate a local model with a run's configuration: what `factagent eval` calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from factagent.errors import UsageError
from factagent.evaluation.runner import QuestionResult, evaluate, summarise
from factagent.records import dumps, to_plain
from factagent.train.config import RunConfig
from factagent.train.session import make_progress
from factagent.train.setup import greedy, load_data, load_policy, prepare_process, protocol_of


def evaluate_model(
    config: RunConfig, model: str | None = None, limit: int | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Greedy scores of a model on the configuration's dev questions, with a progress bar.

    Args:
        config: the tables `model`, `data` and `rollout` apply.
        model: a model directory instead of `config.model.path`.
        limit: only the first so many questions.
        out: a file for one JSON object a question; it must not exist.
    """
    if out is not None and out.exists():
        raise UsageError(f"{out} exists already; choose another --out")
    prepare_process(config.threads)
    data = load_data(config.data)
    questions = data.dev[:limit]
    policy = greedy(load_policy(config, model))
    with make_progress() as progress:
        bar = progress.add_task("eval", total=len(questions), figures="")

        def show(results: list[QuestionResult]) -> None:
            em = sum(result.em for result in results) / len(results)
            progress.update(bar, completed=len(results), figures=f"EM {em:.3f}")

        settings = config.rollout.settings(group_size=1)
        results = evaluate(questions, protocol_of(config.rollout), policy, data.retriever, settings, progress=show)
    if out is not None:
        out.write_bytes(b"".join(dumps(_row(result)) + b"\n" for result in results))
    return summarise(results)


def _row(result: QuestionResult) -> dict[str, Any]:
    """One question's row: scores, costs, and the trajectory itself."""
    return {
        "id": result.question.id,
        "question": result.question.text,
        "golds": list(result.question.answers),
        "answer": result.trajectory.answer,
        "em": result.em,
        "f1": result.f1,
        "cover_em": result.cover_em,
        "coverage": result.coverage,
        "searches": result.searches,
        "prompt_tokens": result.prompt_tokens,
        "response_tokens": result.response_tokens,
        "stop_reason": result.trajectory.stop_reason.value,
        "trajectory": to_plain(result.trajectory),
    }
