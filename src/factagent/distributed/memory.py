"""What a run needs of each GPU: arithmetic over the model's own configuration, before anything is started.

Weights, gradients and moments are exact; what activations take is an upper bound under gradient checkpointing, with
the logits of one micro-batch, which are the largest tensor of a small model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factagent.evaluation.local import model_path
from factagent.retrieval.free_memory import GIB
from factagent.train.cluster import ClusterConfig
from factagent.train.config import RunConfig

_FP32, _BF16 = 4, 2


@dataclass(frozen=True)
class ModelSize:
    """What decides memory: parameters, layers, width, vocabulary, and the cache's bytes a token."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    cache_bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of each GPU. `sampling` is reserved while sampling, the others are there while training."""

    weights: int
    gradients: int
    moments: int
    reference: int
    activations: int
    sampling_weights: int
    host: int
    """Bytes of host memory a GPU, for what is kept there (`cluster.offload`)."""
    cache_bytes: int
    """Bytes of the sampler's cache a token."""

    @property
    def training(self) -> int:
        """Everything that is on the GPU during an optimiser step."""
        return self.weights + self.gradients + self.moments + self.reference + self.activations


def model_size(directory: Path) -> ModelSize | None:
    """Sizes from a model's `config.json` (Qwen2, Llama and their like); None where there is none."""
    path = directory / "config.json"
    if not path.is_file():
        return None
    config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    try:
        hidden, layers, vocabulary = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
        heads, inner = config["num_attention_heads"], config["intermediate_size"]
    except KeyError:
        return None
    keys = config.get("num_key_value_heads", heads)
    width = config.get("head_dim") or hidden // heads
    attention = hidden * width * (heads + 2 * keys) + heads * width * hidden
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings", False) else 2)
    parameters = layers * (attention + 3 * hidden * inner + 2 * hidden) + embeddings + hidden
    return ModelSize(parameters, layers, hidden, vocabulary, 2 * layers * keys * width * _BF16)


def memory_plan(config: RunConfig, size: ModelSize) -> MemoryPlan:
    """The plan of a run: FSDP2 shards weights, gradients and moments over all ranks, in fp32."""
    cluster, learner = config.cluster or ClusterConfig(), config.learner
    shard = -(-size.parameters // cluster.ranks)
    # Adapters: the weights below stay, gradients and moments are those of the adapters (two thin matrices a layer).
    trained = (
        shard if not cluster.lora_rank else -(-size.layers * 14 * size.hidden * cluster.lora_rank // cluster.ranks)
    )
    tokens = learner.token_budget // cluster.sequence_parallel
    kept = tokens * size.hidden * size.layers * _BF16
    logits = tokens * size.vocabulary * _FP32 * 2
    layer = 2 * size.parameters // max(1, size.layers) * _BF16
    moments, weights = 2 * trained * _FP32, shard * _FP32
    offloaded = {"none": 0, "optimizer": moments, "all": moments + weights}[cluster.offload]
    has_reference = learner.kl_coef > 0 and not cluster.lora_rank
    return MemoryPlan(
        weights=weights,
        gradients=trained * _FP32,
        moments=moments,
        reference=shard * _FP32 if has_reference else 0,
        activations=kept + logits + layer,
        sampling_weights=size.parameters * _BF16 // cluster.tensor_parallel,
        host=offloaded,
        cache_bytes=size.cache_bytes // cluster.tensor_parallel,
    )


def plan_lines(config: RunConfig) -> list[str]:
    """The plan in words, for people who are about to start a run."""
    cluster = config.cluster or ClusterConfig()
    size = model_size(model_path(config.model.path))
    if size is None:
        return [f"memory: no plan, since {config.model.path} has no config.json here"]
    plan = memory_plan(config, size)
    longest = (config.rollout.max_prompt_tokens or 0) + config.rollout.max_new_tokens
    rows = config.schedule.questions_per_step * config.rollout.group_size * config.rollout.max_rounds
    return [
        f"model: {size.parameters / 1e9:.2f} B parameters over {cluster.ranks} ranks",
        f"training, each GPU: {_gib(plan.training)} GiB = weights {_gib(plan.weights)} + gradients "
        f"{_gib(plan.gradients)} + moments {_gib(plan.moments)} + reference {_gib(plan.reference)} + activations at "
        f"most {_gib(plan.activations)}" + (f"; {_gib(plan.host)} GiB wait on the host" if plan.host else ""),
        f"sampling, each GPU: {_gib(plan.sampling_weights)} GiB of weights; the rest of {cluster.sampler_memory:.0%} "
        f"of the GPU is cache, {plan.cache_bytes / 1024:.0f} KiB a token, {_gib(plan.cache_bytes * longest)} GiB an "
        "episode of the longest prompt",
        f"queue: at most {rows} rows of at most {longest} tokens a step, "
        f"{_gib(rows * longest * 60)} GiB of host memory over all nodes",
    ]


def _gib(count: int) -> str:
    return f"{count / GIB:.1f}"
