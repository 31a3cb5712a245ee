"""Token-level credit of `rule = "gae"`: from outcomes and values to an advantage for each sampled token.

The rule's ledger holds the outcome of each trajectory; the values come from the critic, which only training has. What
is decided here goes two ways: per-token advantages into the samples, and their mean over each step's tokens into the
ledger, so that reports show what was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from factagent.credit.assign import GroupCredit, StepCredit, TrajectoryCredit
from factagent.credit.gae import GaeConfig
from factagent.episode import FORCED
from factagent.train.checkpoint import Part
from factagent.train.critic import Critic
from factagent.train.gae import Floats, advantages_and_returns, explained_variance, split_at, token_rewards, whitened
from factagent.train.learner import Learner, UpdateReport
from factagent.train.samples import Sample
from factagent.types import Group


@dataclass(frozen=True)
class TokenCredit:
    """What GAE made of a batch.

    Attributes:
        samples: the given ones with per-token advantages (0 where no loss is carried).
        values: the given ones.
        returns: what the critic shall learn, aligned with the values.
        credits: the given ledger, each step with the mean advantage of its tokens.
        metrics: figures to log.
    """

    samples: list[Sample]
    values: Sequence[Floats]
    returns: list[Floats]
    credits: list[GroupCredit]
    metrics: dict[str, float]


class CriticCredit:
    """What a rule with a critic does around an update of the policy: assess the batch, then teach the critic.

    Args:
        rule: its options.
        critic: the values.
        learner: the policy's, which has the reference for a KL in the reward.
    """

    def __init__(self, rule: GaeConfig, critic: Critic, learner: Learner) -> None:
        self.rule = rule
        self.critic = critic
        self.learner = learner

    def assess(self, groups: Sequence[Group], credits: Sequence[GroupCredit], samples: Sequence[Sample]) -> TokenCredit:
        """Per-token advantages of a batch from the critic as it is now."""
        divergences = self.learner.divergences(samples) if self.rule.kl_in_reward > 0 else None
        return token_credit(groups, credits, samples, self.critic.values(samples), divergences, self.rule)

    def teach(self, batch: TokenCredit, batch_index: int) -> UpdateReport:
        """Move the values towards the returns; figures of the values and of the update."""
        report = self.critic.update(batch.samples, batch.values, batch.returns, batch_index)
        return UpdateReport(batch.metrics | report.metrics, report.skipped)

    @property
    def part(self) -> Part:
        """What a checkpoint keeps of the critic."""
        return Part(self.critic.model.state_dict(), self.critic.optimizer)


def token_credit(
    groups: Sequence[Group],
    credits: Sequence[GroupCredit],
    samples: Sequence[Sample],
    values: Sequence[Floats],
    divergences: Sequence[Floats] | None,
    config: GaeConfig,
) -> TokenCredit:
    """Advantages along each trajectory, over its rows in order.

    Args:
        groups: the batch.
        credits: its ledger, with the outcome of each trajectory.
        samples: its rows; those of a trajectory stand together, in the order of its steps.
        values: V before each loss token, one array a sample.
        divergences: `log pi_old - log pi_ref` of each loss token; needed where `config.kl_in_reward` is not 0.
        config: the rule.
    """
    chains = _chains(samples)
    lengths = [int(sample.loss_mask.sum()) for sample in samples]
    rewards = [
        token_rewards(
            credits[samples[rows[0]].group].trajectories[samples[rows[0]].member].outcome,
            sum(lengths[row] for row in rows),
            None if divergences is None else np.concatenate([divergences[row] for row in rows]),
            config.kl_in_reward,
        )
        for rows in chains
    ]
    chained_values = [np.concatenate([values[row] for row in rows]) for rows in chains]
    raw, returns = advantages_and_returns(rewards, chained_values, config.gamma, config.lam)
    final = whitened(raw) if config.whiten else raw
    metrics = _metrics(raw, chained_values, returns, rewards)
    advantages_R, returns_R = (_by_row(chained, chains, lengths) for chained in (final, returns))
    trained = [_with_advantages(sample, row) for sample, row in zip(samples, advantages_R, strict=True)]
    return TokenCredit(trained, values, returns_R, _ledger(groups, credits, trained, chains), metrics)


def _chains(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices of the rows of each trajectory."""
    chains: dict[tuple[int, int], list[int]] = {}
    for row, sample in enumerate(samples):
        chains.setdefault((sample.group, sample.member), []).append(row)
    return list(chains.values())


