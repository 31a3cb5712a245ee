"""The policy that runs in this process: any Hugging Face causal language model with a chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from factagent.episode import OVERLONG
from factagent.errors import ConfigError, DataError, ServiceError
from factagent.policies.base import GenerationRequest
from factagent.policies.chat import ChatCodec, Inline
from factagent.policies.sampling import BATCH_TOKENS, generate_batch, uniforms_of
from factagent.policies.scoring import SCORE_TOKENS, Floats, reply_logprobs
from factagent.policies.stops import StopStrings
from factagent.types import Generation, Message

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class SamplingSettings(BaseModel):
    """How replies are sampled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=0.7, ge=0)
    """0 takes the most probable token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the nucleus of this mass; log-probabilities stay those of the whole distribution (`sampling`)."""
    max_new_tokens: int = Field(default=512, ge=1)
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longer prompts end their episode (never cut). None: what the model's context leaves beside the reply."""
    batch_tokens: int = Field(default=BATCH_TOKENS, ge=1)
    """Padded tokens that decode together."""
    autocast: bool = False
    """bfloat16 matrix products: faster on some machines, and replies then depend a little on the batch."""


class TransformersPolicy:
    """Samples replies from a model, in batches, token in and token out.

    Args:
        model: a causal language model, on the device where it shall run. It may be the one that is being trained.
        tokenizer: its tokenizer, with a chat template.
        settings: how to sample.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: SamplingSettings | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings or SamplingSettings()
        self.codec = ChatCodec(tokenizer, _configured_stops(model))
        self.max_prompt_tokens = self._prompt_limit()
        self._stop_strings: dict[tuple[str, ...], StopStrings | None] = {(): None}

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: SamplingSettings | None = None,
        *,
        device: str = "auto",
        dtype: torch.dtype | None = None,
        local_files_only: bool = True,
    ) -> Self:
        """Load a model directory (config.json, safetensors weights, tokenizer with chat template).

        Args:
            device: "auto" is the first CUDA device where there is one, else the CPU; or any torch device.
            dtype: of the weights. None: float32 on the CPU, bfloat16 elsewhere.
            local_files_only: False lets transformers fetch a model by its hub name.

        Raises:
            ConfigError: no such directory, no chat template, or an unusable device.
            DataError: a file of the directory is missing or malformed.
        """
        place = resolve_device(device)
        if local_files_only:
            _check_directory(Path(path))
        dtype = dtype or (torch.float32 if place.type == "cpu" else torch.bfloat16)
        tokenizer = load_tokenizer(path, local_files_only=local_files_only)
        model = _load_model(path, dtype, local_files_only)
        torch.nn.Module.to(model, place)
        return cls(model, tokenizer, settings)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation a request, in order; prompts that do not fit come back with finish reason "overlong"."""
        settings = self.settings
        prompts = self._encode(requests)
        fits = [i for i, prompt in enumerate(prompts) if len(prompt) <= self.max_prompt_tokens]
        samples = generate_batch(
            self.model,
            [prompts[i] for i in fits],
            uniforms_of([requests[i].key for i in fits], settings.max_new_tokens),
            temperature=settings.temperature,
            max_new_tokens=settings.max_new_tokens,
            stop_ids=sorted(self.codec.stop_ids),
            pad_id=self.tokenizer.pad_token_id or 0,
            max_batch_tokens=settings.batch_tokens,
            autocast=settings.autocast,
            stop_strings=[self._stops(requests[i].stop) for i in fits],
            top_p=settings.top_p,
        )
        texts = self.codec.decode_many([sample.response_ids for sample in samples])
        generations = [Generation("", prompt, finish_reason=OVERLONG, prompt_tokens=len(prompt)) for prompt in prompts]
        for i, text, sample in zip(fits, texts, samples, strict=True):
            generations[i] = Generation(text, prompts[i], *sample, prompt_tokens=len(prompts[i]))
        return generations

    def logprobs(self, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[Floats]:
        """Log-probabilities (nats, temperature 1) of given replies' tokens, one array a prompt; see `scoring`.

        Raises:
            ValueError: there is not one reply a prompt, or one of them has no tokens.
        """
        return reply_logprobs(
            self.model,
            prompts,
            replies,
            pad_id=self.tokenizer.pad_token_id or 0,
            max_batch_tokens=min(SCORE_TOKENS, self.settings.batch_tokens),
            autocast=self.settings.autocast,
        )

    def _encode(self, requests: Sequence[GenerationRequest]) -> list[tuple[int, ...]]:
        """The prompts: made anew, continued by messages, or continued by a text inside the assistant's turn."""
        fresh: dict[int, Sequence[Message]] = {}
        answered: dict[int, tuple[Sequence[Message], Generation]] = {}
        inline: dict[int, Inline] = {}
        for i, request in enumerate(requests):
            if request.prefix is None:
                fresh[i] = request.messages
            elif request.continuation is None:
                answered[i] = request.messages, request.prefix
            else:
                inline[i] = Inline(request.prefix, request.continuation, request.continuation_tokens)
        codec = self.codec
        prompts = dict(zip(fresh, codec.encode_prompts(list(fresh.values())), strict=True))
        prompts.update(zip(answered, codec.encode_continuations(list(answered.values())), strict=True))
        prompts.update(zip(inline, codec.encode_inline(list(inline.values())), strict=True))
        return [prompts[i] for i in range(len(requests))]

    def _stops(self, stop: tuple[str, ...]) -> StopStrings | None:
        if stop not in self._stop_strings:
            self._stop_strings[stop] = StopStrings(self.tokenizer, stop)
        return self._stop_strings[stop]

    def _prompt_limit(self) -> int:
        context = getattr(self.model.config, "max_position_embeddings", None)
        limits = [self.settings.max_prompt_tokens, context - self.settings.max_new_tokens if context else None]
        limit = min((limit for limit in limits if limit is not None), default=2**31)
        if limit < 1:
            raise ConfigError(
                f"max_new_tokens={self.settings.max_new_tokens} leaves no room for a prompt in the model's context of "
                f"{context} tokens; lower it"
            )
        return limit


def _load_model(path: str | Path, dtype: torch.dtype, local_files_only: bool) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=local_files_only,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(f"model {path}: {_first_line(error)}") from error
    model: PreTrainedModel
    model, report = loaded
    # transformers fills absent weights with random numbers and only logs it.
    if absent := sorted(report["missing_keys"]):
        raise DataError(f"model {path}: weights are missing: {', '.join(absent[:3])} ({len(absent)} in all)")
    return model


def load_tokenizer(path: str | Path, *, local_files_only: bool = True) -> PreTrainedTokenizerBase:
    """Load a tokenizer directory; `vocab.json` with `merges.txt` and a tokenizer_config.json is enough.

    Raises:
        DataError: transformers cannot make a tokenizer of the files.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, local_files_only=local_files_only
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"tokenizer {path}: {_first_line(error)}") from error
    return tokenizer


def resolve_device(device: str) -> torch.device:
    """The device of a name; "auto" is CUDA where there is one, else the CPU (others only when asked for).

    Raises:
        ConfigError: not a torch device.
        ServiceError: a CUDA device is asked for, and there is none.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device '{device}' is unknown; use auto, cpu, cuda, cuda:0, ...") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ServiceError(f"device '{device}' is asked for, but torch sees no CUDA device; use device = \"auto\"")
    return place


def _configured_stops(model: PreTrainedModel) -> frozenset[int]:
    """The end tokens of the model's generation config."""
    config = model.generation_config
    ends = config.eos_token_id if config is not None else None
    return frozenset([] if ends is None else [ends] if isinstance(ends, int) else ends)


def _check_directory(path: Path) -> None:
    if not path.is_dir():
        raise ConfigError(f"model '{path}': no such directory; give one with config.json, safetensors and a tokenizer")
    config = path / "config.json"
    if not config.is_file():
        raise DataError(f"{config}: missing; a model directory holds config.json, safetensors weights and a tokenizer")
    try:
        json.loads(config.read_text("utf-8"))
    except ValueError as error:
        raise DataError(f"{config}: not valid JSON: {error}") from error
    if not any(path.glob("*.safetensors")):
        raise DataError(f"{path}: no *.safetensors file; other weight formats are not read, convert them first")
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise DataError(f"{path}: no tokenizer.json or tokenizer_config.json; save the tokenizer beside the model")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
