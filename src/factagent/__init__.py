"""FactAgent: search agents that get credit for every step.

The names below are the public interface. Each is imported when it is first used, so `import factagent` loads neither
torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from factagent.credit.assign import GroupCredit, assign_credit
    from factagent.credit.config import CreditConfig
    from factagent.credit.encoders import load_encoder
    from factagent.data.corpus import read_passages
    from factagent.data.dataset import read_questions
    from factagent.data.sources import open_corpus, open_questions
    from factagent.episode import Episode
    from factagent.errors import ConfigError, DataError, FactAgentError
    from factagent.policies.scripted import ScriptedExpert
    from factagent.policies.transformers import TransformersPolicy
    from factagent.protocols import build_protocol
    from factagent.protocols.actions import parse_action, render_action
    from factagent.retrieval.bm25 import BM25Index
    from factagent.rewards import cover_em, exact_match, f1, normalize_answer
    from factagent.rollout import RolloutSettings, sample_groups
    from factagent.types import (
        Action,
        Answer,
        Assert,
        Fact,
        Generation,
        Group,
        Invalid,
        Message,
        Observation,
        Passage,
        Question,
        Search,
        Step,
        StopReason,
        Trajectory,
        Triple,
    )

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Answer",
    "Assert",
    "BM25Index",
    "ConfigError",
    "CreditConfig",
    "DataError",
    "Episode",
    "Fact",
    "FactAgentError",
    "Generation",
    "Group",
    "GroupCredit",
    "Invalid",
    "Message",
    "Observation",
    "Passage",
    "Question",
    "RolloutSettings",
    "ScriptedExpert",
    "Search",
    "Step",
    "StopReason",
    "Trajectory",
    "TransformersPolicy",
    "Triple",
    "__version__",
    "assign_credit",
    "build_protocol",
    "cover_em",
    "exact_match",
    "f1",
    "load_encoder",
    "normalize_answer",
    "open_corpus",
    "open_questions",
    "parse_action",
    "read_passages",
    "read_questions",
    "render_action",
    "sample_groups",
]

_MODULES = {
    "BM25Index": "retrieval.bm25",
    "ConfigError": "errors",
    "CreditConfig": "credit.config",
    "DataError": "errors",
    "Episode": "episode",
    "FactAgentError": "errors",
    "GroupCredit": "credit.assign",
    "RolloutSettings": "rollout",
    "ScriptedExpert": "policies.scripted",
    "TransformersPolicy": "policies.transformers",
    "assign_credit": "credit.assign",
    "build_protocol": "protocols",
    "cover_em": "rewards",
    "exact_match": "rewards",
    "f1": "rewards",
    "load_encoder": "credit.encoders",
    "normalize_answer": "rewards",
    "open_corpus": "data.sources",
    "open_questions": "data.sources",
    "parse_action": "protocols.actions",
    "read_passages": "data.corpus",
    "read_questions": "data.dataset",
    "render_action": "protocols.actions",
    "sample_groups": "rollout",
}
"""Public name -> the module that holds it; names that are not here come from `types`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'factagent' has no attribute '{name}'")
    value: object = getattr(import_module(f"factagent.{_MODULES.get(name, 'types')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
