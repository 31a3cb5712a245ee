"""SFT cold start: collect trajectories, keep the right ones, imitate them (appendix "Cold-Start Analysis").

The paper samples the base model and keeps answer-correct trajectories with valid asserts and strict JSON. A tiny model
that knows nothing has no correct trajectories to sample, so its source is the scripted expert.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from factagent.episode import FORCED
from factagent.policies.base import Policy, seed_of
from factagent.policies.chat import ChatCodec, Inline
from factagent.protocols.base import AgentProtocol
from factagent.protocols.state import State
from factagent.retrieval.base import Retriever
from factagent.rewards import exact_match
from factagent.rollout import RolloutSettings, sample_groups
from factagent.train.config import SftConfig
from factagent.train.forward import masked_logits
from factagent.train.samples import Sample, collate, step_samples, trajectory_sample
from factagent.types import Assert, Group, Invalid, Message, Question, Step, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COLLECT_BATCH = 64
"""Questions that are rolled out together while collecting."""

BUCKET = 16
"""Batches whose samples are sorted by length together."""


def keeps(question: Question, trajectory: Trajectory, keep: str, *, asserts: bool = True) -> bool:
    """Whether rejection sampling keeps a trajectory.

    "correct": right answer, nothing invalid, and an assert where the protocol `asserts`. "all": anything but failures.
    """
    if keep == "all":
        return bool(trajectory.steps) and not trajectory.stop_reason.is_failure
    actions = [step.action for step in trajectory.steps]
    return (
        trajectory.answer is not None
        and exact_match(trajectory.answer, question.answers) == 1.0
        and (not asserts or any(isinstance(action, Assert) for action in actions))
        and not any(isinstance(action, Invalid) for action in actions)
    )


def collect(
    questions: Sequence[Question],
    protocol: AgentProtocol,
    policy: Policy,
    retriever: Retriever,
    settings: RolloutSettings,
    config: SftConfig,
    seed: int,
    progress: Callable[[int, int], None] = lambda kept, tried: None,
) -> Iterator[Group]:
    """Sample questions, in an order drawn from the seed and as often as needed, until enough trajectories are kept.

    Yields groups that hold the kept trajectories only (at least one each), with their prompts recorded. Each pass over
    the questions draws anew; sampling ends early after a pass that kept nothing.
    """
    kept = tried = 0
    for epoch in range(config.trajectories):
        kept_before = kept
        order = np.random.default_rng(seed_of((seed, "sft-questions", epoch))).permutation(len(questions))
        for start in range(0, len(order), COLLECT_BATCH):
            batch = [questions[i] for i in order[start : start + COLLECT_BATCH]]
            groups = sample_groups(batch, protocol, policy, retriever, settings, (seed, "sft", epoch))
            for group in groups:
                good = tuple(
                    trajectory
                    for trajectory in group.trajectories
                    if keeps(group.question, trajectory, config.keep, asserts=protocol.asserts)
                )
                tried += len(group.trajectories)
                good = good[: config.trajectories - kept]
                kept += len(good)
                if good:
                    yield replace(group, trajectories=good)
                if kept == config.trajectories:
                    progress(kept, tried)
                    return
            progress(kept, tried)
        if kept == kept_before:
            return


def with_tokens(
    groups: Sequence[Group], protocol: AgentProtocol, codec: ChatCodec, max_rounds: int
) -> list[list[Trajectory]]:
    """Give trajectories written as text (a scripted policy's) the tokens that the trained policy would read and write.

    Steps that have tokens keep them: what a policy sampled is never encoded again. Forced steps have none.

    Args:
        groups: trajectories with their prompts recorded.
        protocol: under which they were made.
        codec: of the policy that is trained.
        max_rounds: of the episodes, where a prompt tells it.
    """
    flat = [(group.question, trajectory) for group in groups for trajectory in group.trajectories]
    written = [step for _, trajectory in flat for step in trajectory.steps if not _is_forced(step)]
    if all(step.generation.response_ids for step in written):
        return [list(group.trajectories) for group in groups]
    fresh = [
        messages
        for _, trajectory in flat
        for i, messages in enumerate(trajectory.messages)
        if not _is_forced(trajectory.steps[i]) and _starts_anew(protocol, trajectory.steps[:i])
    ]
    prompts = iter(codec.encode_prompts(fresh))
    replies = iter(codec.encode_replies([step.generation.text for step in written], protocol.stop))
    encoded = iter([_encoded(State(q, max_rounds), t, protocol, codec, prompts, replies) for q, t in flat])
    return [[next(encoded) for _ in group.trajectories] for group in groups]


def _encoded(
    state: State,
    trajectory: Trajectory,
    protocol: AgentProtocol,
    codec: ChatCodec,
    prompts: Iterator[tuple[int, ...]],
    replies: Iterator[tuple[int, ...]],
) -> Trajectory:
    """The trajectory with tokens; those of fresh prompts and of replies come in the order in which they are needed."""
    for messages, step in zip(trajectory.messages, trajectory.steps, strict=True):
        if not _is_forced(step):
            fresh = _starts_anew(protocol, state.steps)
            prompt = next(prompts) if fresh else _continued(messages, state, protocol, codec)
            reply = next(replies)
            tokens = replace(step.generation, prompt_ids=prompt, response_ids=reply, logprobs=(0.0,) * len(reply))
            step = replace(step, generation=tokens)
        state = replace(state, steps=(*state.steps, step))
    return replace(trajectory, steps=state.steps)


def _continued(messages: Sequence[Message], state: State, protocol: AgentProtocol, codec: ChatCodec) -> tuple[int, ...]:
    """The last reply's tokens and what followed them, as a message or inside the assistant's turn."""
    last, text = state.steps[-1].generation, protocol.continuation(state)
    if text is None:
        return codec.encode_continuation(messages, last)
    return codec.encode_inline([Inline(last, text, protocol.observation_tokens)])[0]


def _starts_anew(protocol: AgentProtocol, before: Sequence[Step]) -> bool:
    return protocol.context != "append" or not before or _is_forced(before[-1])


def _is_forced(step: Step) -> bool:
    return step.generation.finish_reason == FORCED


def sft_samples(groups: Sequence[Group], protocol: AgentProtocol, codec: ChatCodec, max_rounds: int) -> list[Sample]:
    """The samples of kept trajectories; each token counts alike."""
    samples: list[Sample] = []
    for index, trajectories in enumerate(with_tokens(groups, protocol, codec, max_rounds)):
        for trajectory in trajectories:
            ones = [1.0] * len(trajectory.steps)
            if protocol.context == "append":
                samples.append(trajectory_sample(trajectory, ones, index))
            else:
                samples += step_samples(trajectory, ones, index)
    return samples


@dataclass(frozen=True)
class SftBatch:
    """What one optimiser step of SFT did."""

    step: int
    loss: float
    """Mean negative log-likelihood, nats; of the response tokens alone where `prompt_loss_weight` is 0."""
    learning_rate: float
    tokens: int
    seconds: float


def learning_rate(config: SftConfig, step: int, total: int) -> float:
    """Linear warm-up over `warmup_ratio` of the steps, then a cosine to zero. `step` counts from 0."""
    warmup = max(1, round(config.warmup_ratio * total))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def batches(lengths: Sequence[int], config: SftConfig, seed: int) -> list[list[int]]:
    """The indices of each optimiser step's samples: `epochs` passes, each in an order of its own.

    Samples are shuffled, sorted by length within windows of `BUCKET` batches so that little is padding, and the batches
    of a pass are shuffled again.
    """
    result: list[list[int]] = []
    for epoch in range(config.epochs):
        generator = np.random.default_rng(seed_of((seed, "sft-order", epoch)))
        order, window = generator.permutation(len(lengths)).tolist(), BUCKET * config.batch_size
        order = [
            i for at in range(0, len(order), window) for i in sorted(order[at : at + window], key=lengths.__getitem__)
        ]
        cut = [order[at : at + config.batch_size] for at in range(0, len(order), config.batch_size)]
        result += [cut[i] for i in generator.permutation(len(cut))]
    return result


def fit(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    config: SftConfig,
    seed: int,
    start: int = 0,
) -> Iterator[SftBatch]:
    """Train on the samples from optimiser step `start` on; yields after each step, when it is safe to stop."""
    plan = batches([sample.length for sample in samples], config, seed)
    device = next(model.parameters()).device
    for step in range(start, len(plan)):
        began = time.perf_counter()
        rate = learning_rate(config, step, len(plan))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = [samples[i] for i in plan[step]]
        batch = {name: tensor.to(device) for name, tensor in collate(rows).items()}
        optimizer.zero_grad(set_to_none=True)
        loss, tokens = _loss(model, batch, config)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield SftBatch(step + 1, float(loss.detach()), rate, tokens, time.perf_counter() - began)


def _loss(model: PreTrainedModel, batch: dict[str, torch.Tensor], config: SftConfig) -> tuple[torch.Tensor, int]:
    """Weighted mean negative log-likelihood, and the number of response tokens."""
    response = batch["loss_mask"]
    shown = batch["attention_mask"][:, 1:].bool() if config.prompt_loss_weight > 0 else response
    logits = masked_logits(model, batch | {"loss_mask": shown}, config.precision)
    losses = torch.nn.functional.cross_entropy(logits, batch["targets"][shown], reduction="none")
    weights = torch.where(response[shown], 1.0, config.prompt_loss_weight)
    return (weights * losses).sum() / weights.sum(), int(response.sum())
