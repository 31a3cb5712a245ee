"""A recorded trajectory played again through an Episode, without policy and without retriever.

Rules that look inside a trajectory need the Episode as it stood before each of its steps: to branch from it (VinePPO,
Tree-GRPO), or to ask what would follow. The record holds everything that was fed, so nothing is asked twice.
"""

from __future__ import annotations

from factagent.episode import OVERLONG, Episode, NeedsGeneration, NeedsPassages
from factagent.errors import DataError
from factagent.protocols.base import AgentProtocol
from factagent.rollout import RolloutSettings
from factagent.types import Generation, Question, Step, StopReason, Trajectory


def replay(
    question: Question, trajectory: Trajectory, protocol: AgentProtocol, settings: RolloutSettings
) -> list[Episode]:
    """The episode in each of its states s_0 to s_S, S being the number of steps; the last one is finished.

    The episodes are independent. Branch one (`Episode.branch`) before driving it on, and the list stays as it is.

    Args:
        question: what was asked.
        trajectory: the record; its messages are made anew where it holds them.
        protocol: the one under which it was sampled.
        settings: the budgets under which it was sampled.

    Raises:
        DataError: the record does not follow from protocol and budgets: it was sampled under others, or edited.
    """
    recorded = bool(trajectory.messages)
    episode = Episode(
        question,
        protocol,
        member=trajectory.member,
        max_rounds=settings.max_rounds,
        top_k=settings.top_k,
        record_messages=recorded,
    )
    states: list[Episode] = []
    for step in trajectory.steps:
        states.append(episode)
        _ = episode.request  # rendered here once, for all branches
        episode = episode.branch()
        _feed(episode, step)
    _end(episode, trajectory.stop_reason)
    if episode.stop_reason is None or episode.trajectory != trajectory:
        raise DataError(
            f"question '{question.id}', member {trajectory.member}: the trajectory does not follow from protocol "
            f"'{protocol.name}' with max_rounds={settings.max_rounds}; replay it under what it was sampled with"
        )
    return [*states, episode]


def _feed(episode: Episode, step: Step) -> None:
    """Feed what the step recorded; nothing where the episode does not wait for it."""
    if isinstance(episode.request, NeedsGeneration):
        episode.feed_generation(step.generation)
    if isinstance(episode.request, NeedsPassages) and step.observation is not None:
        episode.feed_passages(step.observation.passages)


def _end(episode: Episode, reason: StopReason) -> None:
    """Repeat an end that no step records: a prompt that did not fit, or a failure."""
    if reason is StopReason.PROMPT_TOO_LONG and isinstance(episode.request, NeedsGeneration):
        episode.feed_generation(Generation("", finish_reason=OVERLONG))
    elif reason.is_failure and episode.stop_reason is None:
        episode.fail(reason)
