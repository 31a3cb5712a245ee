"""Rank fusion, and opening retrievers by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from factagent.errors import ConfigError, CorruptError, DataError, UsageError
from factagent.retrieval.base import RetrievalError
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.hybrid import HybridRetriever, read_hybrid
from factagent.retrieval.opening import describe, index_format, open_retriever
from factagent.types import Passage

CORPUS = [Passage(f"p{n}", f"Town {n}", f"Town {n} lies on the river {n % 3}.") for n in range(12)]


class Fixed:
    """A retriever with one ranking for every query."""

    def __init__(self, *ids: str) -> None:
        self.ids, self.depths = ids, list[int]()

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        self.depths.append(top_k)
        return [tuple(Passage(i, "", f"text {i}", 9.0) for i in self.ids[:top_k])] * len(queries)


class Broken:
    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        raise RetrievalError("down")


@pytest.fixture(scope="module")
def bm25(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("indexes") / "bm25"
    BM25Index.build(CORPUS).save(directory)
    return directory


def test_fused_scores_are_sums_of_reciprocal_ranks() -> None:
    found = HybridRetriever([Fixed("a", "b", "c"), Fixed("b", "d")]).search(["q", "r"], 3)
    assert [passage.id for passage in found[0]] == ["b", "a", "d"]
    assert found[0][0].score == pytest.approx(1 / 62 + 1 / 61)
    assert found[0][1].score == pytest.approx(1 / 61)
    assert found[0][0].text == "text b"
    assert found[0] == found[1]


def test_ties_are_ordered_by_best_rank_then_id() -> None:
    assert [p.id for p in HybridRetriever([Fixed("z"), Fixed("a")]).search(["q"], 2)[0]] == ["a", "z"]
    # 1/1 = 1/2 + 1/2: x has the better rank, although it stands in one ranking only.
    three = HybridRetriever([Fixed("x", "a"), Fixed("y", "a")], k=0)
    assert [p.id for p in three.search(["q"], 3)[0]] == ["x", "y", "a"]


def test_weights_and_depth() -> None:
    one, two = Fixed("a", "b"), Fixed("b", "a")
    assert HybridRetriever([one, two], weights=[1, 3]).search(["q"], 1)[0][0].id == "b"
    HybridRetriever([one, two], depth=7).search(["q"], 9)
    assert one.depths[-1] == two.depths[-1] == 9
    HybridRetriever([one, two], depth=7).search(["q"], 2)
    assert one.depths[-1] == 7


def test_wrong_hybrids_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 2"):
        HybridRetriever([Fixed("a")])
    for wrong in ([1.0], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(UsageError, match="weights="):
            HybridRetriever([Fixed("a"), Fixed("b")], weights=wrong)
    with pytest.raises(UsageError, match="k=-1"):
        HybridRetriever([Fixed("a"), Fixed("b")], k=-1)
    with pytest.raises(ValueError, match="top_k=0"):
        HybridRetriever([Fixed("a"), Fixed("b")]).search(["q"], 0)
    with pytest.raises(RetrievalError, match="down"):
        HybridRetriever([Fixed("a"), Broken()]).search(["q"], 1)


def test_an_index_opens_by_its_directory(bm25: Path) -> None:
    assert [p.id for p in open_retriever(bm25).search(["town 7"], 1)[0]] == ["p7"]
    assert index_format(bm25) == "factagent-bm25"
    described = describe(bm25)
    assert (described["kind"], described["directory"], described["passages"]) == ("bm25", str(bm25), 12)
    assert described["corpus_sha256"] == BM25Index(bm25).manifest.corpus_sha256
    json.dumps(described)


def test_hybrids_open_by_sum_file_and_directory(bm25: Path, tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    toml = tmp_path / "pair" / "hybrid.toml"
    toml.write_text(f'retrievers = ["{bm25}", "{bm25}"]\nweights = [1, 2]\nk = 10\n', "utf-8")
    for spec in (f"{bm25}+{bm25}", str(toml), str(toml.parent)):
        assert open_retriever(spec).search(["town 7"], 1)[0][0].id == "p7"
        described = describe(spec)
        assert described["kind"] == "hybrid"
        assert described["corpus_sha256"] == describe(bm25)["corpus_sha256"]
    assert describe(toml)["weights"] == [1.0, 2.0]


def test_directories_in_a_hybrid_are_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "hybrid.toml").write_text('retrievers = ["bm25", "http://host/x"]\n', "utf-8")
    assert read_hybrid(tmp_path / "hybrid.toml").retrievers == (str(tmp_path / "bm25"), "http://host/x")
    (tmp_path / "hybrid.toml").write_text('retrievers = ["bm25"]\ndepht = 3\n', "utf-8")
    with pytest.raises(ConfigError, match=r"depht|retrievers"):
        read_hybrid(tmp_path / "hybrid.toml")


def test_parts_over_different_corpora_are_refused(bm25: Path, tmp_path: Path) -> None:
    BM25Index.build(CORPUS[:5]).save(tmp_path / "other")
    with pytest.raises(DataError, match="different corpora"):
        open_retriever(f"{bm25}+{tmp_path / 'other'}")


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no directory; give an index directory"):
        open_retriever(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no index"):
        open_retriever(tmp_path)
    for content, error, message in (
        ('{"format": "other"}', DataError, "key 'format' is 'other'"),
        ("[]", DataError, "key 'format' is None"),
        ("{", CorruptError, "not valid JSON"),
    ):
        (tmp_path / "manifest.json").write_text(content, "utf-8")
        with pytest.raises(error, match=message):
            open_retriever(tmp_path)
    with pytest.raises(UsageError, match="no option 'thread'"):
        open_retriever(tmp_path, thread=2)


def test_urls_open_a_client_without_asking_the_server() -> None:
    pytest.importorskip("httpx")
    assert describe("http://127.0.0.1:1") == {"kind": "server", "url": "http://127.0.0.1:1"}
    retriever = open_retriever("http://127.0.0.1:1")
    retriever.close()  # type: ignore[attr-defined]


def test_dense_indexes_open_and_fuse(bm25: Path, tiny_encoders: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from factagent.retrieval.dense.embed import build_dense
    from factagent.retrieval.dense.encode import TextEncoder

    build_dense(CORPUS, tmp_path / "dense", TextEncoder.load(str(tiny_encoders("e5-tiny"))))
    found = open_retriever(f"{bm25}+{tmp_path / 'dense'}", device="cpu").search(["town 7", "river"], 12)
    assert [len(passages) for passages in found] == [12, 12]
    assert describe(tmp_path / "dense")["encoder"]["query_prefix"] == "query: "  # type: ignore[index]
