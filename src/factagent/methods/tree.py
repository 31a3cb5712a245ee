"""Tree-GRPO's sampling: groups whose members are the leaves of trees (methods.md, section 12.1).

M chains are played for a question; each is the trunk of a tree. In each of L rounds every tree is expanded from N
states drawn at random (with replacement) from those that it holds and that are no leaf, and each expansion is played to
its end. A tree has 1 + L N leaves then, of which k are kept. Members of a tree share prefixes, which are sampled once
and recorded in each member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from factagent.episode import Episode
from factagent.errors import ConfigError
from factagent.methods.replay import replay
from factagent.policies.base import Policy, seed_of
from factagent.protocols.base import AgentProtocol
from factagent.retrieval.base import EpisodeRetriever, Retriever
from factagent.rollout import RolloutSettings, run_episodes
from factagent.types import Group, Question, Trajectory

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class TreeSettings:
    """The shape of the trees.

    Attributes:
        trees: M, trees a question.
        expansions: N, states that are expanded, a tree and round.
        rounds: L, rounds of expansion.
        leaves: k, leaves kept of each tree, drawn at random.
    """

    trees: int = 2
    expansions: int = 2
    rounds: int = 1
    leaves: int = 3

    def __post_init__(self) -> None:
        if min(self.trees, self.leaves) < 1 or min(self.expansions, self.rounds) < 0:
            raise ValueError(f"{self}: trees and leaves must be at least 1, expansions and rounds at least 0")
        if self.leaves > 1 + self.rounds * self.expansions:
            raise ValueError(f"{self}: a tree grows 1 + rounds * expansions leaves, fewer than leaves={self.leaves}")

    @property
    def group_size(self) -> int:
        """Members of a group: the leaves that are kept."""
        return self.trees * self.leaves


@dataclass
class _Tree:
    """A tree as it grows: the distinct states from which it can be expanded, its root first, and its leaves."""

    question: Question
    name: Key
    inner: list[Episode]
    leaves: list[Episode] = field(default_factory=list)

    def add(self, leaf: Episode, protocol: AgentProtocol, settings: RolloutSettings, grown_from: int) -> None:
        """Take a finished episode that started in a state of the tree with `grown_from` steps."""
        self.leaves.append(leaf)
        states = replay(self.question, leaf.trajectory, protocol, settings)
        self.inner += states[grown_from + 1 : -1]


def sample_trees(
    questions: Sequence[Question],
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    settings: RolloutSettings,
    key: Key,
    shape: TreeSettings,
) -> tuple[list[Group], list[tuple[int, ...]], int]:
    """Groups, the tree of each member, and the tokens that were sampled (shared prefixes once).

    Every stage is one lock-step batch over all questions.

    Args:
        key: names the random draws; question id, tree, round and expansion are appended.

    Raises:
        ConfigError: `settings.group_size` is not the number of leaves that are kept.
    """
    if settings.group_size != shape.group_size:
        raise ConfigError(
            f"rollout.group_size={settings.group_size}, but {shape.trees} trees of {shape.leaves} leaves make groups "
            f"of {shape.group_size}; set rollout.group_size={shape.group_size}"
        )
    trees = [
        _Tree(question, (*key, question.id, tree), [_root(question, protocol, settings)])
        for question in questions
        for tree in range(shape.trees)
    ]
    trunks = [tree.inner[0].branch() for tree in trees]
    tokens = _play(trees, trunks, [(*tree.name, 0, 0) for tree in trees], policy, retriever, protocol, settings)
    for round_ in range(1, shape.rounds + 1):
        owners, branches, names = [], [], []
        for tree in trees:
            draws = Random(seed_of((*tree.name, "expand", round_)))
            for number, start in enumerate(draws.choices(tree.inner, k=shape.expansions)):
                owners.append(tree)
                branches.append(start.branch())
                names.append((*tree.name, round_, number))
        tokens += _play(owners, branches, names, policy, retriever, protocol, settings)
    return (*_groups(questions, trees, shape), tokens)


def _root(question: Question, protocol: AgentProtocol, settings: RolloutSettings) -> Episode:
    return Episode(
        question,
        protocol,
        max_rounds=settings.max_rounds,
        top_k=settings.top_k,
        record_messages=settings.record_messages,
    )


def _play(
    owners: Sequence[_Tree],
    episodes: Sequence[Episode],
    names: Sequence[Key],
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    protocol: AgentProtocol,
    settings: RolloutSettings,
) -> int:
    """Play episodes to their ends and hang them into their trees; returns the tokens that this sampled."""
    played = [len(episode.state.steps) for episode in episodes]
    run_episodes(episodes, names, policy, retriever)
    tokens = 0
    for tree, episode, before in zip(owners, episodes, played, strict=True):
        tree.add(episode, protocol, settings, before)
        tokens += sum(step.generation.sampled_tokens for step in episode.state.steps[before:])
    return tokens


def _groups(
    questions: Sequence[Question], trees: Sequence[_Tree], shape: TreeSettings
) -> tuple[list[Group], list[tuple[int, ...]]]:
    """The leaves that are kept, as members of their question's group, with the tree of each."""
    groups, indices = [], []
    for number, question in enumerate(questions):
        members: list[Trajectory] = []
        owners: list[int] = []
        for index, tree in enumerate(trees[number * shape.trees : (number + 1) * shape.trees]):
            for leaf in _kept(tree, shape.leaves):
                members.append(replace(leaf.trajectory, member=len(members)))
                owners.append(index)
        groups.append(Group(question, tuple(members)))
        indices.append(tuple(owners))
    return groups, indices


def _kept(tree: _Tree, count: int) -> list[Episode]:
    """A random choice of leaves, in the order in which they grew."""
    draws = Random(seed_of((*tree.name, "keep")))
    chosen = draws.sample(range(len(tree.leaves)), count)
    return [tree.leaves[index] for index in sorted(chosen)]