def _by_row(chained: Sequence[Floats], chains: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[Floats]:
    """Cut what runs along trajectories into rows again, in the order of the rows."""
    rows: dict[int, Floats] = {}
    for chain, values_T in zip(chains, chained, strict=True):
        rows |= zip(chain, split_at(values_T, [lengths[row] for row in chain]), strict=True)
    return [rows[row] for row in range(len(lengths))]


def _with_advantages(sample: Sample, advantages: Floats) -> Sample:
    advantages_T = np.zeros(len(sample.response_ids))
    advantages_T[sample.loss_mask] = advantages
    return replace(sample, advantages=advantages_T)


def _ledger(
    groups: Sequence[Group], credits: Sequence[GroupCredit], samples: Sequence[Sample], chains: Sequence[Sequence[int]]
) -> list[GroupCredit]:
    """The ledger with mean token advantages; a forced step, and a trajectory without rows, keeps zeros."""
    trajectories = [list(credit.trajectories) for credit in credits]
    for chain in chains:
        first = samples[chain[0]]
        forced = np.array(
            [step.generation.finish_reason == FORCED for step in groups[first.group].trajectories[first.member].steps]
        )
        means_S = np.zeros(len(forced))
        means_S[~forced] = _step_means([samples[row] for row in chain], int((~forced).sum()))
        trajectories[first.group][first.member] = _credited(trajectories[first.group][first.member], means_S)
    return [replace(credit, trajectories=tuple(rows)) for credit, rows in zip(credits, trajectories, strict=True)]


def _step_means(rows: Sequence[Sample], steps: int) -> Floats:
    """Mean advantage of each step that the policy wrote, counted over the rows of one trajectory."""
    indices: list[NDArray[np.int64]] = []
    done = 0
    for sample in rows:
        indices.append(sample.step_ids[sample.loss_mask] + done)
        done += int(sample.step_ids.max()) + 1
    index_T = np.concatenate(indices)
    advantages_T = np.concatenate([sample.advantages[sample.loss_mask] for sample in rows])
    counts_S = np.bincount(index_T, minlength=steps)
    return np.asarray(np.bincount(index_T, advantages_T, minlength=steps) / np.maximum(counts_S, 1))


def _credited(credit: TrajectoryCredit, means_S: Floats) -> TrajectoryCredit:
    steps = tuple(StepCredit(0.0, 0.0, mean, {}, mean) for mean in means_S.tolist())
    return replace(credit, outcome_advantage=0.0, steps=steps)


def _metrics(
    advantages: list[Floats], values: list[Floats], returns: list[Floats], rewards: list[Floats]
) -> dict[str, float]:
    """Figures over all loss tokens, advantages as they were before whitening; `reward_with_kl` a trajectory."""
    advantages_N, values_N, returns_N = (np.concatenate([np.zeros(0), *rows]) for rows in (advantages, values, returns))
    if not len(values_N):
        return {}
    return {
        "critic_value_mean": float(values_N.mean()),
        "critic_return_mean": float(returns_N.mean()),
        "critic_explained_variance": explained_variance(values, returns),
        "gae_advantage_mean": float(advantages_N.mean()),
        "gae_advantage_std": float(advantages_N.std()),
        "reward_with_kl": float(np.mean([row_T.sum() for row_T in rewards])),
    }
