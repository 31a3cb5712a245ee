"""The configuration of a run: one TOML file, one table a part. Every default is the paper's where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from factagent.config_presets import Mode, Preset, PresetModel
from factagent.credit.config import CreditConfig
from factagent.credit.rule_choice import AnyRule
from factagent.credit.tree_grpo import TreeGrpoConfig
from factagent.data.world.config import WorldConfig
from factagent.evaluation.config import EpisodeConfig, ModelConfig, RetrieverConfig, Table
from factagent.methods.registry import preset_of
from factagent.protocols import PROTOCOLS
from factagent.rollout import RolloutSettings
from factagent.train.aggregation import Aggregation
from factagent.train.cluster import ClusterConfig
from factagent.train.environment import EnvironmentConfig

Precision = Literal["fp32", "bf16"]
"""Arithmetic of a forward pass: fp32, or bf16 by autocast."""


class DataConfig(Table):
    """Where passages and questions are. With a `world` table the built-in world is built into `directory` first."""

    directory: Path | None = None
    """A directory with corpus.jsonl, qa.train.jsonl, qa.dev.jsonl, optionally qa.test.jsonl and facts.jsonl."""
    corpus: Path | None = None
    train: Path | None = None
    dev: Path | None = None
    facts: Path | None = None
    retriever: RetrieverConfig | None = None
    """An index or a server to search instead of BM25 over `corpus`, which is then not needed."""
    world: WorldConfig | None = None
    types: tuple[str, ...] = ()
    """Keep only questions of these types (all where empty)."""
    hops: tuple[int, ...] = ()
    """Keep only questions of these numbers of hops (all where empty)."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.world is not None and self.directory is None:
            raise ValueError("'world' needs 'directory', the place where it is built")
        if self.retriever is not None and self.retriever.corpus is not None:
            raise ValueError("'retriever.corpus' is the key 'corpus' here; give 'retriever.spec'")
        return self


