"""The dense encoder: prefixes, pooling, normalisation and cutting, compared with transformers by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from factagent.errors import DataError, UsageError
from factagent.retrieval.dense.encode import BGE_QUERY_PREFIX, TextEncoder, settings_of
from factagent.types import Passage

Make = Callable[..., Path]
TEXTS = ["who wrote Hamlet?", "a", "the river that flows through the capital of the country north of Italy"]


def by_hand(directory: Path, texts: list[str], pooling: str, tokens: int = 256) -> NDArray[np.float32]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens)
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state[0]
        row = hidden.mean(0) if pooling == "mean" else hidden[0]
        rows.append((row / row.norm()).numpy())
    return np.stack(rows)


def test_e5_has_its_prefixes_mean_pooling_and_unit_length(tiny_encoders: Make) -> None:
    directory = tiny_encoders("e5-tiny", pooling="cls")  # mean pooling is E5's, whatever the files say
    encoder = TextEncoder.load(str(directory))
    queries, passages = encoder.queries(TEXTS), encoder.passages(TEXTS)
    assert np.abs(queries - by_hand(directory, [f"query: {text}" for text in TEXTS], "mean")).max() < 1e-5
    assert np.abs(passages - by_hand(directory, [f"passage: {text}" for text in TEXTS], "mean")).max() < 1e-5
    assert queries.dtype == np.float32
    assert np.abs(np.linalg.norm(queries, axis=1) - 1).max() < 1e-6
    assert np.abs(queries - passages).max() > 0.01


def test_bge_has_its_instruction_before_queries_and_the_first_token(tiny_encoders: Make) -> None:
    directory = tiny_encoders("bge-tiny")
    encoder = TextEncoder.load(str(directory))
    wanted = by_hand(directory, [BGE_QUERY_PREFIX + text for text in TEXTS], "cls")
    assert np.abs(encoder.queries(TEXTS) - wanted).max() < 1e-5
    assert np.abs(encoder.passages(TEXTS) - by_hand(directory, TEXTS, "cls")).max() < 1e-5


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_other_models_are_used_as_they_are(tiny_encoders: Make, pooling: str) -> None:
    directory = tiny_encoders("other", pooling=pooling)
    encoder = TextEncoder.load(str(directory))
    assert np.abs(encoder.queries(TEXTS) - by_hand(directory, TEXTS, pooling)).max() < 1e-5
    assert encoder.name == str(directory)


def test_prompts_in_the_models_files_are_its_prefixes(tiny_encoders: Make) -> None:
    directory = tiny_encoders("prompted", prompts={"query": "Q: ", "document": "D: "})
    encoder = TextEncoder.load(str(directory))
    assert np.abs(encoder.queries(TEXTS) - by_hand(directory, [f"Q: {text}" for text in TEXTS], "mean")).max() < 1e-5
    assert np.abs(encoder.passages(TEXTS) - by_hand(directory, [f"D: {t}" for t in TEXTS], "mean")).max() < 1e-5


def test_everything_can_be_set_by_hand(tiny_encoders: Make) -> None:
    directory = tiny_encoders("e5-tiny")
    settings = settings_of(str(directory), query_prefix="", pooling="cls", titles="plain", query_tokens=8)
    encoder = TextEncoder(settings)
    assert np.abs(encoder.queries(TEXTS) - by_hand(directory, TEXTS, "cls", tokens=8)).max() < 1e-5
    assert settings.passage_prefix == "passage: "
    assert encoder.contents(Passage("1", "Oslo", "A city.")) == "Oslo\nA city."


def test_long_passages_are_cut_to_the_limit(tiny_encoders: Make) -> None:
    directory = tiny_encoders("other")
    encoder = TextEncoder(settings_of(str(directory), passage_tokens=10))
    assert np.array_equal(encoder.passages(["abcdefgh" + "z" * 40]), encoder.passages(["abcdefgh" + "y" * 70]))
    assert not np.allclose(encoder.queries(["abcdefgh" + "z" * 40]), encoder.queries(["abcdefgh" + "y" * 90]))


def test_batches_change_vectors_by_rounding_only(tiny_encoders: Make) -> None:
    encoder = TextEncoder.load(str(tiny_encoders("e5-tiny")), batch_size=3)
    texts = [f"{'word ' * (number % 9)}{number}" for number in range(20)]
    together = encoder.queries(texts)
    assert np.abs(together - np.concatenate([encoder.queries([text]) for text in texts])).max() < 1e-5
    bf16 = TextEncoder.load(str(tiny_encoders("e5-tiny")), precision="bf16").queries(texts)
    assert 0 < np.abs(together - bf16).max() < 0.05
    assert bf16.dtype == np.float32


def test_titles_of_e5_stand_in_quotes_and_missing_titles_leave_no_trace(tiny_encoders: Make) -> None:
    encoder = TextEncoder.load(str(tiny_encoders("e5-tiny")))
    assert encoder.contents(Passage("1", "Oslo", "A city.")) == '"Oslo"\nA city.'
    assert encoder.contents(Passage("1", "", "A city.")) == "A city."


def test_the_weights_identify_the_encoder(tiny_encoders: Make) -> None:
    one, same, other = (
        TextEncoder.load(str(tiny_encoders(name, seed=seed))).weights_sha256()
        for name, seed in (("e5-tiny", 0), ("other", 0), ("other", 1))
    )
    assert one == same != other


def test_broken_input_is_named(tiny_encoders: Make, tmp_path: Path) -> None:
    encoder = TextEncoder.load(str(tiny_encoders("other")))
    assert encoder.queries([]).shape == (0, 32)
    assert encoder.queries(["a\ud800b", ""]).shape == (2, 32)
    with pytest.raises(UsageError, match="cannot load the encoder"):
        TextEncoder.load(str(tmp_path / "nowhere"))
    (tmp_path / "config_sentence_transformers.json").write_text("{", "utf-8")
    with pytest.raises(DataError, match="not valid JSON"):
        settings_of(str(tmp_path))
