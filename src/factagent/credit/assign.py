"""The FactAgent credit rule: groups in, one advantage per step out, with the ledger that explains each number.

    triples -> clusters -> N, S -> P -> V -> Phi -> shaping -> process reward (+ penalties) -> advantage

Pure: no files, no clock, no global; the encoder is given. The unit is a batch of groups because
`process_scale = "batch-std"` needs it; under the other options a group's credit depends on that group alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factagent.credit import advantages, shaping, utility
from factagent.credit.clustering import Clustering, cluster_facts
from factagent.credit.config import CreditConfig, RuleConfig
from factagent.credit.penalties import is_premature, step_penalties
from factagent.outcomes import outcome_reward
from factagent.rewards import exact_match, f1
from factagent.types import Fact, Group, Question, Trajectory, Triple

if TYPE_CHECKING:
    from factagent.credit.encoders import Encoder

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepCredit:
    """The ledger of one step.

    `potential` is Phi after the step and `shaping` its increase. `process` is the term that enters the advantage:
    redistributed shaping plus `penalties` (negative, by name), as `process` and `process_scale` then make of it.
    Always `advantage = outcome_advantage + process_weight * process` (eq. 14, section 4.3).
    """

    potential: float
    shaping: float
    process: float
    penalties: dict[str, float]
    advantage: float


@dataclass(frozen=True, slots=True)
class TrajectoryCredit:
    """Outcome reward, success in [0, 1], outcome advantage, and the ledger of each step.

    `excluded` marks a failure of infrastructure: it left the group's statistics and every number here is 0.
    """

    outcome: float
    success: float
    outcome_advantage: float
    steps: tuple[StepCredit, ...]
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class ClusterCredit:
    """One cluster of equivalent triples with its counts over the whole group, also under leave-one-out counting.

    `interval` is the 95 % equal-tailed credible interval of the success probability theta.
    """

    representative: Triple
    members: tuple[Triple, ...]
    support: int
    successes: float
    posterior_mean: float
    utility: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class GroupCredit:
    """The credit of one group; `baseline` is the mean success of the members that count (0 where none does)."""

    baseline: float
    clusters: tuple[ClusterCredit, ...]
    trajectories: tuple[TrajectoryCredit, ...]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A group's credit before the process term is scaled over the batch. Arrays over the counted members only."""

    group: Group
    counted: tuple[int, ...]
    baseline: float
    clusters: tuple[ClusterCredit, ...]
    outcome_G: Floats
    success_G: Floats
    potential_GS: list[Floats]
    process_GS: list[Floats]
    penalties_GS: list[list[dict[str, float]]]


def assign_credit(groups: Sequence[Group], config: CreditConfig, encoder: Encoder) -> list[GroupCredit]:
    """Credit every step of every trajectory of a batch of groups (section 4.2-4.3; credit.md sections 3-7).

    Args:
        groups: the batch; trajectories stopped by a failure are left out of all statistics and get zeros.
        config: the options; the defaults are the paper's.
        encoder: embeds triples and relations for the equivalence of facts.

    Returns:
        One record per group, trajectories in the order of the group.
    """
    drafts = [_draft(group, config, encoder) for group in groups]
    divisor = 1.0
    if config.process_scale == "batch-std":
        process = [process_S for draft in drafts for process_S in draft.process_GS]
        divisor = advantages.process_divisor(np.concatenate(process) if process else np.zeros(0))
    return [_finish(draft, config, divisor) for draft in drafts]


def outcome_and_success(question: Question, trajectory: Trajectory, config: RuleConfig) -> tuple[float, float]:
    """Outcome reward and success of a trajectory, both in [0, 1] (credit.md sections 4, 6 and 7).

    Both are 0 for an answer with an empty fact store, where the rule needs facts. Without an answer success is 0; what
    the outcome is then, the chosen reward says (0 for those that only read the answer).
    """
    if config.needs_facts and is_premature([step.action for step in trajectory.steps]):
        return 0.0, 0.0
    outcome = outcome_reward(config.outcome, question, trajectory)
    answer = trajectory.answer
    if answer is None:
        return outcome, 0.0
    overlap = f1(answer, question.answers)
    success = {
        "em": exact_match(answer, question.answers),
        "f1": float(overlap >= config.success_threshold),
        "soft": overlap,
    }[config.success]
    return outcome, success


def cluster_labels(facts_G: Sequence[Sequence[Fact]], clustering: Clustering) -> list[list[tuple[int, int]]]:
    """(assert step, cluster) of each fact of each trajectory, in the order of assertion."""
    label = dict(zip(clustering.triples, clustering.labels_U.tolist(), strict=True))
    return [[(fact.assert_step, label[fact.triple]) for fact in facts] for facts in facts_G]


