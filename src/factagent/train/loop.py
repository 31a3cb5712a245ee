"""The training loop: sample groups, assign credit, learn, evaluate, keep everything in the run directory.

A step's questions are a function of seed and step, and every random draw is named, so that a run stopped after any step
and resumed goes on bit for bit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from factagent.credit.assign import GroupCredit
from factagent.credit.encoders import Encoder
from factagent.credit.gae import GaeConfig
from factagent.credit.rule_choice import assign, rule_metrics
from factagent.errors import TryAgainError
from factagent.evaluation.local import protocol_of
from factagent.evaluation.progress import make_progress
from factagent.evaluation.runner import QuestionResult, evaluate, score, summarise
from factagent.methods.measure import measure
from factagent.methods.sampling import sample
from factagent.policies.base import seed_of
from factagent.policies.transformers import TransformersPolicy
from factagent.runs import RunDirectory
from factagent.train.alarms import alarm_of
from factagent.train.answer_weights import answer_weighted
from factagent.train.checkpoint import Checkpoint, discard_after
from factagent.train.config import RunConfig
from factagent.train.critic import Critic
from factagent.train.environment import Environment
from factagent.train.interrupt import Interrupt
from factagent.train.learner import Learner
from factagent.train.samples import Sample, group_samples
from factagent.train.session import restore_part, restore_training_state, save_training_state
from factagent.train.setup import Data, greedy
from factagent.train.token_credit import CriticCredit
from factagent.types import Group, Invalid, Question

CRITIC = "critic"
"""Where a checkpoint keeps the critic."""


@dataclass
class StepClock:
    """Seconds by phase of one step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to `name`."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def questions_of_step(questions: Sequence[Question], step: int, per_step: int, seed: int) -> list[Question]:
    """The questions of a step (1-based): consecutive slices of one shuffled pass after the other."""
    first = (step - 1) * per_step
    chosen: list[Question] = []
    for position in range(first, first + per_step):
        epoch, offset = divmod(position, len(questions))
        chosen.append(questions[_order(len(questions), seed, epoch)[offset]])
    return chosen


def _order(count: int, seed: int, epoch: int) -> list[int]:
    key = (count, seed, epoch)
    if key not in _ORDERS:
        _ORDERS.clear()
        _ORDERS[key] = np.random.default_rng(seed_of((seed, "questions", epoch))).permutation(count).tolist()
    return _ORDERS[key]


_ORDERS: dict[tuple[int, int, int], list[int]] = {}


