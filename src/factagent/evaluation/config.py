"""The configuration of an evaluation: one method, one model, one retriever, one or several question sets.

Training's configuration shares `ModelConfig` and `EpisodeConfig`, so that a training run says how it is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from factagent.config_presets import Mode, Preset, PresetModel
from factagent.data.sources import AUTO
from factagent.episode import MAX_ROUNDS, TOP_K
from factagent.errors import ConfigError
from factagent.methods.registry import preset_of
from factagent.policies.endpoint_settings import EndpointSettings
from factagent.protocols import PROTOCOLS
from factagent.rollout import RolloutSettings

TINY = "tiny"
"""Name of the packaged policy."""

EXPERT = "expert"
"""Name of the scripted expert, which reads the gold annotations: an upper bound and a test, never a result."""


STYLES = ("full", "terse")
"""Kinds of built-in prompts, of which every protocol has its own: for chat models, and for tiny policies."""


class Table(BaseModel):
    """A table of a configuration: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(Table):
    """A local policy."""

    path: str = TINY
    """A Hugging Face causal-LM directory (safetensors) with tokenizer and chat template; "tiny" is the packaged one."""
    device: str = "auto"


class EpisodeConfig(Table):
    """The method: what the policy reads and writes, and its budgets."""

    protocol: str = "factagent"
    prompt: str = Field(default="full", validate_default=True)
    """A built-in prompt or the path of a prompt file; "full" and "terse" are the protocol's own."""
    max_rounds: int = Field(default=MAX_ROUNDS, ge=1)
    top_k: int = Field(default=TOP_K, ge=1)
    max_new_tokens: int = Field(default=512, ge=1)
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    batch_tokens: int = Field(default=65536, ge=1)
    """Padded tokens that a local sampler runs at once."""

    @field_validator("protocol")
    @classmethod
    def _known(cls, protocol: str) -> str:
        if protocol not in PROTOCOLS:
            near = get_close_matches(protocol, PROTOCOLS, n=1)
            meant = f"did you mean '{near[0]}'? " if near else ""
            raise ValueError(f"{meant}known are {', '.join(PROTOCOLS)}")
        return protocol

    @field_validator("prompt")
    @classmethod
    def _of_protocol(cls, prompt: str, info: ValidationInfo) -> str:
        """A style alone is the prompt of that style for the protocol."""
        return f"{info.data['protocol']}-{prompt}" if prompt in STYLES and "protocol" in info.data else prompt


class EndpointConfig(EndpointSettings):
    """A model behind a server. Temperature, tokens and concurrency are the evaluation's own keys, for any model."""

    temperature: float | None = Field(default=None, exclude=True)
    max_tokens: int = Field(default=512, exclude=True)
    concurrency: int = Field(default=1, exclude=True)

    @model_validator(mode="after")
    def _not_twice(self) -> Self:
        for name, instead in _SHARED_KEYS.items():
            if name in self.model_fields_set:
                raise ValueError(f"'{name}' is set by '{instead}'")
        return self


_SHARED_KEYS = {
    "temperature": "rollout.temperature",
    "max_tokens": "rollout.max_new_tokens",
    "concurrency": "concurrency",
}


class EvalModelConfig(ModelConfig):
    """The policy under test: a local one by `path` ("expert" is the scripted one), or an `endpoint`."""

    endpoint: EndpointConfig | None = None
    """An OpenAI-compatible server; `path` and `device` are then unused."""
    noise: float = Field(default=0.0, ge=0, le=1)
    """The scripted expert's noise."""
    facts: Path | None = None
    """What each passage states (facts.jsonl), for the scripted expert."""

    @property
    def shown(self) -> str:
        """The model as titles name it; where the server lists one model only, it may be left unnamed."""
        return self.path if self.endpoint is None else self.endpoint.model or "the endpoint's model"


class EvalRolloutConfig(EpisodeConfig):
    """How each question is played, once."""

    temperature: float = Field(default=0.0, ge=0)
    """0 decodes greedily."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the nucleus of this mass. 1: the whole distribution, or what `model.endpoint.top_p` says."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of a local model. "auto": fp32 on the CPU, bf16 weights elsewhere. "bf16": fp32 weights under autocast, as in
    training; replies then depend a little on the batch."""

    def settings(self) -> RolloutSettings:
        """What the drivers need."""
        return RolloutSettings(1, self.max_rounds, self.top_k)


class RetrieverConfig(Table):
    """What is searched: an index (or a server), or a corpus that is indexed for BM25 first."""

    spec: str | None = None
    """An index directory, several joined by "+", or a URL: whatever `factagent.retrieval.opening` opens."""
    corpus: Path | None = None
    protocol: str = "search-r1"
    """What a server speaks; see `factagent.retrieval.remote.PROTOCOLS`."""
    token_env: str | None = None
    """Environment variable with a server's bearer token."""
    device: str = "auto"
    """For the encoder and the exact search of a dense index."""
    encoder: str | None = None
    """Where the query encoder of a dense index lies now, if it was moved."""

    @property
    def is_server(self) -> bool:
        """Whether `spec` is the URL of a search server."""
        return self.spec is not None and self.spec.startswith(("http://", "https://"))

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.spec is None) == (self.corpus is None):
            raise ValueError("give either 'spec' (an index or a URL) or 'corpus' (a file to index)")
        return self


