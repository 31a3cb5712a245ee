"""Search-R1's published layout, on a small file that faiss itself wrote."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from factagent.errors import CorruptError, DataError
from factagent.retrieval.dense.flat_file import (
    CORPUS_NAME,
    INDEX_NAME,
    ContentsStore,
    check_lengths,
    find_flat_files,
    flat_identity,
    map_flat_index,
    need_flat_files,
    read_header,
)

faiss = pytest.importorskip("faiss")
ROWS, DIMENSION = 57, 24
HEADER = 45


@pytest.fixture
def matrix() -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def directory(tmp_path: Path, matrix: np.ndarray) -> Path:
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(matrix)
    faiss.write_index(index, str(tmp_path / INDEX_NAME))
    rows = [{"id": str(n), "contents": f'"Title {n}"\nText of {n}, naïve.'} for n in range(ROWS)]
    (tmp_path / CORPUS_NAME).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return tmp_path


def test_the_matrix_that_faiss_wrote(directory: Path, matrix: np.ndarray) -> None:
    files = need_flat_files(directory)
    assert read_header(files.pieces[0]) == (DIMENSION, ROWS)
    vectors = map_flat_index(files.pieces)
    assert np.array_equal(vectors.read(0, ROWS), matrix)
    check_lengths(files, vectors, ContentsStore(files.corpus))


@pytest.mark.parametrize("borders", [[HEADER], [HEADER + 1], [1000], [1000, 1001, 1003, 3000], [HEADER + 96 * 5]])
def test_pieces_need_not_be_joined(directory: Path, matrix: np.ndarray, borders: list[int]) -> None:
    whole = (directory / INDEX_NAME).read_bytes()
    (directory / INDEX_NAME).unlink()
    for number, (a, b) in enumerate(zip([0, *borders], [*borders, len(whole)], strict=True)):
        (directory / f"part_a{'abcdef'[number]}").write_bytes(whole[a:b])
    vectors = map_flat_index(need_flat_files(directory).pieces)
    assert np.array_equal(vectors.read(0, ROWS), matrix)
    assert np.array_equal(vectors.gather(np.arange(ROWS)), matrix)


def test_passages_by_position(directory: Path) -> None:
    store = ContentsStore(directory / CORPUS_NAME)
    assert len(store) == ROWS
    found = store.passage(41, 0.5)
    assert (found.id, found.title, found.text, found.score) == ("41", "Title 41", "Text of 41, naïve.", 0.5)


def test_offsets_are_found_once_and_belong_to_the_file(directory: Path) -> None:
    corpus = directory / CORPUS_NAME
    ContentsStore(corpus)
    (side,) = directory.glob("*.offsets.npy")
    before = side.stat().st_mtime_ns
    ContentsStore(corpus)
    assert side.stat().st_mtime_ns == before
    corpus.write_text(json.dumps({"id": 7, "contents": "no title"}), "utf-8")  # no line break at the end either
    store = ContentsStore(corpus)
    assert (len(store), store.passage(0).id, store.passage(0).title) == (1, "7", "")
    assert len(list(directory.glob("*.offsets.npy"))) == 2


def test_offsets_that_do_not_fit_are_refused(directory: Path) -> None:
    ContentsStore(directory / CORPUS_NAME)
    (side,) = directory.glob("*.offsets.npy")
    np.save(side, np.arange(4), allow_pickle=False)
    with pytest.raises(CorruptError, match="does not fit"):
        ContentsStore(directory / CORPUS_NAME)


@pytest.mark.parametrize("row", ['{"id": "0"}', "[1]", "{", '{"id": "0", "contents": 3}', ""])
def test_a_malformed_row_names_its_line(directory: Path, row: str) -> None:
    path = directory / CORPUS_NAME
    path.write_text('{"id": "0", "contents": "x"}\n' + row + "\n", "utf-8")
    store = ContentsStore(path)
    assert store.passage(0).text == "x"
    with pytest.raises(DataError, match=r"wiki-18\.jsonl:2"):
        store.passage(1)


def change(path: Path, at: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "content", "words"),
    [
        (0, b"IxF2", "begins with 'IxF2'"),
        (0, b"\x80\x04\x95\x00", "only a faiss IndexFlatIP"),
        (4, struct.pack("<i", -1), "dimension -1"),
        (8, struct.pack("<q", 1 << 40), "numbers"),
        (16, struct.pack("<q", 5), "not a filled flat index"),
        (33, struct.pack("<i", 1), "metric 1"),
        (37, struct.pack("<Q", 3), "says 3 numbers"),
    ],
)
def test_a_header_that_is_not_that_of_a_flat_index(directory: Path, at: int, content: bytes, words: str) -> None:
    change(directory / INDEX_NAME, at, content)
    with pytest.raises(DataError, match=words):
        map_flat_index([directory / INDEX_NAME])


def test_other_indexes_of_faiss_are_refused(tmp_path: Path, matrix: np.ndarray) -> None:
    for index in (faiss.IndexFlatL2(DIMENSION), faiss.IndexHNSWFlat(DIMENSION, 8)):
        index.add(matrix)
        faiss.write_index(index, str(tmp_path / INDEX_NAME))
        with pytest.raises(DataError, match="begins with"):
            map_flat_index([tmp_path / INDEX_NAME])


@pytest.mark.parametrize("length", [0, 3, 44])
def test_a_header_cut_off(directory: Path, length: int) -> None:
    path = directory / INDEX_NAME
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError):
        map_flat_index([path])


@pytest.mark.parametrize("more", [-1, 1])
def test_a_matrix_cut_off_or_too_long(directory: Path, more: int) -> None:
    path = directory / INDEX_NAME
    path.write_bytes((path.read_bytes() + b"x")[: path.stat().st_size + more])
    with pytest.raises(CorruptError, match="the header says"):
        map_flat_index([path])


def test_what_is_missing_is_named(directory: Path) -> None:
    assert find_flat_files(directory / "nowhere") is None
    (directory / CORPUS_NAME).rename(directory / (CORPUS_NAME + ".gz"))
    with pytest.raises(DataError, match="gunzip"):
        need_flat_files(directory)
    (directory / (CORPUS_NAME + ".gz")).unlink()
    with pytest.raises(DataError, match="wiki-18-e5-index"):
        need_flat_files(directory)


def test_an_empty_corpus_and_one_of_another_length(directory: Path) -> None:
    files = need_flat_files(directory)
    files.corpus.write_text('{"id": "0", "contents": "x"}\n', "utf-8")
    with pytest.raises(DataError, match=r"1 passages, e5_Flat\.index has 57"):
        check_lengths(files, map_flat_index(files.pieces), ContentsStore(files.corpus))
    files.corpus.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        ContentsStore(files.corpus)


def test_identity_follows_the_bytes(directory: Path) -> None:
    files = need_flat_files(directory)
    before = flat_identity(files)
    assert flat_identity(files) == before
    change(files.pieces[0], 100, b"\x00\x00\x80?")
    assert flat_identity(files) != before
