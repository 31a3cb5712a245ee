"""What a protocol may show to the policy: the state of one episode, immutable."""

from __future__ import annotations

from dataclasses import dataclass, field

from factagent.protocols.fact_store import FactStore
from factagent.types import Observation, Question, Search, Step


@dataclass(frozen=True, slots=True)
class State:
    """The state s_t = (question, fact store, last observation) plus what was done so far.

    `rebuild` protocols read the question, the store, the past queries and the last observation; `append` protocols
    read `steps`. Being immutable, a state can be shared by any number of branches.
    """

    question: Question
    max_rounds: int
    store: FactStore = field(default_factory=FactStore)
    observation: Observation | None = None
    steps: tuple[Step, ...] = ()

    @property
    def round(self) -> int:
        """The round now being played, from 1 to `max_rounds`."""
        return len(self.steps) + 1

    @property
    def queries(self) -> tuple[str, ...]:
        """The queries issued so far, oldest first (repeats kept)."""
        return tuple(step.action.query for step in self.steps if isinstance(step.action, Search))
