"""What a credit rule needs beyond the sampled groups, measured with the policy and the environment that sampled them.

vine       V of every state, by continuations        (methods.vine)
igpo       the gold answer's log-probability          (methods.igpo)
tree-grpo  the tree of each member, known from sampling
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from factagent.credit.assign import outcome_and_success
from factagent.credit.igpo import IgpoConfig
from factagent.credit.measured import Measured
from factagent.credit.rule_choice import AnyRule
from factagent.credit.tree_grpo import TreeGrpoConfig
from factagent.credit.vine import VineConfig
from factagent.errors import UsageError
from factagent.methods.igpo import gold_logprobs
from factagent.methods.vine import VineSettings, vine_values
from factagent.policies.base import Policy
from factagent.protocols.base import AgentProtocol
from factagent.retrieval.base import EpisodeRetriever, Retriever
from factagent.rollout import RolloutSettings
from factagent.types import Group, Question, Trajectory


def measure(
    groups: Sequence[Group],
    config: AnyRule,
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    settings: RolloutSettings,
    key: tuple[str | int, ...],
    trees: Sequence[tuple[int, ...]] | None = None,
) -> Measured | None:
    """Measure what the rule needs; None where it needs nothing.

    Args:
        groups: the batch, sampled by this policy in this environment under these settings.
        config: the credit rule.
        key: names the random draws of continuations, e.g. `(seed, "measure", step)`: the same key measures the same.
        trees: the tree of each member, as sampled.

    Raises:
        UsageError: rule `igpo` with a policy that cannot score text.
        DataError: a trajectory was sampled under other settings.
    """
    began = time.perf_counter()
    match config:
        case VineConfig():
            measured = _vine(groups, config, protocol, policy, retriever, settings, key)
        case IgpoConfig():
            measured = _igpo(groups, protocol, policy)
        case TreeGrpoConfig():
            measured = Measured(trees=trees)
        case _:
            return None
    return replace(measured, seconds=time.perf_counter() - began)


def _vine(
    groups: Sequence[Group],
    config: VineConfig,
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever | EpisodeRetriever,
    settings: RolloutSettings,
    key: tuple[str | int, ...],
) -> Measured:
    def outcome(question: Question, trajectory: Trajectory) -> float:
        return outcome_and_success(question, trajectory, config)[0]

    vine = VineSettings(config.continuations, config.max_states, config.reuse_group)
    found = vine_values(groups, outcome, protocol, policy, retriever, settings, key, vine)
    return Measured(values=found.values, tokens=found.tokens)


def _igpo(groups: Sequence[Group], protocol: AgentProtocol, policy: Policy) -> Measured:
    from factagent.policies.transformers import TransformersPolicy

    if not isinstance(policy, TransformersPolicy):
        raise UsageError("rule 'igpo' scores the gold answer under the policy: train a local model")
    values, tokens = gold_logprobs(groups, protocol, policy)
    return Measured(gold_logprobs=values, tokens=tokens)