class RolloutConfig(EpisodeConfig):
    """How trajectories are sampled."""

    group_size: int = Field(default=6, ge=1)
    temperature: float = Field(default=0.7, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the nucleus: the fewest most probable tokens that hold this share. Log-probabilities stay those of the
    whole distribution, as the learner computes them."""
    precision: Precision = "bf16"

    def settings(self, *, group_size: int | None = None, record_messages: bool = False) -> RolloutSettings:
        """What the driver needs."""
        return RolloutSettings(group_size or self.group_size, self.max_rounds, self.top_k, record_messages)


class LearnerConfig(Table):
    """Optimiser and objective (credit.md section 7); the defaults are the paper's."""

    learning_rate: float = Field(default=1e-5, gt=0)
    """AdamW. The paper's 1e-5; every baseline's is 1e-6."""
    warmup_steps: int = Field(default=0, ge=0)
    """Batches over which the learning rate rises linearly from its first share."""
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    grad_clip: float = Field(default=1.0, gt=0)
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimiser steps a batch: its groups are dealt to this many mini-batches."""
    token_budget: int = Field(default=16384, ge=1)
    """Padded tokens of a micro-batch."""
    precision: Precision = "bf16"
    """Autocast of the training step; weights and optimiser stay fp32."""
    aggregation: Aggregation = "step-mean"
    """Of what the objective is the mean: the steps of a group, then groups; all loss tokens of an optimiser step; or
    the trajectories of a group, each the mean over its tokens, then groups. See `train.aggregation`."""
    ratio: Literal["token", "step"] = "token"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    kl_coef: float = Field(default=0.001, ge=0)
    entropy_coef: float = Field(default=0.0, ge=0)
    llds_coef: float = Field(default=0.0, ge=0)
    """LLDS (methods.md 12.2): 0.2 where it is used. It acts only with several updates a batch."""
    llds_gate: Literal["action", "response", "token"] = "action"
    llds_answer: Literal["same", "paper", "script"] = "same"
    """LLDS-MA: how firmly LLDS holds the tokens of an answer, by the mean number of searches V: as any other token; by
    a factor min(V / 2, 1); or with coefficient llds_answer_coef * max(V - 1, 0), at most llds_coef."""
    llds_answer_coef: float = Field(default=0.1, ge=0)
    """Coefficient of `llds_answer = "script"`."""


class CriticConfig(Table):
    """The critic of `credit.rule = "gae"` (methods.md 3.5); no other rule reads this table.

    Precision, micro-batches and gradient clipping are the learner's.
    """

    learning_rate: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=15, ge=0)
    """Batches over which its learning rate rises linearly: .015 of the original's 1,005."""
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    value_clip: float = Field(default=0.5, gt=0)
    """How far a value may move from what it was at the start of the batch before the loss stops rewarding it."""
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimiser steps a batch, as the learner's key of that name."""


class ScheduleConfig(Table):
    """How long to train, and what to do on the way."""

    steps: int = Field(default=500, ge=0)
    questions_per_step: int = Field(default=128, ge=1)
    eval_every: int = Field(default=50, ge=0)
    """Greedy evaluation on dev questions before the first step, after every so many, and at the end; 0: never."""
    eval_questions: int = Field(default=500, ge=0)
    checkpoint_every: int = Field(default=50, ge=1)
    keep_last: int = Field(default=2, ge=1)
    save_trajectories_every: int = Field(default=1, ge=0)
    """0: never."""
    save_tokens: bool = False
    """Saved trajectories keep their tokens and log-probabilities: several times the size, and what
    `factagent credit-quality` needs to measure rules under a protocol that appends."""


class AlarmConfig(Table):
    """When a run must stop by itself, with a checkpoint (reliability.md R5)."""

    parse_error_rate: float = Field(default=0.3, gt=0, le=1)
    parse_error_steps: int = Field(default=5, ge=1)
    non_finite_steps: int = Field(default=3, ge=1)
    failed_share: float = Field(default=0.5, gt=0, le=1)
    """Share of a step's trajectories that failing searches ended (reliability.md R7)."""
    ignore: bool = False


class SftConfig(Table):
    """Cold start (appendix "Cold-Start Analysis"); learning rate, batch, warm-up and epochs default to the paper's."""

    source: Literal["policy", "expert"] = "policy"
    """"policy": rejection-sampled trajectories of the current policy; "expert": of the scripted expert."""
    keep: Literal["correct", "all"] = "correct"
    """"correct": answer right, at least one valid assert, no invalid action; "all": no filter (a poor imitator)."""
    trajectories: int = Field(default=600, ge=1)
    samples_per_question: int = Field(default=4, ge=1)
    """Attempts a question when sampling from the policy."""
    noise: float = Field(default=0.0, ge=0, le=1)
    """The scripted expert's noise."""
    haste: float = Field(default=0.0, ge=0, le=1)
    """The scripted expert's haste to answer."""
    learning_rate: float = Field(default=2e-5, gt=0)
    batch_size: int = Field(default=64, ge=1)
    warmup_ratio: float = Field(default=0.05, ge=0, le=1)
    epochs: int = Field(default=2, ge=1)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    prompt_loss_weight: float = Field(default=0.0, ge=0)
    """Weight of a prompt token's loss beside a response token's 1. Fine-tuning leaves it at 0; a model that starts from
    random weights learns to copy much sooner when it predicts the prompts too."""
    precision: Precision = "bf16"


class RunConfig(Table, PresetModel):
    """Everything that decides a run. Same config, seed and machine: same bytes."""

    name: str = "factagent"
    seed: int = 0
    threads: int = Field(default=2, ge=1)
    """CPU threads of torch; part of the seed contract, since it decides the order of sums."""
    engine: Literal["local", "verl"] = "local"
    """What trains: this process, or verl on one GPU to many nodes (docs/cluster.md)."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    credit: AnyRule = CreditConfig()
    learner: LearnerConfig = LearnerConfig()
    critic: CriticConfig = CriticConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    alarms: AlarmConfig = AlarmConfig()
    sft: SftConfig = SftConfig()
    cluster: ClusterConfig | None = None
    """Machines and servers of `engine = "verl"`; the engine in this process does not read it."""

    @classmethod
    def preset(cls, method: str, mode: Mode) -> Preset:
        """Everything that the method sets."""
        return preset_of(method, mode)

    @model_validator(mode="after")
    def _facts(self) -> Self:
        protocol = PROTOCOLS[self.rollout.protocol]
        if self.credit.needs_facts and not getattr(protocol, "asserts", True):
            raise ValueError(
                f"credit.needs_facts is true, but protocol '{self.rollout.protocol}' keeps no facts, so that no answer "
                "would earn anything; set credit.needs_facts = false"
            )
        return self

    @model_validator(mode="after")
    def _searches(self) -> Self:
        if self.engine == "verl" and self.data.retriever is not None:
            raise ValueError("'data.retriever' is for engine 'local'; engine 'verl' asks 'cluster.servers'")
        return self

    @model_validator(mode="after")
    def _trees(self) -> Self:
        credit = self.credit
        if isinstance(credit, TreeGrpoConfig) and self.rollout.group_size != credit.group_size:
            raise ValueError(
                f"rollout.group_size is {self.rollout.group_size}, but credit.trees * credit.leaves make groups of "
                f"{credit.group_size}; set it to that"
            )
        return self
