"""Make the tiny policy: tokenizer from a corpus, random weights, cold start from the scripted expert."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from factagent import __version__
from factagent.configuration import load_config
from factagent.data.corpus import read_facts, read_passages
from factagent.data.dataset import read_questions
from factagent.data.formats import sha256_of
from factagent.data.world.build import build_world
from factagent.errors import UsageError
from factagent.evaluation.config import TINY
from factagent.train.config import RunConfig
from factagent.train.run import resume_sft, start_sft
from factagent.train.setup import data_paths
from factagent.train.tiny import TinyConfig, build_model, build_tokenizer, collect_words
from factagent.types import Question, Triple

MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
CHAT_TEMPLATE = "chat_template.jinja"


def build_tiny(config: RunConfig, size: TinyConfig, out: Path, command: str) -> Path:
    """Build `out/policy`, a model directory with a `card.json` that says how to make it again.

    `out/init` holds the untrained model and `out/sft` the cold start; an interrupted build goes on where it stopped.
    Where `model.path` names a directory, the cold start goes on from that policy instead of random weights.

    Raises:
        UsageError: the policy is there already, the build was begun with another configuration, or the configuration
            has no passages to take words from.
    """
    policy = out / "policy"
    if policy.exists():
        raise UsageError(f"{policy} exists already; choose another --out, or delete it")
    initial = out / "init" if config.model.path == TINY else Path(config.model.path)
    if config.model.path == TINY and not (initial / "config.json").exists():
        _initialise(config, size, initial)
    resolved = config.model_copy(update={"model": config.model.model_copy(update={"path": str(initial)})})
    sft = out / "sft"
    begun = sft / "config.toml"
    if begun.exists() and load_config(RunConfig, begun) != resolved:
        raise UsageError(f"{sft} was begun with another configuration; choose another --out, or delete it")
    checkpoint = resume_sft(sft) if begun.exists() else start_sft(resolved, sft)
    policy.mkdir(parents=True)
    for name in (*MODEL_FILES, CHAT_TEMPLATE):
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, policy / name)
    card = _card(config, size, policy, command)
    (policy / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    return policy


def _initialise(config: RunConfig, size: TinyConfig, directory: Path) -> None:
    if config.data.world is not None and config.data.directory is not None:
        build_world(config.data.world, config.data.directory)
    paths = data_paths(config.data)
    questions: Iterable[Question] = chain(read_questions(paths.train), read_questions(paths.dev))
    facts = read_facts(paths.facts) if paths.facts else {}
    triples: Iterable[Triple] = (triple for stated in facts.values() for triple in stated)
    tokenizer = build_tokenizer(collect_words(read_passages(paths.needed_corpus), questions, triples))
    model = build_model(size, tokenizer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def _card(config: RunConfig, size: TinyConfig, policy: Path, command: str) -> dict[str, Any]:
    """What a reader needs to make the same files again and to check that they are the same."""
    return {
        "command": command,
        "factagent": __version__,
        "size": size.model_dump(mode="json"),
        "config": config.model_dump(mode="json", exclude_defaults=True),
        "sha256": {path.name: sha256_of(path) for path in sorted(policy.iterdir())},
    }
