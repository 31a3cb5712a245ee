"""The table `[cluster]`: where and how `engine = "verl"` runs. The engine in this process does not read it.

What a run learns stands in the other tables and means the same under both engines; here stand machines, memory and
servers only.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from factagent.evaluation.config import Table

Value = str | int | float | bool
"""What an override of verl's own configuration may be."""


class ServersConfig(Table):
    """Search servers of a cluster run: some that are there (`urls`), or some that the run starts beside its driver."""

    urls: tuple[str, ...] = ()
    """Servers to ask. Empty: `count` servers are started on the driver's machine."""
    layout: Literal["replicas", "shards"] = "replicas"
    """Whether `urls` hold the same corpus each, or parts of one."""
    protocol: str = "search-r1"
    """What the servers speak; see `factagent.retrieval.remote.PROTOCOLS`."""
    token_env: str | None = None
    """Environment variable with the servers' bearer token; it must be set on every node."""
    index: str | None = None
    """What started servers search (`factagent serve retrieval --index`). Unset: BM25 over the run's corpus."""
    count: int = Field(default=1, ge=1)
    """Servers to start."""
    device: str = "cpu"
    """Where started servers encode queries and search dense vectors; a GPU is shared with training and sampling."""
    threads: int = Field(default=4, ge=1)
    """Threads of one search in a started server."""
    host: str = "127.0.0.1"
    """Address on which started servers listen and workers ask; several nodes need one that all of them reach."""
    ready_s: float = Field(default=900.0, gt=0)
    """Seconds until every server must have answered a search; a run does not begin before."""
    searches_at_once: int = Field(default=64, ge=1)
    """Requests that each worker has under way at most; further searches wait in the worker."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.urls and self.index is not None:
            raise ValueError("'urls' and 'index' exclude each other: ask servers that are there, or start some")
        if not self.urls and self.layout == "shards":
            raise ValueError("'layout = \"shards\"' needs 'urls'; started servers all hold the same index")
        return self


class ClusterConfig(Table):
    """Machines, sharding and sampling servers of `engine = "verl"`."""

    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=8, ge=1)
    """GPUs (with `device = "cpu"`: processes) of each node; all of them train and sample in turn."""
    device: Literal["cuda", "cpu"] = "cuda"
    """"cpu" runs the whole loop without a GPU, sampling with transformers: for tests and for a first look."""
    sampler: Literal["vllm", "sglang"] = "vllm"
    """What samples on GPUs."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that share one copy of the sampler's weights."""
    sampler_memory: float = Field(default=0.6, gt=0, lt=1)
    """Share of a GPU's memory for the sampler's weights and cache while it samples."""
    sequence_parallel: int = Field(default=1, ge=1)
    """GPUs that share one row's sequence in training (Ulysses)."""
    lora_rank: int = Field(default=0, ge=0)
    """0 trains all weights; above it, adapters of that rank, with the weights below as the reference."""
    lora_alpha: int = Field(default=32, ge=1)
    offload: Literal["none", "optimizer", "all"] = "none"
    """What waits in host memory while it is not used: the optimiser's moments, or weights and moments."""
    gradient_checkpointing: bool = True
    old_logprobs: Literal["recompute", "sampled"] = "recompute"
    """Log-probabilities of the policy that sampled: computed again by the trainer (its kernels round otherwise than the
    sampler's), or those that came with the tokens, as the engine in this process takes them."""
    workers: int = Field(default=8, ge=1)
    """Processes that drive episodes and assign credit; a group stays in one of them."""
    episodes_at_once: int = Field(default=256, ge=1)
    """Episodes that each worker has under way at most; further ones wait (back-pressure)."""
    episode_timeout_s: float = Field(default=1800.0, gt=0)
    """An episode that takes longer ends with stop reason `timeout` and leaves its group's statistics."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs that Ray shall count with on a machine where it is started by the run; unset: those that are there."""
    loggers: tuple[str, ...] = ()
    """verl's own loggers beside the run directory, such as "console" or "wandb"."""
    servers: ServersConfig = ServersConfig()
    verl: dict[str, Value] = Field(default_factory=dict)
    """Further keys of verl's own configuration; a key that this configuration sets already is refused."""

    @property
    def ranks(self) -> int:
        """Training processes over all nodes."""
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name in ("tensor_parallel", "sequence_parallel"):
            if self.ranks % getattr(self, name):
                raise ValueError(f"'{name} = {getattr(self, name)}' does not divide the {self.ranks} GPUs")
        if self.nodes > 1 and not self.servers.urls and self.servers.host in ("127.0.0.1", "localhost", "::1"):
            raise ValueError(
                f"with {self.nodes} nodes, 'servers.host = \"{self.servers.host}\"' is out of the others' reach; "
                "give the driver's address, or servers that are there ('servers.urls')"
            )
        if self.nodes > 1 and self.cpus is not None:
            raise ValueError("'cpus' is for a Ray that the run starts itself; with several nodes Ray runs already")
        if self.device == "cpu" and (self.tensor_parallel, self.sequence_parallel, self.offload) != (1, 1, "none"):
            raise ValueError("'device = \"cpu\"' knows neither tensor_parallel, sequence_parallel nor offload")
        return self
