"""Measurements on the saved groups of a run, with the policy of one of its checkpoints (`factagent credit-quality`).

Saved groups hold texts and no tokens. A protocol that makes its prompts anew can be continued from those; one that
appends cannot, since its prompts are the tokens of what was said before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from factagent.configuration import load_config
from factagent.credit.measured import Measured
from factagent.credit.rule_choice import AnyRule
from factagent.credit.tree_grpo import TreeGrpoConfig
from factagent.errors import UsageError
from factagent.evaluation.local import prepare_process, protocol_of
from factagent.methods.measure import measure
from factagent.runs import RunDirectory
from factagent.train.checkpoint import checkpoint_steps, load_checkpoint
from factagent.train.config import RunConfig
from factagent.train.setup import load_data, load_policy
from factagent.types import Group


def measurer_of_run(directory: Path, seed: int = 0) -> Callable[[Sequence[Group], AnyRule], Measured | None]:
    """A function that measures what a rule needs on groups of this run; the policy is loaded when it is first asked.

    Values and probabilities are those of the latest checkpoint, which may know more than the policy that sampled.

    Raises:
        UsageError: (when asked) the run cannot be measured: it has no checkpoint, appends, or sampled no trees.
    """
    config = load_config(RunConfig, RunDirectory.open(directory).config_path)

    def measure_rule(groups: Sequence[Group], rule: AnyRule) -> Measured | None:
        if rule.needs is None:
            return None
        if isinstance(rule, TreeGrpoConfig):
            return Measured(trees=[_trees(group, config, directory) for group in groups])
        protocol = protocol_of(config.rollout)
        if protocol.context != "rebuild":
            raise UsageError(
                f"{directory}: rule '{rule.rule}' goes on from saved steps, which '{protocol.name}' does by their "
                "tokens; saved groups hold none: choose rules that need no measurement"
            )
        prepare_process(config.threads, config.seed)
        policy = load_policy(config, str(_latest_checkpoint(directory)))
        retriever = load_data(config.data).retriever
        return measure(groups, rule, protocol, policy, retriever, config.rollout.settings(), (seed, "measure"))

    return measure_rule


def _latest_checkpoint(directory: Path) -> Path:
    checkpoints = RunDirectory.open(directory).checkpoints
    steps = checkpoint_steps(checkpoints)
    if not steps:
        raise UsageError(f"{directory}: no checkpoint is left to measure with; choose rules that need no measurement")
    return load_checkpoint(checkpoints / f"step-{max(steps)}").path


def _trees(group: Group, config: RunConfig, directory: Path) -> tuple[int, ...]:
    """The tree of each member: a run of rule `tree-grpo` saves the leaves of one tree after the other."""
    if not isinstance(config.credit, TreeGrpoConfig):
        raise UsageError(f"{directory}: rule 'tree-grpo' needs groups that were sampled as trees; this run's were not")
    return tuple(member // config.credit.leaves for member in range(len(group.trajectories)))
