"""Measurements on the saved groups of a run, with the policy of one of its checkpoints (`factagent credit-quality`).

Saved groups hold texts, and tokens only under `schedule.save_tokens`. A protocol that makes its prompts anew can be
continued from texts; one that appends cannot, since its prompts are the tokens of what was said before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from factagent.configuration import load_config
from factagent.credit.gae import GaeConfig
from factagent.credit.igpo import IgpoConfig
from factagent.credit.measured import Measured
from factagent.credit.rule_choice import AnyRule
from factagent.credit.tree_grpo import TreeGrpoConfig
from factagent.episode import FORCED, Episode, NeedsGeneration
from factagent.errors import UsageError
from factagent.evaluation.local import prepare_process, protocol_of
from factagent.methods.measure import measure
from factagent.methods.replay import replay
from factagent.policies.transformers import TransformersPolicy
from factagent.protocols.base import AgentProtocol
from factagent.rollout import RolloutSettings
from factagent.runs import RunDirectory
from factagent.train.checkpoint import checkpoint_steps, load_checkpoint
from factagent.train.config import RunConfig
from factagent.train.critic import Critic
from factagent.train.environment import Environment
from factagent.train.loop import CRITIC
from factagent.train.samples import group_samples
from factagent.train.session import restore_part
from factagent.train.setup import load_data, load_policy
from factagent.types import Group, Step


def measurer_of_run(directory: Path, seed: int = 0) -> Callable[[Sequence[Group], AnyRule], Measured | None]:
    """A function that measures what a rule needs on groups of this run; the policy is loaded when it is first asked.

    Values and probabilities are those of the latest checkpoint, which may know more than the policy that sampled.

    Raises:
        UsageError: (when asked) the run cannot be measured: it has no checkpoint, appends without saved tokens, or
            sampled no trees.
    """
    config = load_config(RunConfig, RunDirectory.open(directory).config_path)

    def measure_rule(groups: Sequence[Group], rule: AnyRule) -> Measured | None:
        if rule.needs is None:
            return None
        if isinstance(rule, TreeGrpoConfig):
            return Measured(trees=[_trees(group, config, directory) for group in groups])
        if isinstance(rule, GaeConfig):
            return critic_values(groups, config, directory)
        protocol = protocol_of(config.rollout)
        appends = protocol.context == "append"
        if appends and not all(map(_has_tokens, groups)):
            raise UsageError(
                f"{directory}: rule '{rule.rule}' goes on from saved steps, which '{protocol.name}' does by their "
                "tokens; these groups hold none: train with schedule.save_tokens = true, or choose rules that need no "
                "measurement"
            )
        prepare_process(config.threads, config.seed)
        step, path = _latest_checkpoint(directory)
        policy, data = load_policy(config, str(path)), load_data(config.data)
        retriever = Environment(config.environment, data.retriever, data.train, config.schedule.steps).at(step)
        settings = config.rollout.settings()
        if isinstance(rule, IgpoConfig) and not appends:
            groups = [_with_prompts(group, protocol, policy, settings) for group in groups]
        return measure(groups, rule, protocol, policy, retriever, settings, (seed, "measure"))

    return measure_rule


def critic_values(groups: Sequence[Group], config: RunConfig, directory: Path) -> Measured:
    """V of every state by the critic of the run's latest checkpoint, read before the step's first token.

    Raises:
        UsageError: the run trained no critic, kept no checkpoint, or saved no tokens.
    """
    if not isinstance(config.credit, GaeConfig):
        raise UsageError(
            f"{directory}: rule 'gae' needs a critic, and this run trained none (credit.rule is not 'gae')"
        )
    if not all(map(_has_tokens, groups)):
        raise UsageError(f"{directory}: rule 'gae' values tokens, and none were saved; train with schedule.save_tokens")
    prepare_process(config.threads, config.seed)
    _, path = _latest_checkpoint(directory)
    critic = Critic(load_policy(config, str(path)).model, config.critic, config.learner, config.seed)
    restore_part(load_checkpoint(path), CRITIC, critic.model, critic.optimizer)
    append = protocol_of(config.rollout).context == "append"
    return Measured(values=[_group_values(group, critic, append=append) for group in groups])


def _group_values(group: Group, critic: Critic, *, append: bool) -> list[NDArray[np.float64]]:
    """V(s_0) to V(s_S) of each member; a forced step, which reads nothing, has the value of the next state."""
    values = []
    for trajectory in group.trajectories:
        values_S = np.zeros(len(trajectory.steps) + 1)
        if not trajectory.stop_reason.is_failure and trajectory.steps:
            sampled = [i for i, step in enumerate(trajectory.steps) if step.generation.finish_reason != FORCED]
            alone = Group(group.question, (trajectory,))
            samples = group_samples(alone, [[0.0] * len(trajectory.steps)], 0, append=append)
            values_S[sampled] = np.concatenate(
                [
                    values_T[np.flatnonzero(np.diff(steps_T, prepend=-1))]
                    for values_T, steps_T in zip(
                        critic.values(samples), (s.step_ids[s.loss_mask] for s in samples), strict=True
                    )
                ]
            )
            for forced in reversed([i for i in range(len(trajectory.steps)) if i not in sampled]):
                values_S[forced] = values_S[forced + 1]
        values.append(values_S)
    return values


def _has_tokens(group: Group) -> bool:
    """Whether every step that the policy sampled holds its tokens."""
    generations = [step.generation for trajectory in group.trajectories for step in trajectory.steps]
    return all(generation.response_ids or generation.finish_reason == FORCED for generation in generations)


def _with_prompts(
    group: Group, protocol: AgentProtocol, policy: TransformersPolicy, settings: RolloutSettings
) -> Group:
    """The group with the tokens of its prompts, made anew from its states."""
    trajectories = []
    for trajectory in group.trajectories:
        steps = trajectory.steps
        if not trajectory.stop_reason.is_failure:
            states = replay(group.question, trajectory, protocol, settings)
            steps = tuple(_with_prompt(step, state, policy) for step, state in zip(steps, states, strict=False))
        trajectories.append(replace(trajectory, steps=steps))
    return replace(group, trajectories=tuple(trajectories))


def _with_prompt(step: Step, state: Episode, policy: TransformersPolicy) -> Step:
    request = state.request
    if not isinstance(request, NeedsGeneration):
        return step
    return replace(step, generation=replace(step.generation, prompt_ids=policy.codec.encode_prompt(request.messages)))


def _latest_checkpoint(directory: Path) -> tuple[int, Path]:
    checkpoints = RunDirectory.open(directory).checkpoints
    steps = checkpoint_steps(checkpoints)
    if not steps:
        raise UsageError(f"{directory}: no checkpoint is left to measure with; choose rules that need no measurement")
    return max(steps), load_checkpoint(checkpoints / f"step-{max(steps)}").path


def _trees(group: Group, config: RunConfig, directory: Path) -> tuple[int, ...]:
    """The tree of each member: a run of rule `tree-grpo` saves the leaves of one tree after the other."""
    if not isinstance(config.credit, TreeGrpoConfig):
        raise UsageError(f"{directory}: rule 'tree-grpo' needs groups that were sampled as trees; this run's were not")
    return tuple(member // config.credit.leaves for member in range(len(group.trajectories)))
