"""Drivers that run episodes into groups. This one: lock-step batches, for a policy in this process.

Each turn asks the policy once for all episodes that wait for a generation, then the retriever once for all that wait
for passages. Finished episodes leave the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from factagent.episode import MAX_ROUNDS, TOP_K, Episode, NeedsGeneration, NeedsPassages
from factagent.policies.base import GenerationRequest, Policy
from factagent.protocols.base import AgentProtocol
from factagent.retrieval.base import EpisodeRetriever, RetrievalError, Retriever, SearchRequest, search_for
from factagent.types import Group, Question, StopReason


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How groups are sampled: members a question, rounds an episode, passages an observation.

    Raises:
        ValueError: `group_size` is below 1.
    """

    group_size: int = 6
    max_rounds: int = MAX_ROUNDS
    top_k: int = TOP_K
    record_messages: bool = False

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ValueError(f"group_size={self.group_size} must be at least 1")


def run_episodes(
    episodes: Sequence[Episode],
    keys: Sequence[tuple[str | int, ...]],
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
) -> None:
    """Drive all episodes to their end, in place, from whatever state each is in.

    A retrieval error ends every episode that waited for that batch with `retrieval_failed`; an environment that answers
    episode by episode (`EpisodeRetriever`) may fail for some of them only. Errors of the policy, which lives in this
    process, are not caught.

    Args:
        keys: `keys[i]` names the random draws of `episodes[i]`; the round is appended.

    Raises:
        ValueError: there is not one key an episode, one generation a request, or one list of passages a query.
    """
    if len(keys) != len(episodes):
        raise ValueError(f"{len(keys)} keys for {len(episodes)} episodes")
    while True:
        _retrieve(episodes, keys, retriever)
        waiting = [(i, request) for i, e in enumerate(episodes) if isinstance(request := e.request, NeedsGeneration)]
        if not waiting:
            return
        generations = policy.generate([GenerationRequest.of(request, keys[i]) for i, request in waiting])
        for (index, _), generation in zip(waiting, generations, strict=True):
            episodes[index].feed_generation(generation)


def _retrieve(
    episodes: Sequence[Episode], keys: Sequence[tuple[str | int, ...]], retriever: Retriever | EpisodeRetriever
) -> None:
    searching = [
        (e, key, request)
        for e, key in zip(episodes, keys, strict=True)
        if isinstance(request := e.request, NeedsPassages)
    ]
    if not searching:
        return
    # One call serves episodes of different top_k: a ranking's first k are the ranking for k.
    most = max(request.top_k for _, _, request in searching)
    requests = [SearchRequest(r.query, e.state.question, (*key, e.state.round)) for e, key, r in searching]
    try:
        found = search_for(retriever, requests, most)
    except RetrievalError:
        for episode, _, _ in searching:
            episode.fail(StopReason.RETRIEVAL_FAILED)
        return
    for (episode, _, request), passages in zip(searching, found, strict=True):
        if isinstance(passages, RetrievalError):
            episode.fail(StopReason.RETRIEVAL_FAILED)
        else:
            episode.feed_passages(passages[: request.top_k])


def sample_groups(
    questions: Sequence[Question],
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    settings: RolloutSettings,
    key: tuple[str | int, ...],
) -> list[Group]:
    """Sample `settings.group_size` trajectories for each question, all in one lock-step batch.

    Args:
        key: names the random draws, e.g. `(seed, "train", step)`; question id, member and round are appended, so two
            questions of one call that share an id would share their draws.
    """
    episodes, keys = [], []
    for question in questions:
        for member in range(settings.group_size):
            episodes.append(
                Episode(
                    question,
                    protocol,
                    member=member,
                    max_rounds=settings.max_rounds,
                    top_k=settings.top_k,
                    record_messages=settings.record_messages,
                )
            )
            keys.append((*key, question.id, member))
    run_episodes(episodes, keys, policy, retriever)
    size = settings.group_size
    return [
        Group(question, tuple(e.trajectory for e in episodes[i * size : (i + 1) * size]))
        for i, question in enumerate(questions)
    ]
