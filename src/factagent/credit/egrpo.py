"""E-GRPO: a wrong answer is paid by the share of the question's entities that its thoughts name (methods.md 8).

    gamma_i = |{e in E_q: e stands in a thought}| / |E_q|,    gamma_hat_i = gamma_i / max_j gamma_j
    R_i = outcome, or alpha gamma_hat_i where that is larger and the format is right; 0 for an over-long trajectory
    A_i = (R_i - mean) / (std + 1e-6)

With outcome "em" this is the paper's: 1 where right, alpha gamma_hat where wrong, 0 where wrong with a format error.
(An invalid reply costs a round here and does not end the episode, so a right answer may follow one, and counts.)
Observations and answers are not looked at. A question without entities falls back to the plain outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from factagent.credit.advantages import outcome_advantages
from factagent.credit.assign import GroupCredit
from factagent.credit.config import Outcome, RuleConfig, Share
from factagent.credit.ledger import Counted, Terms, counted, write
from factagent.episode import OVERLONG
from factagent.outcomes import with_opened_thought
from factagent.protocols.tags import iter_blocks
from factagent.rewards import normalize_answer
from factagent.types import Group, Invalid, Question, Step, StopReason, Trajectory

Floats = NDArray[np.float64]


class EgrpoConfig(RuleConfig):
    """E-GRPO's rule; the defaults are the paper's, but for the source of entities, which it does not give."""

    rule: Literal["e-grpo"] = "e-grpo"
    outcome: Outcome = "em"
    """Outcome reward of an answer; the paper's is 1 where right and 0 where wrong."""
    alpha: Share = 0.3
    """What a wrong answer can earn at most; 0 is the plain outcome."""
    entities: Literal["titles", "titles-or-answers", "titles-and-answers"] = "titles"
    """The entities of a question: titles of its supporting passages; where there are none, its gold answers; or both.
    Gold answers pay for thoughts that state the answer, however the trajectory ends."""
    matching: Literal["verbatim", "normalised"] = "verbatim"
    """Whether an entity must stand in a thought letter by letter, or both are normalised as answers are."""


def assign_egrpo(groups: Sequence[Group], config: EgrpoConfig) -> list[GroupCredit]:
    """Entity-aware credit (methods.md 8).

    In the ledger `outcome` is R_i, `potential` the share of entities named up to a step, `shaping` its rise. An
    over-long trajectory counts in mean and deviation, but its own advantage is 0. A group of one, one whose R are all
    equal, and one whose members were all excluded give 0; one that failed throughout still tells those that named
    more entities from those that named fewer.
    """
    return [_group(counted(group, config), config) for group in groups]


def entities_of(question: Question, config: EgrpoConfig) -> tuple[str, ...]:
    """The entities that a thought may name, each once, blank ones left out."""
    titles, answers = question.supporting_titles, question.answers
    chosen = {
        "titles": titles,
        "titles-or-answers": titles or answers,
        "titles-and-answers": (*titles, *answers),
    }[config.entities]
    return tuple(dict.fromkeys(entity for entity in chosen if _written(entity, config).strip()))


def entity_shares(question: Question, trajectory: Trajectory, config: EgrpoConfig) -> Floats:
    """The share of the question's entities named in thoughts up to each step. Shape (S,); 0 without entities."""
    wanted = {_written(entity, config) for entity in entities_of(question, config)}
    named: set[str] = set()
    shares = []
    for step in trajectory.steps:
        thoughts = [_written(thought, config) for thought in thoughts_of(step)]
        named |= {entity for entity in wanted if any(entity in thought for thought in thoughts)}
        shares.append(len(named) / len(wanted) if wanted else 0.0)
    return np.array(shares, dtype=np.float64)


def thoughts_of(step: Step) -> list[str]:
    """What the reply holds between think tags; a thought that is not closed is none."""
    return [block.content for block in iter_blocks(with_opened_thought(step.generation.text), ("think",))]


def is_overlong(trajectory: Trajectory) -> bool:
    """Whether the trajectory ended because there was no room: its prompt did not fit, or its last reply was cut."""
    last = trajectory.steps[-1].generation.finish_reason if trajectory.steps else ""
    return trajectory.stop_reason is StopReason.PROMPT_TOO_LONG or last in ("length", OVERLONG)


def has_format_error(trajectory: Trajectory) -> bool:
    """Whether the trajectory has no answer, or a reply that is no action."""
    return trajectory.answer is None or any(isinstance(step.action, Invalid) for step in trajectory.steps)


def entity_metrics(groups: Sequence[Group], config: EgrpoConfig) -> dict[str, float]:
    """What the rule paid for: mean share of entities named, and how often a wrong trajectory's thoughts named a gold.

    `entity_answer_named` counts, among the trajectories that are not right and could be paid, those whose thoughts
    state a gold answer: with answers among the entities, that is paid although the final answer is wrong.
    """
    rates: list[float] = []
    stated: list[bool] = []
    for group in groups:
        kept = counted(group, config)
        for trajectory, outcome in zip(kept.trajectories, kept.outcome_G.tolist(), strict=True):
            rates.append(_rate(group.question, trajectory, config))
            if outcome == 0.0 and not has_format_error(trajectory):
                stated.append(_states_answer(group.question, trajectory, config))
    return {
        "entity_rate": float(np.mean(rates)) if rates else 0.0,
        "entity_answer_named": float(np.mean(stated)) if stated else 0.0,
    }


def _group(kept: Counted, config: EgrpoConfig) -> GroupCredit:
    question = kept.group.question
    shares_GS = [entity_shares(question, trajectory, config) for trajectory in kept.trajectories]
    rate_G = np.array([shares_S[-1] if len(shares_S) else 0.0 for shares_S in shares_GS])
    best = rate_G.max(initial=0.0)
    reward_G = np.zeros(len(rate_G))
    for row, trajectory in enumerate(kept.trajectories):
        paid = 0.0 if has_format_error(trajectory) or best == 0.0 else config.alpha * rate_G[row] / best
        reward_G[row] = 0.0 if is_overlong(trajectory) else max(kept.outcome_G[row], paid)
    advantage_G = outcome_advantages(reward_G)
    terms = [
        Terms(
            0.0 if is_overlong(trajectory) else advantage,
            np.zeros(len(shares_S)),
            potential_S=shares_S,
            shaping_S=np.diff(shares_S, prepend=0.0),
        )
        for trajectory, shares_S, advantage in zip(kept.trajectories, shares_GS, advantage_G.tolist(), strict=True)
    ]
    return write(Counted(kept.group, kept.members, reward_G, kept.success_G), terms)


def _written(text: str, config: EgrpoConfig) -> str:
    return text if config.matching == "verbatim" else normalize_answer(text)


def _rate(question: Question, trajectory: Trajectory, config: EgrpoConfig) -> float:
    shares_S = entity_shares(question, trajectory, config)
    return float(shares_S[-1]) if len(shares_S) else 0.0


def _states_answer(question: Question, trajectory: Trajectory, config: EgrpoConfig) -> bool:
    thoughts = [_written(thought, config) for step in trajectory.steps for thought in thoughts_of(step)]
    golds = [gold for gold in (_written(answer, config) for answer in question.answers) if gold.strip()]
    return any(gold in thought for gold in golds for thought in thoughts)
