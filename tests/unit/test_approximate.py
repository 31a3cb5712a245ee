"""Approximate search: recall, exact scores, resumed builds, and files that were tampered with."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from factagent.errors import CorruptError, DataError, TryAgainError, UsageError
from factagent.retrieval.building import building_path, hold
from factagent.retrieval.dense.approximate import ApproximateIndex
from factagent.retrieval.dense.approximate_build import ApproximateSettings, build_approximate
from factagent.retrieval.dense.approximate_manifest import (
    FAISS_NAME,
    FILE_NAMES,
    LISTS_NAME,
    MANIFEST_NAME,
    PRESETS,
    SIZES_NAME,
    list_count,
    read_approximate_manifest,
)
from factagent.retrieval.dense.calibration import exact_top
from factagent.retrieval.dense.vectors import VectorShards

pytest.importorskip("faiss")
ROWS, DIMENSION = 3000, 32
VECTORS = "a" * 64


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def shards() -> VectorShards:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((60, DIMENSION))
    rows = unit(centres[rng.integers(0, 60, ROWS)] + 0.7 * rng.standard_normal((ROWS, DIMENSION))).astype(np.float16)
    return VectorShards([rows[:1100], rows[1100:2500], rows[2500:]])


@pytest.fixture(scope="module")
def queries(shards: VectorShards) -> np.ndarray:
    rng = np.random.default_rng(1)
    rows = shards.gather(rng.choice(ROWS, 40, replace=False))
    return unit(rows + 0.1 * rng.standard_normal(rows.shape))


@pytest.fixture(scope="module", params=list(PRESETS))
def built(request: pytest.FixtureRequest, shards: VectorShards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param) / "approximate"
    build_approximate(shards, VECTORS, directory, ApproximateSettings(request.param, part_rows=700, queries=100))
    return directory


def exact(shards: VectorShards, queries: np.ndarray, k: int) -> np.ndarray:
    return exact_top(shards, queries, k, lambda done: None)


def test_recall_reaches_the_target_and_is_kept(built: Path, shards: VectorShards, queries: np.ndarray) -> None:
    manifest = read_approximate_manifest(built)
    assert manifest.recall.met
    assert manifest.recall.measured >= 0.95
    assert manifest.recall.source == "perturbed"
    assert 1 <= manifest.nprobe <= manifest.nlist == list_count(ROWS)
    assert manifest.passages == ROWS
    size = sum((built / name).stat().st_size for name in FILE_NAMES)
    assert manifest.bytes_per_vector == pytest.approx(size / ROWS)
    found, _ = ApproximateIndex.load(built, shards, VECTORS).top(queries, 3)
    # Other queries than those that chose nprobe.
    assert np.mean([len(set(a) & set(b)) / 3 for a, b in zip(exact(shards, queries, 3), found, strict=True)]) > 0.85


def test_all_lists_and_many_candidates_are_exact(built: Path, shards: VectorShards, queries: np.ndarray) -> None:
    manifest = read_approximate_manifest(built)
    index = ApproximateIndex.load(built, shards, VECTORS, nprobe=manifest.nlist, rerank=1000)
    positions, scores = index.top(queries, 7)
    assert positions.dtype == np.int64
    assert scores.dtype == np.float32
    assert np.array_equal(positions, exact(shards, queries, 7))
    rows = shards.gather(positions.ravel()).reshape(len(queries), 7, DIMENSION)
    assert np.allclose(scores, np.einsum("qd,qkd->qk", queries, rows), atol=1e-6)


def test_the_lists_hold_every_position_once(built: Path, shards: VectorShards) -> None:
    index = ApproximateIndex.load(built, shards, VECTORS, nprobe=read_approximate_manifest(built).nlist)
    positions, _ = index.top(shards.gather(np.arange(3)), ROWS + 5)
    assert positions.shape == (3, ROWS)
    assert all(np.array_equal(np.sort(row), np.arange(ROWS)) for row in positions)


def test_a_result_does_not_depend_on_its_batch(built: Path, shards: VectorShards, queries: np.ndarray) -> None:
    index = ApproximateIndex.load(built, shards, VECTORS, threads=2)
    positions, scores = index.top(queries, 5)
    for number in range(len(queries)):
        alone = index.top(queries[number : number + 1], 5)
        assert np.array_equal(alone[0][0], positions[number])
        assert np.array_equal(alone[1][0], scores[number])


def test_more_lists_are_read_where_a_few_hold_too_little(built: Path, shards: VectorShards) -> None:
    index = ApproximateIndex.load(built, shards, VECTORS, nprobe=1)
    positions, scores = index.top(shards.gather(np.array([5, 900])), 1500)
    assert (positions >= 0).all()
    assert np.isfinite(scores).all()


def test_without_rerank_the_codes_score(built: Path, shards: VectorShards, queries: np.ndarray) -> None:
    index = ApproximateIndex.load(built, shards, VECTORS, rerank=0)
    positions, scores = index.top(queries, 3)
    true = np.einsum("qd,qkd->qk", queries, shards.gather(positions.ravel()).reshape(-1, 3, DIMENSION))
    assert not np.array_equal(scores, true)
    assert np.abs(scores - true).max() < 0.5
    assert (np.diff(scores, axis=1) <= 0).all()


def test_equal_vectors_come_by_position(tmp_path: Path, shards: VectorShards) -> None:
    row = shards.gather(np.array([0])).astype(np.float16)
    twins = VectorShards([np.repeat(row, 50, axis=0), shards.read(0, 400)])
    build_approximate(twins, VECTORS, tmp_path / "a", ApproximateSettings("ivf-sq8", rerank=60))
    positions, _ = ApproximateIndex.load(tmp_path / "a", twins, VECTORS).top(row.astype(np.float32), 50)
    assert positions[0].tolist() == list(range(50))


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("preset", list(PRESETS))
def test_small_corpora(tmp_path: Path, shards: VectorShards, rows: int, preset: str) -> None:
    few = VectorShards([shards.read(0, rows)])
    manifest = build_approximate(few, VECTORS, tmp_path / "a", ApproximateSettings(preset))  # type: ignore[arg-type]
    assert manifest.recall.measured >= 0.95
    positions, _ = ApproximateIndex.load(tmp_path / "a", few, VECTORS).top(few.gather(np.array([0])), 3)
    assert positions.shape == (1, min(3, rows))
    assert positions[0, 0] == 0


def test_a_killed_build_goes_on(
    tmp_path: Path, shards: VectorShards, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "approximate"
    settings = ApproximateSettings(read_approximate_manifest(built).preset, part_rows=700, queries=100)

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "add" and done > 1400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_approximate(shards, VECTORS, directory, settings, report=stop)
    assert not directory.exists()
    work = building_path(directory)
    kept = {path: path.stat().st_mtime_ns for path in work.glob("*.faiss")}
    assert [path.name for path in sorted(kept)] == ["part-00000.faiss", "part-00001.faiss", "trained.faiss"]
    (work / "part-00002.faiss").write_bytes(b"torn")  # written, but not recorded
    read: list[int] = []

    def note(stage: str, done: int, total: int) -> None:
        if stage == "add":
            read.append(done)

    build_approximate(shards, VECTORS, directory, settings, report=note)
    assert read[:2] == [700, 1400]  # passed over, not read again
    assert not work.exists()
    for name in (LISTS_NAME, SIZES_NAME):
        assert (directory / name).read_bytes() == (built / name).read_bytes()


@pytest.mark.parametrize("change", ["part", "settings", "json"])
def test_an_unfinished_build_that_does_not_fit_is_begun_anew(
    tmp_path: Path, shards: VectorShards, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "merge":
            raise KeyboardInterrupt

    directory, settings = tmp_path / "a", ApproximateSettings("ivf-sq8", part_rows=2000, queries=20)
    with pytest.raises(KeyboardInterrupt):
        build_approximate(shards, VECTORS, directory, settings, report=stop)
    work = building_path(directory)
    if change == "part":
        (work / "part-00000.faiss").write_bytes(b"other")
    if change == "settings":
        settings = ApproximateSettings("ivf-rabitq", part_rows=2000, queries=20)
    if change == "json":
        (work / "progress.json").write_text("[]", "utf-8")
    assert build_approximate(shards, VECTORS, directory, settings).recall.met
    assert "starting anew" in caplog.text


def test_two_builds_in_one_place(tmp_path: Path, shards: VectorShards) -> None:
    with hold(building_path(tmp_path / "a")), pytest.raises(TryAgainError):
        build_approximate(shards, VECTORS, tmp_path / "a", ApproximateSettings("ivf-sq8"))


def test_a_target_that_is_missed_is_said(
    tmp_path: Path, shards: VectorShards, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ApproximateSettings("ivf-rabitq", rerank=0, target=1.0, queries=50)
    manifest = build_approximate(shards, VECTORS, tmp_path / "a", settings)
    assert not manifest.recall.met
    assert "below the target 1.00" in caplog.text
    caplog.clear()
    ApproximateIndex.load(tmp_path / "a", shards, VECTORS)
    assert "below the target 1.00" in caplog.text


def test_given_queries_and_settings_are_used(tmp_path: Path, shards: VectorShards, queries: np.ndarray) -> None:
    settings = ApproximateSettings("ivf-sq8", nlist=10, nprobe=7, rerank=4)
    manifest = build_approximate(shards, VECTORS, tmp_path / "a", settings, queries=queries)
    assert (manifest.nlist, manifest.nprobe, manifest.rerank) == (10, 7, 4)
    assert (manifest.recall.source, manifest.recall.queries) == ("given", len(queries))
    with pytest.raises(UsageError, match="exists"):
        build_approximate(shards, VECTORS, tmp_path / "a", settings)
    build_approximate(shards, VECTORS, tmp_path / "a", settings, overwrite=True)


def test_nan_in_the_vectors(tmp_path: Path, shards: VectorShards) -> None:
    rows = shards.read(0, 500)
    rows[400, 3] = np.nan
    with pytest.raises(CorruptError, match="NaN"):
        build_approximate(VectorShards([rows]), VECTORS, tmp_path / "a", ApproximateSettings("ivf-sq8"))


@pytest.mark.parametrize("name", FILE_NAMES)
@pytest.mark.parametrize("harm", ["flip", "cut", "pickle", "missing"])
def test_files_that_differ_are_not_read(
    tmp_path: Path, shards: VectorShards, built: Path, name: str, harm: str
) -> None:
    for each in (*FILE_NAMES, MANIFEST_NAME):
        (tmp_path / each).write_bytes((built / each).read_bytes())
    data = (tmp_path / name).read_bytes()
    harmed = {"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-9], "pickle": pickle.dumps([1])}
    (tmp_path / name).unlink() if harm == "missing" else (tmp_path / name).write_bytes(harmed[harm])
    with pytest.raises(CorruptError, match=name):
        ApproximateIndex.load(tmp_path, shards, VECTORS)


def test_files_of_two_builds_do_not_fit(tmp_path: Path, shards: VectorShards, built: Path) -> None:
    for each in (*FILE_NAMES, MANIFEST_NAME):
        (tmp_path / each).write_bytes((built / each).read_bytes())
    np.save(tmp_path / SIZES_NAME, np.ones(3, np.uint64), allow_pickle=False)
    manifest = json.loads((tmp_path / MANIFEST_NAME).read_text())
    from factagent.retrieval.manifest import file_record

    manifest["files"][SIZES_NAME] = file_record(tmp_path / SIZES_NAME).model_dump()
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(CorruptError, match="do not fit each other"):
        ApproximateIndex.load(tmp_path, shards, VECTORS)
    (tmp_path / FAISS_NAME).write_bytes(b"IxFI")
    manifest["files"][FAISS_NAME] = file_record(tmp_path / FAISS_NAME).model_dump()
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(CorruptError, match="faiss cannot read it"):
        ApproximateIndex.load(tmp_path, shards, VECTORS)


@pytest.mark.parametrize(
    ("content", "error"), [("{", CorruptError), ("[]", DataError), ('{"format": "factagent-bm25"}', DataError)]
)
def test_a_manifest_of_another_kind(tmp_path: Path, shards: VectorShards, content: str, error: type) -> None:
    (tmp_path / MANIFEST_NAME).write_text(content)
    with pytest.raises(error, match=MANIFEST_NAME):
        ApproximateIndex.load(tmp_path, shards, VECTORS)


def test_other_vectors_settings_and_queries(tmp_path: Path, shards: VectorShards, built: Path) -> None:
    with pytest.raises(DataError, match="holds no approximate index"):
        ApproximateIndex.load(tmp_path, shards, VECTORS)
    with pytest.raises(CorruptError, match="other vectors"):
        ApproximateIndex.load(built, shards, "b" * 64)
    for bad in ({"nprobe": 0}, {"nprobe": 10_000}, {"rerank": -1}):
        with pytest.raises(UsageError, match="must be"):
            ApproximateIndex.load(built, shards, VECTORS, **bad)
    index = ApproximateIndex.load(built, shards, VECTORS)
    for rows, k in ((np.ones((1, 3)), 1), (np.ones((1, DIMENSION)), 0), (np.full((1, DIMENSION), np.nan), 1)):
        with pytest.raises(ValueError, match=r"shape|at least"):
            index.top(rows, k)
    assert index.top(np.zeros((0, DIMENSION), np.float32), 3)[0].shape == (0, 3)
    for bad in ({"nlist": 0}, {"target": 0.0}, {"rerank": -1}, {"preset": "ivf-pq"}):
        with pytest.raises(UsageError):
            ApproximateSettings(**{"preset": "ivf-sq8", **bad})
    with pytest.raises(UsageError, match="number of vectors"):
        build_approximate(shards, VECTORS, tmp_path / "a", ApproximateSettings("ivf-sq8", nlist=ROWS + 1))


@pytest.mark.parametrize(
    ("passages", "lists"), [(1, 1), (100, 2), (100_000, 512), (1_000_000, 2048), (21_000_000, 8192)]
)
def test_list_count(passages: int, lists: int) -> None:
    assert list_count(passages) == lists
