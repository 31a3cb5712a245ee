"""LLDS-MA: LLDS holds the tokens of an answer less while the policy searches little (methods.md 12.2).

Holding answers as firmly as searches can freeze a policy that answers after one search. So the pull of LLDS on the
tokens that spell an answer is scaled by a factor that grows with V, the mean number of searches of a trajectory:

    paper   min(V / 2, 1)
    script  min(llds_answer_coef * max(V - 1, 0), llds_coef) / llds_coef

The factor reaches the loss as weights of tokens; the learner stays blind to where they come from. Gates look at whole
actions as before.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from factagent.episode import FORCED
from factagent.train.config import LearnerConfig
from factagent.train.samples import Sample
from factagent.types import Group, Search, Trajectory

Decode = Callable[[Sequence[int]], str]
"""Reply tokens to text."""


def answer_weighted(
    groups: Sequence[Group], samples: Sequence[Sample], decode: Decode, config: LearnerConfig
) -> list[Sample]:
    """The samples with weights for LLDS on the tokens of answers; as they are where the option is off.

    Args:
        groups: the batch.
        samples: its rows; those of a trajectory stand together, in the order of its steps.
        decode: of the policy's tokenizer.
        config: `llds_coef`, `llds_answer` and `llds_answer_coef`.
    """
    if config.llds_coef == 0 or config.llds_answer == "same" or not samples:
        return list(samples)
    last_rows = {(sample.group, sample.member): row for row, sample in enumerate(samples)}
    trajectories = {key: groups[key[0]].trajectories[key[1]] for key in last_rows}
    factor = answer_factor(float(np.mean([_searches(t) for t in trajectories.values()])), config)
    weighted = list(samples)
    for key, row in last_rows.items():
        weighted[row] = _weighted(samples[row], trajectories[key], factor, decode)
    return weighted


def answer_factor(searches: float, config: LearnerConfig) -> float:
    """The factor on the tokens of answers, in [0, 1], at this mean number of searches."""
    if config.llds_answer == "paper":
        return min(searches / 2, 1.0)
    return min(config.llds_answer_coef * max(searches - 1, 0.0), config.llds_coef) / config.llds_coef


def answer_span(response_ids: Sequence[int], answer: str, decode: Decode) -> tuple[int, int]:
    """First token of a reply that spells the answer (at its last mention), and the one behind its last.

    An answer that is not in the reply as it stands is looked for in the spelling of JSON; if it is not there either,
    the whole reply counts as answer. Decodes O(log T) prefixes.
    """
    text = decode(response_ids)
    for spelling in (answer, json.dumps(answer, ensure_ascii=False)[1:-1], json.dumps(answer)[1:-1]):
        start = text.rfind(spelling)
        if start >= 0:
            break
    else:
        return 0, len(response_ids)
    counts = range(len(response_ids) + 1)

    def written(count: int) -> int:
        return len(decode(response_ids[:count]))

    first = bisect_right(counts, start, key=written) - 1
    return first, bisect_left(counts, start + len(spelling), key=written)


def _searches(trajectory: Trajectory) -> int:
    """Searches of the policy's own."""
    steps = trajectory.steps
    return sum(isinstance(step.action, Search) and step.generation.finish_reason != FORCED for step in steps)


def _weighted(sample: Sample, trajectory: Trajectory, factor: float, decode: Decode) -> Sample:
    """The last row of a trajectory with the factor on the tokens of its answer, if it has one."""
    answer = trajectory.answer
    if not answer:
        return sample
    first, end = answer_span(trajectory.steps[-1].generation.response_ids, answer, decode)
    places = np.flatnonzero(sample.step_ids == sample.step_ids.max())[first:end]
    weights_T = np.ones(len(sample.response_ids))
    weights_T[places] = factor
    return replace(sample, llds_weights=weights_T)
