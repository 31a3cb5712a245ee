"""Fixtures and settings that all tests share."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Nothing that a test loads may come from a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

REPOSITORY = Path(__file__).resolve().parents[1]

# Timings never gate: no deadline. Deterministic, so that a red run can be repeated.
settings.register_profile(
    "factagent", max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", parent=settings.get_profile("factagent"), max_examples=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "factagent"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The shared data: `$FACTAGENT_SHARED/data`, or `../shared/data` beside the checkout; skips without it."""
    root = Path(os.environ.get("FACTAGENT_SHARED") or REPOSITORY.parent / "shared")
    data = root / "data"
    if not data.is_dir():
        pytest.skip(f"no shared data at {data} (set FACTAGENT_SHARED to the folder that holds data/)")
    return data


@pytest.fixture(scope="session")
def chat_server() -> Iterator[Any]:
    """A `ChatServer` (tests/integration/chat_server.py) that serves the packaged tiny policy."""
    pytest.importorskip("torch")
    pytest.importorskip("openai")
    # pytest's importlib mode puts no test folder on the path.
    path = REPOSITORY / "tests" / "integration" / "chat_server.py"
    spec = importlib.util.spec_from_file_location("chat_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["chat_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.serve_tiny() as server:
        yield server


@pytest.fixture(scope="session")
def tiny_encoders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes sentence-transformers directories with a tiny BERT of random weights; the name tells the family."""
    made: dict[tuple[object, ...], Path] = {}

    def make(name: str, *, seed: int = 0, pooling: str = "mean", prompts: dict[str, str] | None = None) -> Path:
        key = (name, seed, pooling, str(prompts))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("encoder") / name
            write_tiny_encoder(made[key], seed, pooling, prompts or {})
        return made[key]

    return make


def write_tiny_encoder(directory: Path, seed: int, pooling: str, prompts: dict[str, str]) -> None:
    """A BERT of 2 layers and 32 dimensions over characters, with the files of sentence-transformers around it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    plain = directory.parent / f"{directory.name}-plain"
    plain.mkdir()
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (plain / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    BertTokenizerFast(str(plain / "vocab.txt")).save_pretrained(plain)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        # Weights large enough that every token moves the vector.
        model = BertModel(BertConfig(vocab_size=len(vocabulary), initializer_range=0.2, **sizes))
    model.save_pretrained(plain)
    module = Transformer(str(plain))
    SentenceTransformer(modules=[module, Pooling(32, pooling)], prompts=prompts, device="cpu").save(str(directory))
