"""The packaged tiny policy: what its card says is what is there, and it knows the format."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from factagent.configuration import load_config
from factagent.data.corpus import read_passages
from factagent.data.dataset import read_questions
from factagent.data.world.build import build_world
from factagent.evaluation.config import TINY
from factagent.evaluation.local import model_path, protocol_of
from factagent.evaluation.runner import evaluate, summarise
from factagent.retrieval.bm25 import BM25Index
from factagent.train.config import RunConfig
from factagent.train.setup import greedy, load_policy

torch = pytest.importorskip("torch", reason="the tiny policy needs the extra 'train'")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return load_config(RunConfig, ROOT / "configs" / "tiny.toml", ("threads=1", "rollout.precision=fp32"))


def test_files_match_the_card_and_stay_small() -> None:
    directory = model_path(TINY)
    card = json.loads((directory / "card.json").read_text("utf-8"))
    for name, digest in card["sha256"].items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest, name
    assert (directory / "model.safetensors").stat().st_size <= 8_000_000
    assert card["command"].startswith("factagent tiny build --config configs/tiny-policy-2.toml")


def test_the_card_reproduces_from_the_configuration_in_the_repository() -> None:
    card = json.loads((model_path(TINY) / "card.json").read_text("utf-8"))
    now = load_config(RunConfig, ROOT / "configs" / "tiny-policy-2.toml", ())
    assert card["config"] == now.model_dump(mode="json", exclude_defaults=True)


def test_it_is_a_qwen2_of_one_to_three_million_parameters(config: RunConfig) -> None:
    model = load_policy(config).model
    assert model.config.model_type == "qwen2"
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 3_000_000


def test_it_knows_the_format_and_is_poor_at_choosing(config: RunConfig, tmp_path: Path) -> None:
    assert config.data.world is not None
    build_world(config.data.world.model_copy(update={"train": 300, "dev": 120, "test": 0}), tmp_path / "world")
    retriever = BM25Index.build(read_passages(tmp_path / "world" / "corpus.jsonl"))
    questions = read_questions(tmp_path / "world" / "qa.dev.jsonl")
    torch.set_num_threads(1)
    settings = config.rollout.settings(group_size=1)
    results = evaluate(questions, protocol_of(config.rollout), greedy(load_policy(config)), retriever, settings)
    summary = summarise(results)
    assert summary["parse_error_rate"] <= 0.05
    assert 0.1 <= summary["em"] <= 0.6
