"""The curriculum of a noisy environment: how likely a search is to be answered badly, by training step."""

from __future__ import annotations

from dataclasses import dataclass

BASE = 4.0
"""Base of the curve: how much more of the way is gone in the last quarters of a run than in the first."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """p(i) = p_start + (4^(i / m) - 1) / 3 * (p_end - p_start), m being the steps of the run; p_end from i = m on.

    ZeroSearch's (methods.md, section 7): slow at first, steep at the end.

    Raises:
        ValueError: a probability is not in [0, 1], or `steps` is below 1.
    """

    p_start: float
    p_end: float
    steps: int

    def __post_init__(self) -> None:
        if not (0 <= self.p_start <= 1 and 0 <= self.p_end <= 1 and self.steps >= 1):
            raise ValueError(f"{self}: probabilities must lie in [0, 1] and steps be at least 1")

    def probability(self, step: int) -> float:
        """The probability of a noisy reply in a step (0 before the first)."""
        done = min(step / self.steps, 1.0)
        return float(self.p_start + (BASE**done - 1) / (BASE - 1) * (self.p_end - self.p_start))