class Trainer:
    """Policy gradients with the configured credit rule over one run directory (credit.md, section 7).

    Args:
        config: the run.
        run: its directory, locked by the caller.
        policy: the policy to train, in place.
        data: questions, retriever, annotations.
        checkpoint: where to go on from; None starts anew.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        policy: TransformersPolicy,
        data: Data,
        checkpoint: Checkpoint | None = None,
        reference: TransformersPolicy | None = None,
    ) -> None:
        self.config = config
        self.run = run
        self.policy = policy
        self.data = data
        self.protocol = protocol_of(config.rollout)
        self.environment = Environment(config.environment, data.retriever, data.train, config.schedule.steps)
        self.encoder: Encoder = config.credit.load_encoder()
        self.learner = Learner(
            policy.model,
            config.learner,
            config.rollout.temperature,
            reference.model if reference else None,
            keep_reference=isinstance(config.credit, GaeConfig) and config.credit.kl_in_reward > 0,
        )
        self.critic: CriticCredit | None = None
        if isinstance(config.credit, GaeConfig):
            critic = Critic(policy.model, config.critic, config.learner, config.seed)
            self.critic = CriticCredit(config.credit, critic, self.learner)
        self.step = 0
        self.best = (-1.0, 0)
        self.non_finite = 0
        self.failed_share = 0.0
        self.parse_errors: deque[float] = deque(maxlen=config.alarms.parse_error_steps)
        self.resumed_from = None if checkpoint is None else checkpoint.step
        if checkpoint is not None:
            self._restore(checkpoint)

    def train(self, steps: int) -> None:
        """Train until `steps` steps are done (counted from the start of the run), or until interrupted.

        Raises:
            TryAgainError: an alarm stopped the run; a checkpoint was written.
            KeyboardInterrupt: Ctrl-C; a checkpoint was written.
        """
        config = self.config
        with Interrupt().handled() as interrupt, make_progress() as progress:
            bar = progress.add_task(config.name, total=steps, completed=self.step, figures="")
            if self.step == 0 and self.resumed_from is None and config.schedule.eval_every:
                clock = StepClock()
                with clock.phase("eval"):
                    report = self.evaluate_dev()
                self.run.log_metrics({"step": 0, "eval": report, "seconds": clock.seconds})
                self.save()
            while self.step < steps:
                row = self.run_step()
                progress.update(bar, completed=self.step, figures=_figures(row))
                alarm = self._alarm()
                due = self.step % config.schedule.checkpoint_every == 0 or self.step in (steps, self.best[1])
                if due or alarm or interrupt.requested:
                    self.save()
                if alarm:
                    raise TryAgainError(f"{self.run.path}: {alarm}; stopped with a checkpoint at step {self.step}")
                if interrupt.requested and self.step < steps:
                    raise KeyboardInterrupt

    def run_step(self) -> dict[str, Any]:
        """One step: rollouts, credit, one batch of updates, evaluation where due, one row of metrics."""
        config, clock = self.config, StepClock()
        step = self.step + 1
        with clock.phase("rollout"):
            questions = questions_of_step(self.data.train, step, config.schedule.questions_per_step, config.seed)
            settings, retriever = config.rollout.settings(), self.environment.at(step)
            where = (self.protocol, self.policy, retriever, settings)
            sampled = sample(questions, *where, (config.seed, "train", step), config.credit)
            groups = sampled.groups
        with clock.phase("measure"):
            key = (config.seed, "measure", step)
            measured = measure(groups, config.credit, *where, key, sampled.trees)
        with clock.phase("credit"):
            credits = assign(groups, config.credit, self.encoder, measured)
            samples = samples_of(
                groups,
                credits,
                append=self.protocol.context == "append",
                compares_members=config.credit.compares_members,
            )
            samples = answer_weighted(groups, samples, self.policy.codec.decode, config.learner)
            valued = self.critic.assess(groups, credits, samples) if self.critic else None
            if valued:
                samples, credits = valued.samples, valued.credits
        with clock.phase("learn"):
            report = self.learner.update(samples, self.step)
            if self.critic and valued:
                report = report.joined(self.critic.teach(valued, self.step))
        self.step = step
        self.non_finite = self.non_finite + 1 if report.skipped else 0
        row: dict[str, Any] = {"step": step, **rollout_metrics(groups, credits), **report.metrics}
        row["response_tokens"] = float(sampled.tokens)  # what members of a tree share was sampled once
        row["measure_tokens"] = float(measured.tokens) if measured else 0.0
        row |= rule_metrics(groups, config.credit)
        row["environment_noise"] = self.environment.noise(step)
        row["updates_skipped"] = report.skipped
        row["questions_seen"] = step * config.schedule.questions_per_step
        self.parse_errors.append(row["parse_error_rate"])
        self.failed_share = row["failed_trajectories"] / sum(len(group.trajectories) for group in groups)
        every = config.schedule.eval_every
        if every and step % every == 0:
            with clock.phase("eval"):
                row["eval"] = self.evaluate_dev()
        with clock.phase("write"):
            if report.skipped:
                self.run.write_skipped(step, groups, credits)
            every = config.schedule.save_trajectories_every
            if every and step % every == 0:
                tokens = config.schedule.save_tokens
                for group, credit in zip(groups, credits, strict=True):
                    self.run.log_group(step, group, credit, token_ids=tokens, messages=False)
        row["seconds"] = {**clock.seconds, "total": sum(clock.seconds.values())}
        self.run.log_metrics(row)
        return row

    def evaluate_dev(self) -> dict[str, Any]:
        """Scores of a greedy evaluation on the first `eval_questions` dev questions."""
        report = summarise(self.play_dev())
        em = report.get("em")
        if isinstance(em, float) and em > self.best[0]:
            self.best = (em, self.step)
        return report

    def play_dev(self) -> list[QuestionResult]:
        """The first `eval_questions` dev questions, each played once, greedily."""
        settings = self.config.rollout.settings(group_size=1)
        questions = self.data.dev[: self.config.schedule.eval_questions]
        return evaluate(questions, self.protocol, greedy(self.policy), self.data.retriever, settings)

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        self.run.sync()
        state = {
            "step": self.step,
            "data_cursor": self.step * self.config.schedule.questions_per_step,
            "best": list(self.best),
            "non_finite": self.non_finite,
            "parse_errors": list(self.parse_errors),
        }
        if (self.run.checkpoints / f"step-{self.step}").exists():
            return
        save_training_state(
            self.run.checkpoints,
            self.step,
            self.policy.model,
            self.policy.tokenizer,
            self.learner.optimizer,
            state,
            keep_last=self.config.schedule.keep_last,
            protect=(self.best[1],),
            parts={CRITIC: self.critic.part} if self.critic else None,
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = restore_training_state(checkpoint, self.policy.model, self.learner.optimizer)
        if self.critic:
            restore_part(checkpoint, CRITIC, self.critic.critic.model, self.critic.critic.optimizer)
        self.step = int(state["step"])
        self.best = (float(state["best"][0]), int(state["best"][1]))
        self.non_finite = int(state["non_finite"])
        self.parse_errors.extend(state["parse_errors"])
        self.run.truncate_to(self.step)
        discard_after(self.run.checkpoints, self.step)

    def _alarm(self) -> str | None:
        """Why the run must stop, if it must."""
        alarms, problem = self.config.alarms, self.environment.error
        return alarm_of(alarms, self.non_finite, self.failed_share, self.parse_errors, problem)


def samples_of(
    groups: Sequence[Group], credits: Sequence[GroupCredit], *, append: bool, compares_members: bool = True
) -> list[Sample]:
    """The samples of a batch; trajectories that left the statistics give none.

    Args:
        groups: the batch.
        credits: its ledger.
        append: one row a trajectory instead of one a step.
        compares_members: the rule's; where it is true, a group with one counted member gives none either.
    """
    samples: list[Sample] = []
    least = 2 if compares_members else 1
    for index, (group, credit) in enumerate(zip(groups, credits, strict=True)):
        counted = sum(not trajectory.excluded for trajectory in credit.trajectories)
        advantages = [
            None if trajectory.excluded or counted < least else [step.advantage for step in trajectory.steps]
            for trajectory in credit.trajectories
        ]
        samples += group_samples(group, advantages, index, append=append)
    return samples


def rollout_metrics(groups: Sequence[Group], credits: Sequence[GroupCredit]) -> dict[str, float]:
    """What the sampled trajectories were like: rewards, actions, tokens, clusters, kinds of groups."""
    results = [score(group.question, trajectory) for group in groups for trajectory in group.trajectories]
    counted = [t for credit in credits for t in credit.trajectories if not t.excluded]
    kept = [result for result in results if not result.trajectory.stop_reason.is_failure]
    steps = [step for trajectory in counted for step in trajectory.steps]
    actions = [step.action for result in kept for step in result.trajectory.steps]
    coverage = [result.coverage for result in kept if result.coverage is not None]
    success = [[t.success for t in credit.trajectories if not t.excluded] for credit in credits]
    return {
        "reward": _mean([trajectory.outcome for trajectory in counted]),
        "em": _mean([result.em for result in kept]),
        "f1": _mean([result.f1 for result in kept]),
        "coverage": _mean(coverage),
        "parse_error_rate": _mean([isinstance(action, Invalid) for action in actions]),
        "steps_per_trajectory": _mean([result.steps for result in kept]),
        "searches_per_trajectory": _mean([result.searches for result in kept]),
        "prompt_tokens": float(sum(result.prompt_tokens for result in kept)),
        "response_tokens": float(sum(result.response_tokens for result in kept)),
        "clusters_per_group": _mean([len(credit.clusters) for credit in credits]),
        "nonzero_process_share": _mean([step.process != 0 for step in steps]),
        "mean_abs_process": _mean([abs(step.process) for step in steps]),
        "all_fail_groups": _mean([bool(s) and max(s) == 0 for s in success]),
        "all_pass_groups": _mean([bool(s) and min(s) == 1 for s in success]),
        "failed_trajectories": float(len(results) - len(kept)),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _figures(row: dict[str, Any]) -> str:
    text = f"reward {row['reward']:.3f}  EM {row['em']:.3f}  parse errors {row['parse_error_rate']:.1%}"
    return text + (f"  dev EM {row['eval']['em']:.3f}" if "eval" in row else "")
