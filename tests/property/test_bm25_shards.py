"""One shard or many: the same bytes, the same results, and bm25s's scores."""

from __future__ import annotations

import os
import tempfile
from itertools import islice
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.data.corpus import iter_passages
from factagent.retrieval import bm25_shards
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.bm25_build import FILE_NAMES, SHARD_WORDS, write_index
from factagent.retrieval.bm25_words import tokenise
from factagent.retrieval.manifest import MANIFEST_NAME, BM25Settings
from factagent.types import Passage

METHODS = ("lucene", "robertson", "atire")
WORDS = st.sampled_from(["a", "b", "c", "dd", "é", "東京", "w1", "w2", "w3", "the", "-", ""])
TEXTS = st.lists(WORDS, max_size=12).map(" ".join)
SETTINGS = st.builds(
    BM25Settings,
    k1=st.floats(0.01, 5),
    b=st.floats(0, 1),
    method=st.sampled_from(METHODS),
    stop_words=st.sampled_from(["none", "en"]),
)


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in (*FILE_NAMES, MANIFEST_NAME)}


def bm25s_arrays(passages: list[Passage], chosen: BM25Settings) -> dict[str, np.ndarray]:
    documents = [tokenise(f"{p.title} {p.text}", chosen) for p in passages]
    terms: dict[str, int] = {}
    numbers = [[terms.setdefault(word, len(terms)) for word in words] for words in documents]
    scorer = bm25s.BM25(k1=chosen.k1, b=chosen.b, method=chosen.method, backend="numpy", csc_backend="numpy")
    scorer.index((numbers, terms), create_empty_token=False, show_progress=False)
    return scorer.scores


def check_against_bm25s(directory: Path, passages: list[Passage], chosen: BM25Settings) -> None:
    wanted = bm25s_arrays(passages, chosen)
    for name, key in (("scores", "data"), ("positions", "indices"), ("starts", "indptr")):
        found = np.load(directory / f"{name}.npy")
        assert np.array_equal(found, wanted[key]), name


@settings(max_examples=60)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=12),
    chosen=SETTINGS,
    shard_words=st.integers(1, 40),
    block=st.integers(1, 9),
)
def test_shards_leave_no_trace(texts: list[str], chosen: BM25Settings, shard_words: int, block: int) -> None:
    passages = [Passage(f"p{n}", "t" * (n % 2), text) for n, text in enumerate([*texts, "some words"])]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        one, many = Path(folder) / "one", Path(folder) / "many"
        patch.setattr(bm25_shards, "BLOCK_POSTINGS", block)
        patch.setattr(os, "fsync", lambda handle: None)
        write_index(passages, many, chosen, shard_words=shard_words)
        patch.undo()
        write_index(passages, one, chosen)
        assert bytes_of(one) == bytes_of(many)
        check_against_bm25s(many, passages, chosen)
        queries = [*texts, "w1 w1 w2 some"]
        assert BM25Index.load(one).search(queries, 4) == BM25Index.load(many).search(queries, 4)


@pytest.mark.parametrize("method", METHODS)
def test_shards_of_real_passages_have_the_scores_of_bm25s(shared_data: Path, tmp_path: Path, method: str) -> None:
    passages = list(islice(iter_passages(shared_data / "corpora" / "hotpotqa.jsonl.gz"), 1500))
    chosen = BM25Settings.model_validate({"method": method})
    for shard_words in (SHARD_WORDS, 7_001, 50_000):
        write_index(passages, tmp_path / str(shard_words), chosen, shard_words=shard_words)
    first = bytes_of(tmp_path / str(SHARD_WORDS))
    assert first == bytes_of(tmp_path / "7001") == bytes_of(tmp_path / "50000")
    check_against_bm25s(tmp_path / "7001", passages, chosen)
