"""Auxiliary penalties of steps (end of section 4.2, which gives no numbers; credit.md section 6)."""

from __future__ import annotations

from collections.abc import Sequence

from factagent.credit.config import CreditConfig
from factagent.rewards import normalize_answer
from factagent.types import Action, Answer, Assert, Invalid, Search


def is_premature(actions: Sequence[Action]) -> bool:
    """Whether the trajectory answers with an empty fact store; outcome and success are then 0 (credit.md section 6)."""
    answered = any(isinstance(action, Answer) for action in actions)
    return answered and not any(isinstance(action, Assert) and action.triples for action in actions)


def step_penalties(actions: Sequence[Action], config: CreditConfig) -> list[dict[str, float]]:
    """The penalties of each step by name, as negative numbers; penalties of size 0 are left out.

    `parse_error`: an invalid step. `duplicate_search`: the normalised query was issued before in this trajectory.
    `premature_answer`: an answer with an empty fact store, where the rule needs facts.
    """
    issued: set[str] = set()
    premature = config.needs_facts and is_premature(actions)
    penalties: list[dict[str, float]] = []
    for action in actions:
        named: dict[str, float] = {}
        if isinstance(action, Invalid):
            named["parse_error"] = -config.parse_error_penalty
        elif isinstance(action, Search):
            query = normalize_answer(action.query)
            if query in issued:
                named["duplicate_search"] = -config.duplicate_search_penalty
            issued.add(query)
        elif isinstance(action, Answer) and premature:
            named["premature_answer"] = -config.premature_answer_penalty
        penalties.append({name: value for name, value in named.items() if value})
    return penalties