class SetConfig(Table):
    """A question set. The paper's names (nq, triviaqa, ...) bring the paper's rows beside it."""

    name: str = Field(min_length=1)
    path: Path
    format: str = AUTO
    """As `factagent.data.sources` names it; by default it is recognised by the first row."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many questions."""
    expected: int | None = Field(default=None, ge=1)
    """Refuse the file unless it holds exactly so many questions (before `limit`)."""
    types: tuple[str, ...] = ()
    """Keep only questions of these types (all where empty)."""
    hops: tuple[int, ...] = ()
    """Keep only questions of these numbers of hops (all where empty)."""


class FailureConfig(Table):
    """When failing servers stop the evaluation (reliability.md R7)."""

    window: int = Field(default=50, ge=10)
    """The share is taken over so many last questions (at least 10 of them)."""
    share: float = Field(default=0.2, ge=0, lt=1)
    """Above it the evaluation pauses, then asks one question now and then until one succeeds."""
    patience_s: float = Field(default=300.0, ge=0)
    """A pause that lasts longer ends the command with exit code 75; everything answered is kept."""


class EvalConfig(Table, PresetModel):
    """Everything that decides an evaluation."""

    seed: int = 0
    """Of sampling (where temperature is above 0) and of the bootstrap."""
    threads: int = Field(default=2, ge=1)
    """CPU threads of torch, for a local model."""
    concurrency: int = Field(default=32, ge=1)
    """Questions under way at once at an endpoint."""
    batch_size: int = Field(default=64, ge=1)
    """Questions that a local model plays in lock-step; written together when all are done."""
    model: EvalModelConfig = EvalModelConfig()
    rollout: EvalRolloutConfig = EvalRolloutConfig()
    retriever: RetrieverConfig
    sets: tuple[SetConfig, ...] = Field(min_length=1)
    failures: FailureConfig = FailureConfig()

    @classmethod
    def preset(cls, method: str, mode: Mode) -> Preset:
        """How the method plays an episode; how it decodes in training is not how it is evaluated."""
        return preset_of(method, mode, {"rollout": frozenset(EpisodeConfig.model_fields)})

    @model_validator(mode="after")
    def _one_nucleus(self) -> Self:
        endpoint = self.model.endpoint
        if endpoint is not None and endpoint.top_p is not None and self.rollout.top_p < 1:
            raise ValueError("'rollout.top_p' and 'model.endpoint.top_p' are both set; keep the first")
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [each.name for each in self.sets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sets are named '{twice[0]}'; names must be unique")
        return self

    def limited(self, limit: int) -> Self:
        """The same on at most the first `limit` questions of each set.

        Raises:
            ConfigError: `limit` is below 1.
        """
        if limit < 1:
            raise ConfigError(f"limit is {limit}; it must be at least 1")
        sets = (each.model_copy(update={"limit": min(limit, each.limit or limit)}) for each in self.sets)
        return self.model_copy(update={"sets": tuple(sets)})


MAY_CHANGE = frozenset(
    {
        "concurrency",
        "batch_size",
        "failures.window",
        "failures.share",
        "failures.patience_s",
        "model.device",
        "retriever.token_env",
        "retriever.device",
        "retriever.encoder",
        *(
            f"model.endpoint.{key}"
            for key in ("url", "api_key_env", "stream", "usage", "tries", "first_wait_s", "max_tokens_key")
        ),
        *(f"model.endpoint.{part}_timeout_s" for part in ("connect", "write", "pool", "liveness", "total")),
    }
)
"""Keys that a resumed evaluation may set anew: they say how it runs, not what it measures."""


def changed_key(before: EvalConfig, now: EvalConfig) -> tuple[str, object, object] | None:
    """The first key whose value differs and matters, with both values; None where the evaluations are the same.

    A retriever's URL may change into another (a server moves), an index may not.
    """
    for key, old, new in differences(before.model_dump(mode="json"), now.model_dump(mode="json"), ""):
        moved = key == "retriever.spec" and before.retriever.is_server and now.retriever.is_server
        if not moved and key not in MAY_CHANGE:
            return key, old, new
    return None


def differences(before: object, now: object, at: str) -> Iterator[tuple[str, object, object]]:
    """The keys at which two dumped configurations differ, each with both values (None where it is missing)."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before | now:
            yield from differences(before.get(key), now.get(key), f"{at}.{key}" if at else key)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{at}[{index}]")
    elif before != now:
        yield at, before, now