def _draft(group: Group, config: CreditConfig, encoder: Encoder) -> _Draft:
    """Everything about a group that does not depend on the other groups of the batch."""
    counted = tuple(i for i, trajectory in enumerate(group.trajectories) if not trajectory.stop_reason.is_failure)
    members = [group.trajectories[i] for i in counted]
    rewards = [outcome_and_success(group.question, trajectory, config) for trajectory in members]
    outcome_G = np.array([outcome for outcome, _ in rewards], dtype=np.float64)
    success_G = np.array([success for _, success in rewards], dtype=np.float64)

    facts_G = [trajectory.facts for trajectory in members]
    triples_G = [[fact.triple for fact in facts] for facts in facts_G]
    clustering = cluster_facts(triples_G, encoder, config.equivalence_config, config.linkage)
    size = len(clustering.representatives)
    labels_G = cluster_labels(facts_G, clustering)
    first_GK = np.array([shaping.first_steps(labels, size) for labels in labels_G], dtype=np.int64)
    first_GK = first_GK.reshape(len(members), size)
    presence_GK = first_GK != shaping.ABSENT

    counts = utility.count_group(presence_GK, success_G)
    value_GK = np.broadcast_to(_utility(counts, config), presence_GK.shape)
    if config.counting == "leave-one-out":
        value_GK = _utility(utility.count_others(presence_GK, success_G), config)
    penalties_GS = [step_penalties([step.action for step in member.steps], config) for member in members]
    potential_GS = [
        shaping.potentials(first_K, value_K, len(member.steps))
        for member, first_K, value_K in zip(members, first_GK, value_GK, strict=True)
    ]
    process_GS = [
        _process(member, potential_S, penalties_S, config)
        for member, potential_S, penalties_S in zip(members, potential_GS, penalties_GS, strict=True)
    ]
    clusters = _cluster_credits(clustering, counts, config)
    baseline = float(counts.baseline)
    return _Draft(group, counted, baseline, clusters, outcome_G, success_G, potential_GS, process_GS, penalties_GS)


def _utility(counts: utility.Counts, config: CreditConfig) -> Floats:
    return utility.utility(
        counts,
        kind=config.utility,
        prior=config.prior,
        strength=config.prior_strength,
        consensus=config.consensus,
        centre=config.consensus_centre,
    )


def _process(
    trajectory: Trajectory, potential_S: Floats, penalties_S: list[dict[str, float]], config: CreditConfig
) -> Floats:
    """Redistributed shaping plus penalties, or its reward-to-go. Shape (S,)."""
    actions = [step.action for step in trajectory.steps]
    process_S = shaping.redistribute(shaping.shaping(potential_S), shaping.source_steps(actions), config.attribution)
    process_S = process_S + np.array([sum(named.values()) for named in penalties_S], dtype=np.float64)
    return shaping.reward_to_go(process_S) if config.process == "return" else process_S


def _cluster_credits(clustering: Clustering, counts: utility.Counts, config: CreditConfig) -> tuple[ClusterCredit, ...]:
    """The report of each cluster, counted over the group. The posterior is the one that the utility used."""
    prior = "centred" if config.utility == "contrast" else config.prior
    a, b = utility.beta_prior(prior, config.prior_strength, counts.baseline)
    mean_K = utility.posterior_mean(counts.successes, counts.support, a, b)
    low_K, high_K = utility.credible_interval(counts, a, b)
    value_K = _utility(counts, config)
    members: list[list[Triple]] = [[] for _ in clustering.representatives]
    for triple, label in zip(clustering.triples, clustering.labels_U, strict=True):
        members[int(label)].append(triple)
    return tuple(
        ClusterCredit(
            representative=clustering.triples[int(representative)],
            members=tuple(members[k]),
            support=int(counts.support[k]),
            successes=float(counts.successes[k]),
            posterior_mean=float(mean_K[k]),
            utility=float(value_K[k]),
            interval=(float(low_K[k]), float(high_K[k])),
        )
        for k, representative in enumerate(clustering.representatives)
    )


def _finish(draft: _Draft, config: CreditConfig, divisor: float) -> GroupCredit:
    """Scale the process term, add the outcome advantage, and put the excluded trajectories back in their places."""
    advantage_G = advantages.outcome_advantages(draft.outcome_G)
    credits = [excluded(trajectory) for trajectory in draft.group.trajectories]
    for row, member in enumerate(draft.counted):
        process_S = draft.process_GS[row] / divisor
        total_S = advantages.total_advantages(float(advantage_G[row]), process_S, config.process_weight)
        columns = (draft.potential_GS[row], shaping.shaping(draft.potential_GS[row]), process_S, total_S)
        steps = tuple(
            StepCredit(potential, shape, process, penalties, total)
            for potential, shape, process, total, penalties in zip(
                *(column.tolist() for column in columns), draft.penalties_GS[row], strict=True
            )
        )
        credits[member] = TrajectoryCredit(
            float(draft.outcome_G[row]), float(draft.success_G[row]), float(advantage_G[row]), steps
        )
    return GroupCredit(draft.baseline, draft.clusters, tuple(credits))


def excluded(trajectory: Trajectory) -> TrajectoryCredit:
    """The record of a trajectory that left the statistics: zeros everywhere."""
    steps = tuple(StepCredit(0.0, 0.0, 0.0, {}, 0.0) for _ in trajectory.steps)
    return TrajectoryCredit(0.0, 0.0, 0.0, steps, excluded=True)
