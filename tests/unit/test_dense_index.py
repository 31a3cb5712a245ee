"""Dense indexes: what a build writes, what opening refuses, and search over real parts."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from factagent.errors import CorruptError, DataError, TryAgainError, UsageError
from factagent.retrieval.building import ChangedBuildError, building_path, hold
from factagent.retrieval.dense import embed
from factagent.retrieval.dense.embed import build_dense
from factagent.retrieval.dense.encode import TextEncoder
from factagent.retrieval.dense.index import DenseIndex
from factagent.retrieval.dense.manifest import read_dense_manifest, shard_name
from factagent.retrieval.passages import PassageStore, corpus_sha256
from factagent.types import Passage

Make = Callable[..., Path]
PASSAGES = [
    Passage(f"p{number}", f"Town {number}", f"Town {number} lies on river {number * 7 % 23}.") for number in range(50)
]


@pytest.fixture(scope="module")
def encoder(tiny_encoders: Make) -> TextEncoder:
    return TextEncoder.load(str(tiny_encoders("e5-tiny")), batch_size=8)


@pytest.fixture(scope="module")
def built(encoder: TextEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dense") / "index"
    build_dense(PASSAGES, directory, encoder, shard_size=16)
    return directory


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def stopping_after(count: int) -> Iterator[Passage]:
    yield from PASSAGES[:count]
    raise KeyboardInterrupt


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_index_holds_vectors_passages_and_how_it_was_made(built: Path, encoder: TextEncoder) -> None:
    manifest = read_dense_manifest(built)
    assert manifest.shards == tuple(map(shard_name, range(4)))
    assert (manifest.passages, manifest.dimension, manifest.shard_size) == (50, 32, 16)
    assert manifest.corpus_sha256 == corpus_sha256(PASSAGES)
    assert manifest.encoder.passage_prefix == "passage: "
    shards = [np.load(built / name) for name in manifest.shards]
    assert [shard.shape[0] for shard in shards] == [16, 16, 16, 2]
    wanted = encoder.passages([encoder.contents(passage) for passage in PASSAGES])
    assert np.abs(np.concatenate(shards).astype(np.float32) - wanted).max() < 1e-3
    assert shards[0].dtype == np.float16
    store = PassageStore(built)
    assert [store.passage(position) for position in range(len(store))] == PASSAGES
    assert set(content(built)) == {"manifest.json", "passages.jsonl", "offsets.npy", *manifest.shards}
    assert not building_path(built).exists()


@pytest.mark.parametrize("stop", [3, 16, 40])
def test_an_interrupted_build_goes_on_to_the_same_bytes(
    built: Path, encoder: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    target = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_dense(stopping_after(stop), target, encoder, shard_size=16)
    assert not target.exists()
    embedded: list[int] = []
    passages = encoder.passages
    monkeypatch.setattr(encoder, "passages", lambda texts: embedded.append(len(texts)) or passages(texts))
    build_dense(PASSAGES, target, encoder, shard_size=16)
    assert sum(embedded) == 50 - stop // 16 * 16
    assert content(target) == content(built)


def test_a_finished_shard_that_was_damaged_is_embedded_again(built: Path, encoder: TextEncoder, tmp_path: Path) -> None:
    target = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_dense(stopping_after(40), target, encoder, shard_size=16)
    with (building_path(target) / "new" / shard_name(1)).open("r+b") as stream:
        stream.seek(200)
        stream.write(b"\xff")
    build_dense(PASSAGES, target, encoder, shard_size=16)
    assert content(target) == content(built)


def test_a_build_does_not_go_on_with_another_corpus_or_other_settings(
    encoder: TextEncoder, tiny_encoders: Make, tmp_path: Path
) -> None:
    target = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_dense(stopping_after(20), target, encoder, shard_size=16)
    with pytest.raises(ChangedBuildError, match="passages 1 to 16"):
        build_dense([PASSAGES[1], *PASSAGES[1:]], target, encoder, shard_size=16)
    with pytest.raises(ChangedBuildError, match="shard_size=16, this one 8"):
        build_dense(PASSAGES, target, encoder, shard_size=8)
    other = TextEncoder.load(str(tiny_encoders("e5-tiny", seed=1)))
    with pytest.raises(ChangedBuildError, match="name="):
        build_dense(PASSAGES, target, other, shard_size=16)
    with hold(building_path(target)), pytest.raises(TryAgainError, match="another process"):
        build_dense(PASSAGES, target, encoder, shard_size=16)


def test_corpora_that_cannot_be_indexed(encoder: TextEncoder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no passages"):
        build_dense([], tmp_path / "a", encoder)
    with pytest.raises(DataError, match="'p3' occurs twice"):
        build_dense([*PASSAGES[:20], PASSAGES[3]], tmp_path / "b", encoder, shard_size=16)
    with pytest.raises(DataError, match="not valid Unicode"):
        build_dense([Passage("1", "", "\ud800")], tmp_path / "c", encoder)
    with pytest.raises(UsageError, match="shard_size=0"):
        build_dense(PASSAGES, tmp_path / "d", encoder, shard_size=0)


def test_an_index_is_replaced_only_when_told(copy: Path, encoder: TextEncoder) -> None:
    with pytest.raises(UsageError, match="exists"):
        build_dense(PASSAGES, copy, encoder)
    build_dense(PASSAGES[:5], copy, encoder, overwrite=True)
    assert read_dense_manifest(copy).passages == 5


def test_search_finds_by_inner_product(built: Path, encoder: TextEncoder) -> None:
    index = DenseIndex(built, device="cpu")
    queries = ["which river", "Town 7", "which river", "x"]
    found = index.search(queries, 4)
    vectors = np.concatenate([np.load(built / name) for name in index.manifest.shards]).astype(np.float32)
    scores = encoder.queries(queries) @ vectors.T
    for row, passages in zip(scores, found, strict=True):
        order = np.argsort(-row, kind="stable")[:4]
        assert [passage.id for passage in passages] == [f"p{position}" for position in order]
        assert np.allclose([passage.score for passage in passages], row[order], atol=1e-5)
    assert found[0] == found[2]
    assert found[1][0].title.startswith("Town")
    assert index.search([], 3) == []
    assert len(index.search(["a"], 999)[0]) == len(index) == 50
    with pytest.raises(ValueError, match="top_k=0"):
        index.search(["a"], 0)


def test_one_query_or_many_give_the_same_passages(built: Path) -> None:
    index = DenseIndex(built, device="cpu")
    queries = [f"{'the ' * (number % 5)}town {number}" for number in range(30)]
    for query, together in zip(queries, index.search(queries, 3), strict=True):
        alone = index.search([query], 3)[0]
        assert [passage.id for passage in alone] == [passage.id for passage in together]
        assert np.allclose([p.score for p in alone], [p.score for p in together], atol=1e-6)


@pytest.mark.parametrize("name", ["vectors-00001.npy", "passages.jsonl", "offsets.npy"])
def test_a_changed_or_missing_file_is_named(copy: Path, name: str) -> None:
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptError, match=rf"{name}.*SHA-256"):
        DenseIndex(copy, device="cpu")
    (copy / name).write_bytes(whole + b"x")
    with pytest.raises(CorruptError, match=rf"{name}.*bytes"):
        DenseIndex(copy, device="cpu", verify=False)
    (copy / name).unlink()
    with pytest.raises(CorruptError, match=f"{name} is missing"):
        DenseIndex(copy, device="cpu")


def test_a_manifest_of_another_kind_is_refused(copy: Path) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    for change, error, message in (
        ({"version": 9}, DataError, "key 'version' is 9"),
        ({"shards": manifest["shards"][:2]}, CorruptError, "other files"),
        ({"files": {**manifest["files"], "../../x": manifest["files"]["offsets.npy"]}}, CorruptError, "other files"),
    ):
        path.write_text(json.dumps({**manifest, **change}), "utf-8")
        with pytest.raises(error, match=message):
            DenseIndex(copy, device="cpu")
    path.write_text("{", "utf-8")
    with pytest.raises(CorruptError, match="not valid JSON"):
        DenseIndex(copy, device="cpu")
    path.unlink()
    with pytest.raises(DataError, match=r"manifest\.json is missing"):
        DenseIndex(copy, device="cpu")


def test_the_encoder_may_move_but_not_change(copy: Path, tiny_encoders: Make, tmp_path: Path) -> None:
    moved = shutil.copytree(tiny_encoders("e5-tiny"), tmp_path / "moved")
    index = DenseIndex(copy, device="cpu", encoder=str(moved))
    assert index.encoder.settings.query_prefix == "query: "  # the index's, although "moved" is no name of E5
    with pytest.raises(UsageError, match="other weights"):
        DenseIndex(copy, device="cpu", encoder=str(tiny_encoders("e5-tiny", seed=1)))


def test_progress_goes_to_the_log_where_no_terminal_is(
    encoder: TextEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from factagent.retrieval.dense import progress

    monkeypatch.setattr(progress, "_LOG_EVERY", 0.0)
    monkeypatch.setattr(embed, "BLOCK", 20)
    with caplog.at_level(logging.INFO, logger="factagent"):
        build_dense(PASSAGES, tmp_path / "index", encoder, total=50)
    assert "embedded 20 of 50 passages" in caplog.text
    assert "minutes left" in caplog.text
