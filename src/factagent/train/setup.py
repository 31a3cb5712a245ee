"""From a configuration to the things that it names: data, retriever, protocol, policy, encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from factagent.data.corpus import read_facts
from factagent.data.sources import open_questions
from factagent.data.world.build import build_world
from factagent.errors import ConfigError, DataError
from factagent.evaluation.config import RetrieverConfig
from factagent.evaluation.local import load_model
from factagent.evaluation.retrievers import open_blocking
from factagent.policies.scripted import ScriptedExpert
from factagent.policies.transformers import TransformersPolicy
from factagent.protocols.base import AgentProtocol
from factagent.retrieval.base import Retriever
from factagent.train.config import DataConfig, RunConfig
from factagent.types import Question, Triple


@dataclass(frozen=True)
class Data:
    """Questions, retriever and annotations of a run."""

    train: list[Question]
    dev: list[Question]
    retriever: Retriever
    facts: dict[str, tuple[Triple, ...]]
    """Triples that each passage states, by passage id; empty where the corpus has no annotation."""


@dataclass(frozen=True)
class DataPaths:
    """Where a configuration's files are."""

    corpus: Path | None
    """None where another retriever is searched."""
    train: Path
    dev: Path
    facts: Path | None

    @property
    def needed_corpus(self) -> Path:
        """The passages, for those who must read them.

        Raises:
            ConfigError: the configuration names a retriever instead.
        """
        if self.corpus is None:
            raise ConfigError("data.retriever takes the place of data.corpus, whose passages are needed here; unset it")
        return self.corpus


def data_paths(config: DataConfig) -> DataPaths:
    """Resolve the files of a configuration; the single keys go before `directory`.

    Raises:
        ConfigError: a file is neither named nor in the directory.
    """
    directory = config.directory

    def resolve(key: str, given: Path | None, name: str) -> Path:
        path = given or (directory / name if directory else None)
        if path is None:
            raise ConfigError(f"data.{key} is not set; give it, or data.directory with a file {name}")
        if not path.exists():
            raise ConfigError(f"data.{key}: {path} does not exist; build the world or correct the path")
        return path

    facts = config.facts or (directory / "facts.jsonl" if directory else None)
    if facts is not None and not facts.exists():
        if config.facts is not None:
            raise ConfigError(f"data.facts: {facts} does not exist; correct the path or leave the key out")
        facts = None
    return DataPaths(
        resolve("corpus", config.corpus, "corpus.jsonl") if config.retriever is None else None,
        resolve("train", config.train, "qa.train.jsonl"),
        resolve("dev", config.dev, "qa.dev.jsonl"),
        facts,
    )


def load_questions(config: DataConfig) -> tuple[list[Question], list[Question]]:
    """The training and dev questions of a run (of a built-in world, which is built first)."""
    if config.world is not None and config.directory is not None:
        build_world(config.world, config.directory)
    paths = data_paths(config)
    return (
        _select(open_questions(paths.train), config, paths.train),
        _select(open_questions(paths.dev), config, paths.dev),
    )


def load_data(config: DataConfig) -> Data:
    """Read (and for a built-in world first build) what a run needs, and open the retriever or index the passages."""
    train, dev = load_questions(config)
    paths = data_paths(config)
    return Data(
        train,
        dev,
        open_blocking(config.retriever or RetrieverConfig(corpus=paths.needed_corpus)),
        dict(read_facts(paths.facts)) if paths.facts else {},
    )


def _select(questions: Sequence[Question], config: DataConfig, path: Path) -> list[Question]:
    kept = [
        question
        for question in questions
        if (not config.types or question.type in config.types) and (not config.hops or question.hops in config.hops)
    ]
    if not kept:
        raise DataError(f"{path}: no question has a type in {config.types} and hops in {config.hops}")
    return kept


def load_policy(config: RunConfig, path: str | None = None) -> TransformersPolicy:
    """Load the policy in fp32 (the learner chooses its own arithmetic), ready to sample at the run's temperature."""
    import torch

    return load_model(
        path or config.model.path,
        config.model.device,
        config.rollout,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        dtype=torch.float32,
        autocast=config.rollout.precision == "bf16",
    )


def greedy(policy: TransformersPolicy) -> TransformersPolicy:
    """The same model and tokenizer, decoding greedily."""
    return replace_settings(policy, temperature=0.0)


def replace_settings(policy: TransformersPolicy, *, temperature: float) -> TransformersPolicy:
    """The same model and tokenizer at another temperature."""
    settings = policy.settings.model_copy(update={"temperature": temperature})
    return TransformersPolicy(policy.model, policy.tokenizer, settings)


def expert_of(config: RunConfig, protocol: AgentProtocol, data: Data) -> ScriptedExpert:
    """The scripted expert for cold start."""
    sft = config.sft
    return ScriptedExpert(protocol.prompt.style, sft.noise, data.facts, config.seed, sft.haste, protocol.name)
