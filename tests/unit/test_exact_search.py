"""Exact search: the result of brute force, for every shape, precision and order of magnitude."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")

from factagent.errors import CorruptError, ServiceError, UsageError
from factagent.retrieval.dense import exact
from factagent.retrieval.dense.exact import ExactIndex
from factagent.retrieval.dense.vectors import VectorShards, rescore

Rows = NDArray[np.float16]


def unit_rows(count: int, dimension: int, seed: int, shared: float = 0.0) -> Rows:
    """Random directions; `shared` pulls all towards one, as the vectors of E5 are."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, dimension)) + shared * rng.standard_normal(dimension)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def queries_near(rows: Rows, count: int, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    near = rows[rng.integers(0, len(rows), count)].astype(np.float32)
    near += rng.standard_normal(near.shape).astype(np.float32) * 0.7 / np.sqrt(near.shape[1])
    return np.asarray(near / np.linalg.norm(near, axis=1, keepdims=True), dtype=np.float32)


def brute_force(rows: Rows, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    scores = (queries.astype(np.float64) @ rows.astype(np.float64).T).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, axis=1)


def cut(rows: Rows, *ends: int) -> VectorShards:
    return VectorShards(np.split(rows, ends))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("shared", [0.0, 2.0])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_top_k_is_that_of_brute_force(precision: exact.ScanPrecision, shared: float, k: int) -> None:
    rows = unit_rows(5000, 96, seed=1, shared=shared)
    queries = queries_near(rows, 33, seed=2)
    index = ExactIndex(cut(rows, 1234, 4321), device="cpu", precision=precision, chunk_rows=512)
    positions, scores = index.top(queries, k)
    wanted, values = brute_force(rows, queries, k)
    assert positions.tolist() == wanted.tolist()
    assert np.array_equal(scores, values)


@pytest.mark.parametrize("count", [1, 5, 127, 128, 129, 700])
def test_small_corpora_and_ragged_chunks(count: int) -> None:
    rows = unit_rows(count, 32, seed=count)
    queries = queries_near(rows, 4, seed=3)
    positions, scores = ExactIndex(VectorShards([rows]), device="cpu", chunk_rows=256).top(queries, 10)
    wanted, values = brute_force(rows, queries, 10)
    assert positions.tolist() == wanted.tolist()
    assert np.array_equal(scores, values)
    assert positions.shape == (4, min(10, count))


def test_a_query_gets_the_same_alone_and_in_any_batch() -> None:
    rows = unit_rows(3000, 64, seed=5, shared=1.0)
    queries = queries_near(rows, 600, seed=6)
    index = ExactIndex(VectorShards([rows]), device="cpu", chunk_rows=1024)
    positions, scores = index.top(queries, 5)
    for number in (0, 299, 511, 512, 599):
        alone = index.top(queries[number : number + 1], 5)
        assert alone[0].tolist() == positions[number : number + 1].tolist()
        assert np.array_equal(alone[1], scores[number : number + 1])


def test_equal_vectors_come_by_position_and_the_scan_widens_for_them() -> None:
    rows = unit_rows(2000, 64, seed=7)
    rows[[3, 50, 51, 700, 701, 702, 1500, *range(1800, 1990)]] = rows[3]
    index = ExactIndex(VectorShards([rows]), device="cpu", chunk_rows=256, slack=1)
    positions, _ = index.top(rows[3:4].astype(np.float32), 6)
    assert positions.tolist() == [[3, 50, 51, 700, 701, 702]]


def test_what_the_first_scan_misses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows within bf16's error of each other: without the check on what was left out, this fails."""
    rng = np.random.default_rng(8)
    rows = unit_rows(1, 64, seed=8).repeat(1000, axis=0)
    rows = (rows.astype(np.float32) + rng.standard_normal(rows.shape) * 2e-3).astype(np.float16)
    query = unit_rows(1, 64, seed=9, shared=0.0).astype(np.float32)
    wanted, _ = brute_force(rows, query, 3)
    assert ExactIndex(VectorShards([rows]), device="cpu", slack=1).top(query, 3)[0].tolist() == wanted.tolist()
    monkeypatch.setattr(exact, "_ERROR_FACTOR", -1000.0)
    assert ExactIndex(VectorShards([rows]), device="cpu", slack=1).top(query, 3)[0].tolist() != wanted.tolist()


def test_vectors_that_do_not_fit_are_read_from_their_files(caplog: pytest.LogCaptureFixture) -> None:
    rows = unit_rows(3000, 64, seed=10)
    queries = queries_near(rows, 7, seed=11)
    streamed = ExactIndex(cut(rows, 1000), device="cpu", chunk_rows=512, memory_bytes=0)
    assert streamed.resident_bytes == 0
    assert "read from disk in every search" in caplog.text
    held = ExactIndex(cut(rows, 1000), device="cpu", chunk_rows=512)
    assert held.resident_bytes == 3000 * 64 * 2
    assert streamed.top(queries, 3)[0].tolist() == held.top(queries, 3)[0].tolist()


def test_torch_threads_are_as_before_a_search() -> None:
    import torch

    before = torch.get_num_threads()
    rows = unit_rows(200, 32, seed=12)
    ExactIndex(VectorShards([rows]), device="cpu", threads=before + 1).top(rows[:2].astype(np.float32), 1)
    assert torch.get_num_threads() == before


def test_wrong_queries_and_options_are_refused() -> None:
    index = ExactIndex(VectorShards([unit_rows(10, 8, seed=13)]), device="cpu")
    query = np.ones((1, 8), dtype=np.float32)
    with pytest.raises(ValueError, match="k=0: must be at least 1"):
        index.top(query, 0)
    with pytest.raises(ValueError, match=r"shape \(1, 7\).*\(n, 8\)"):
        index.top(query[:, :7], 1)
    with pytest.raises(ValueError, match="NaN or infinity"):
        index.top(query * np.nan, 1)
    assert index.top(np.zeros((0, 8), dtype=np.float32), 3)[0].shape == (0, 3)
    with pytest.raises(UsageError, match="threads=0"):
        ExactIndex(index.vectors, threads=0)
    with pytest.raises(UsageError, match="device 'gpu'"):
        ExactIndex(index.vectors, device="gpu")
    with pytest.raises(ServiceError, match="device 'cuda:99'"):
        ExactIndex(index.vectors, device="cuda:99")


def test_rescored_positions_that_are_missing_score_nothing() -> None:
    rows = unit_rows(6, 8, seed=14)
    scores = rescore(cut(rows, 4), rows[:1].astype(np.float32), np.array([[5, -1, 0]]))
    assert scores[0, 1] == -np.inf
    assert scores[0, 2] == pytest.approx(1.0, abs=1e-3)


def test_shards_of_another_kind_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "good.npy", unit_rows(3, 8, seed=15))
    np.save(tmp_path / "wide.npy", unit_rows(3, 9, seed=15))
    np.save(tmp_path / "whole.npy", np.zeros((3, 8), dtype=np.int32))
    for bad in ("wide.npy", "whole.npy"):
        with pytest.raises(CorruptError, match=bad):
            VectorShards.open([tmp_path / "good.npy", tmp_path / bad])
    with pytest.raises(ValueError, match="one d for all"):
        VectorShards([])
