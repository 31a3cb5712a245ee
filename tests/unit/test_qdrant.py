"""The Qdrant adapter over the client's local mode, and its errors against a server that misbehaves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factagent.errors import UsageError
from factagent.retrieval import qdrant
from factagent.retrieval.base import RetrievalError
from factagent.retrieval.dense.manifest import EncoderRecord
from factagent.retrieval.dense.vectors import VectorShards
from factagent.retrieval.qdrant import API_KEY_VARIABLE, CollectionRecord, QdrantRetriever, connect, upload
from factagent.types import Passage

pytest.importorskip("qdrant_client")
ROWS, DIMENSION = 700, 8
ENCODER = EncoderRecord(name="table", weights_sha256="0" * 64, precision="fp32")
RECORD = CollectionRecord(encoder=ENCODER, dimension=DIMENSION, passages=ROWS, vectors="a" * 64)


class Table:
    """Queries that name a row of a matrix."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def queries(self, texts: Any) -> np.ndarray:
        return self.rows[[int(text) for text in texts]]


class Passages:
    def passage(self, position: int) -> Passage:
        return Passage(f"p{position}", f"Title {position}", f"text of {position}")


@pytest.fixture(scope="module")
def vectors() -> VectorShards:
    rows = np.random.default_rng(0).standard_normal((ROWS, DIMENSION))
    rows[300] = rows[10]  # a tie
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    return VectorShards([rows[:450], rows[450:]])


@pytest.fixture
def client() -> Any:
    client = connect(":memory:")
    yield client
    client.close()


def test_the_same_as_brute_force(client: Any, vectors: VectorShards) -> None:
    assert upload(client, "wiki", RECORD, vectors, Passages()) == ROWS
    rows = vectors.read(0, ROWS).astype(np.float32)
    found = QdrantRetriever(client, "wiki", Table(rows)).search(["10", "5", "10"], 5)
    assert found[0] == found[2]
    assert [one.id for one in found[0][:2]] == ["p10", "p300"]  # equal scores by position
    wanted = np.argsort(-(rows[5] @ rows.T), kind="stable")[:5]
    assert [one.id for one in found[1]] == [f"p{n}" for n in wanted]
    assert found[1][0] == Passage("p5", "Title 5", "text of 5", found[1][0].score)
    assert found[1][0].score == pytest.approx(float(rows[5] @ rows[5]), abs=1e-3)


def test_an_interrupted_upload_goes_on(tmp_path: Path, vectors: VectorShards) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if done > 256:
            raise KeyboardInterrupt

    place = str(tmp_path / "local")
    client = connect(place)
    with pytest.raises(KeyboardInterrupt):
        upload(client, "wiki", RECORD, vectors, Passages(), report=stop)
    client.close()
    client = connect(place)
    assert qdrant.count_points(client, "wiki") == 512
    written: list[int] = []
    upload(client, "wiki", RECORD, vectors, Passages(), report=lambda stage, done, total: written.append(done))
    assert written == [ROWS]
    assert qdrant.read_record(client, "wiki") == RECORD
    client.close()


def test_a_collection_of_other_vectors(client: Any, vectors: VectorShards) -> None:
    upload(client, "wiki", RECORD, vectors, Passages())
    with pytest.raises(UsageError, match="other vectors"):
        upload(client, "wiki", RECORD.model_copy(update={"vectors": "b" * 64}), vectors, Passages())


def test_a_foreign_collection(client: Any) -> None:
    from qdrant_client import models

    client.create_collection("x", vectors_config=models.VectorParams(size=DIMENSION, distance=models.Distance.DOT))
    with pytest.raises(RetrievalError, match="not loaded by factagent"):
        qdrant.read_record(client, "x")
    client.upsert("x", models.Batch(ids=[1], vectors=[[1.0] * DIMENSION], payloads=[{"id": 3}]))
    with pytest.raises(RetrievalError, match="lacks id, title or text"):
        QdrantRetriever(client, "x", Table(np.ones((1, DIMENSION), np.float32))).search(["0"], 1)


def test_missing_collection_empty_batch_and_top_k(client: Any) -> None:
    retriever = QdrantRetriever(client, "nowhere", Table(np.ones((1, DIMENSION), np.float32)))
    with pytest.raises(RetrievalError, match="'nowhere'"):
        retriever.search(["0"], 1)
    assert retriever.search([], 1) == []
    with pytest.raises(ValueError, match="top_k=0"):
        retriever.search(["0"], 0)


def test_points_of_somebody_else(client: Any, vectors: VectorShards) -> None:
    from qdrant_client import models

    upload(client, "wiki", RECORD, vectors, Passages())
    client.upsert("wiki", models.Batch(ids=[ROWS + 5], vectors=[[1.0] * DIMENSION], payloads=[{}]))
    with pytest.raises(RetrievalError, match="somebody else"):
        upload(client, "wiki", RECORD, vectors, Passages())


def test_nan_is_not_uploaded(client: Any) -> None:
    rows = np.ones((3, DIMENSION), np.float16)
    rows[1, 1] = np.nan
    record = RECORD.model_copy(update={"passages": 3})
    with pytest.raises(RetrievalError, match="NaN"):
        upload(client, "wiki", record, VectorShards([rows]), Passages())


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://user@host", "http://host:99999", "http://h?key=1"])
def test_malformed_urls(url: str) -> None:
    with pytest.raises(UsageError, match="Qdrant URL"):
        connect(url)


def test_a_key_does_not_travel_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "secret-canary")
    with pytest.raises(UsageError, match="https only") as caught:
        connect("http://example.invalid:6333")
    assert "secret-canary" not in str(caught.value)
    connect("http://127.0.0.1:1").close()


@pytest.mark.parametrize("spec", ["qdrant+http://h:1", "qdrant+x", "qdrant+"])
def test_malformed_addresses(spec: str) -> None:
    with pytest.raises(UsageError):
        qdrant.open_qdrant(spec)


def test_a_server_that_is_not_there() -> None:
    client = connect("http://127.0.0.1:1", timeout_s=2)
    with pytest.raises(RetrievalError, match=r"refused|Connect"):
        QdrantRetriever(client, "wiki", Table(np.ones((1, DIMENSION), np.float32))).search(["0"], 1)
    client.close()
