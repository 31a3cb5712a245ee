"""Search-R1's published files as a dense index: `e5_Flat.index` (or its parts) beside `wiki-18.jsonl`.

`e5_Flat.index` is what `faiss.write_index` makes of an `IndexFlatIP`: 45 bytes of header, then the float32 matrix. The
header is checked and the matrix memory-mapped; faiss, which trusts what it reads and would copy 64 GB, is not asked.
The parts in which it is published (`part_aa`, `part_ab`) need not be joined. The first opening of the passages finds
where each line begins and keeps that beside them.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from factagent.data.contents import split_contents
from factagent.errors import CorruptError, DataError
from factagent.retrieval.dense.vectors import VectorShards
from factagent.retrieval.passages import map_array
from factagent.types import Passage

logger = logging.getLogger(__name__)

INDEX_NAME = "e5_Flat.index"
PART_PATTERN = "part_a?"
CORPUS_NAME = "wiki-18.jsonl"
DEFAULT_ENCODER = "e5-base-v2"
"""What the published vectors were made with."""

# faiss/impl/index_write.cpp: magic, dimension, rows, two unused numbers, trained, metric; then the count of floats.
_HEADER = struct.Struct("<4siqqq?iQ")
_MAGIC = b"IxFI"
_UNUSED = 1 << 20
_INNER_PRODUCT = 0
_LARGEST_DIMENSION = 1 << 16
_SCAN_BYTES = 1 << 24
_CACHED_PASSAGES = 16_384


class FlatHeader(NamedTuple):
    """What the header of an `IndexFlatIP` file says."""

    dimension: int
    rows: int


class FlatFiles(NamedTuple):
    """The files of a directory that hold a flat index: the index in one or several pieces, and the passages."""

    pieces: tuple[Path, ...]
    corpus: Path


def find_flat_files(directory: Path) -> FlatFiles | None:
    """The published files in `directory`, or None where they are not all there.

    The index is `e5_Flat.index` or all `part_aa`, `part_ab` ...; the passages `wiki-18.jsonl`.
    """
    whole = directory / INDEX_NAME
    index = (whole,) if whole.is_file() else tuple(sorted(directory.glob(PART_PATTERN)))
    corpus = directory / CORPUS_NAME
    return FlatFiles(index, corpus) if index and corpus.is_file() else None


def need_flat_files(directory: Path) -> FlatFiles:
    """The published files in `directory`.

    Raises:
        DataError: says which is missing and how to get it.
    """
    found = find_flat_files(directory)
    if found is not None:
        return found
    if (directory / f"{CORPUS_NAME}.gz").is_file():
        raise DataError(f"{directory}: {CORPUS_NAME} is still packed; run: gunzip {directory / CORPUS_NAME}.gz")
    raise DataError(
        f"{directory}: needs {INDEX_NAME} (or part_aa and part_ab) and {CORPUS_NAME}; they are published as the "
        "Hugging Face data sets PeterJinGo/wiki-18-e5-index and PeterJinGo/wiki-18-corpus"
    )


def read_header(path: Path) -> FlatHeader:
    """Dimension and rows of an `IndexFlatIP` file.

    Raises:
        DataError: the file is no flat inner-product index of float32, or is cut off inside the header.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEADER.size)
    if len(head) < _HEADER.size or head[:4] != _MAGIC:
        raise DataError(
            f"{path}: begins with {head[:4].decode('ascii', 'replace')!r}, not with {_MAGIC.decode()!r}; only a faiss "
            "IndexFlatIP is read here (other kinds: build one with factagent index approximate)"
        )
    _, dimension, rows, unused, _, trained, metric, floats = _HEADER.unpack(head)
    if metric != _INNER_PRODUCT:
        raise DataError(f"{path}: metric {metric}; only inner product (0) is read here")
    if not (0 < dimension <= _LARGEST_DIMENSION and rows > 0 and trained and unused == _UNUSED):
        raise DataError(f"{path}: dimension {dimension}, {rows} rows, trained {trained}: not a filled flat index")
    if floats != dimension * rows:
        raise DataError(f"{path}: says {floats} numbers, {rows} rows of {dimension} are {rows * dimension}")
    return FlatHeader(dimension, rows)


def map_flat_index(pieces: Sequence[Path]) -> VectorShards:
    """The matrix of a flat index, memory-mapped from its pieces in order; a row cut by a border is copied.

    Raises:
        DataError: the header is not that of a flat inner-product index.
        CorruptError: the pieces together are shorter or longer than the header says.
    """
    header = read_header(pieces[0])
    sizes = [path.stat().st_size for path in pieces]
    wanted = _HEADER.size + 4 * header.dimension * header.rows
    if sum(sizes) != wanted:
        names = ", ".join(path.name for path in pieces)
        raise CorruptError(f"{pieces[0].parent}: {names}: {sum(sizes)} bytes, the header says {wanted}; fetch what is "
                           "missing, part_aa before part_ab")  # fmt: skip
    row = 4 * header.dimension
    shards: list[NDArray[np.float32]] = []
    cut = b""
    for path, size, skip in zip(pieces, sizes, [_HEADER.size] + [0] * len(pieces), strict=False):
        data = np.memmap(path, np.uint8, "r", offset=0)
        begin = skip + (row - len(cut) if cut else 0)
        if cut:
            cut += data[skip : min(begin, size)].tobytes()
            if len(cut) < row:
                continue
            shards.append(np.frombuffer(cut, "<f4").reshape(1, -1))
        whole = (size - begin) // row
        if whole:
            shards.append(data[begin : begin + whole * row].view("<f4").reshape(whole, -1))
        cut = data[begin + whole * row :].tobytes()
    return VectorShards(shards)


def flat_identity(files: FlatFiles) -> str:
    """Identity of the vectors, for an approximate index of them: sizes, and a hash of the ends of each piece."""
    digest = hashlib.sha256()
    for path in files.pieces:
        digest.update(f"{path.stat().st_size} {_ends_hash(path)}\n".encode())
    return digest.hexdigest()


class ContentsStore:
    """Passages by position, from a JSONL file of `{"id", "contents"}` rows.

    Where each line begins is found once and kept beside the file, under a name that holds the file's size and a hash of
    its ends, so that offsets of another file are never taken.

    Raises:
        DataError: the file is empty, or offsets cannot be written beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        size = path.stat().st_size
        if not size:
            raise DataError(f"{path}: is empty; it must hold a passage a line")
        side = path.with_name(f"{path.name}.{size}-{_ends_hash(path)[:16]}.offsets.npy")
        if not side.is_file():
            _write_offsets(path, side)
        offsets = map_array(side)
        if offsets.ndim != 1 or offsets.dtype != np.int64 or len(offsets) < 2 or offsets[-1] != size:
            raise CorruptError(f"{side}: does not fit {path.name}; delete it, the next start writes it again")
        self._offsets = offsets
        with path.open("rb") as stream:
            self._lines = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._passage = lru_cache(maxsize=_CACHED_PASSAGES)(self._read)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def passage(self, position: int, score: float = 0.0) -> Passage:
        """The passage at `position`, its title without quotes, with the score that a search gave it.

        Raises:
            DataError: the line is no row of `id` and `contents`.
        """
        identifier, title, text = self._passage(position)
        return Passage(identifier, title, text, score)

    def _read(self, position: int) -> tuple[str, str, str]:
        line = self._lines[int(self._offsets[position]) : int(self._offsets[position + 1])]
        try:
            row = orjson.loads(line)
            identifier, contents = row["id"], row["contents"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError.at(self._path, position + 1, None, "is no row with 'id' and 'contents'") from error
        if not isinstance(contents, str) or not isinstance(identifier, str | int):
            raise DataError.at(self._path, position + 1, "contents", f"must be text, found {contents!r:.60}")
        return (str(identifier), *split_contents(contents))


def check_lengths(files: FlatFiles, vectors: VectorShards, passages: ContentsStore) -> None:
    """Refuse an index and passages that do not belong together.

    Raises:
        DataError: their numbers differ.
    """
    if len(vectors) != len(passages):
        raise DataError(f"{files.corpus}: {len(passages)} passages, {files.pieces[0].name} has {len(vectors)} vectors; "
                        "both must come from one corpus")  # fmt: skip


def _write_offsets(path: Path, side: Path) -> None:
    """Find the line breaks and write where lines begin, int64 of shape (lines + 1,), whole or not at all."""
    logger.info("%s: finding where each line begins (once)", path)
    starts = [np.zeros(1, np.int64)]
    position, last = 0, b"\n"
    with path.open("rb") as stream:
        while chunk := stream.read(_SCAN_BYTES):
            starts.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + (position + 1))
            position, last = position + len(chunk), chunk[-1:]
    if last != b"\n":
        starts.append(np.array([position], np.int64))
    partial = side.with_suffix(".new.npy")
    try:
        np.save(partial, np.concatenate(starts), allow_pickle=False)
        partial.replace(side)
    except OSError as error:
        raise DataError(
            f"{side}: cannot be written ({error.strerror}); the offsets of the passages are kept beside them, so make "
            "the directory writable, or link the files into one that is"
        ) from error


def _ends_hash(path: Path) -> str:
    """SHA-256 over size, first and last MiB: enough to tell two published files apart in no time."""
    size, end = path.stat().st_size, 1 << 20
    with path.open("rb") as stream:
        head = stream.read(end)
        stream.seek(max(0, size - end))
        return hashlib.sha256(head + stream.read(end) + str(size).encode()).hexdigest()
