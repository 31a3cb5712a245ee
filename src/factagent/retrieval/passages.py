"""Passages on disk: one JSON line each and an array of offsets, both memory-mapped to keep a corpus out of RAM."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from factagent.errors import CorruptError, DataError
from factagent.types import Passage

PASSAGES_NAME = "passages.jsonl"
OFFSETS_NAME = "offsets.npy"
_CACHED_PASSAGES = 16_384


def passage_line(passage: Passage) -> bytes:
    """The canonical line of a passage: `id`, `title`, `text` as compact UTF-8 JSON (the score is not kept).

    Raises:
        DataError: a field holds half of a surrogate pair, which is no text.
    """
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n"
    except UnicodeEncodeError as error:
        raise DataError(f"passage {passage.id!r}: not valid Unicode ({error.reason}); repair the corpus") from error


def corpus_sha256(passages: Iterable[Passage]) -> str:
    """SHA-256 over the canonical lines; equal for two files that hold the same passages in the same order."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(passage_line(passage))
    return digest.hexdigest()


def map_array(path: Path) -> npt.NDArray[Any]:
    """Memory-map a `.npy` file, read-only.

    Raises:
        CorruptError: the file is no plain array (an array of pickled objects is refused unread).
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except ValueError as error:
        raise CorruptError(f"{path}: not a plain .npy array ({error}); build the index again") from error


def id_hash(identifier: str) -> int:
    """Eight bytes of BLAKE2b, for `SeenIds`."""
    return int.from_bytes(hashlib.blake2b(identifier.encode("utf-8"), digest_size=8).digest(), "little")


class SeenIds:
    """Finds ids that occur twice at eight bytes an id: their hashes, and the texts where two hashes agree."""

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.uint64)

    def add(self, hashes: npt.NDArray[np.uint64], lines: Path) -> None:
        """Take in the hashes of further ids; `lines` holds all passages so far.

        Raises:
            DataError: an id occurs twice.
        """
        every = np.sort(np.concatenate([self._hashes, hashes]))
        repeated = every[1:][every[1:] == every[:-1]]
        if len(repeated):
            _refuse_repeats(frozenset(repeated.tolist()), lines)
        self._hashes = every


def _refuse_repeats(hashes: frozenset[int], lines: Path) -> None:
    seen: set[str] = set()
    with lines.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            identifier = json.loads(line)["id"]
            if id_hash(identifier) in hashes:
                if identifier in seen:
                    raise DataError(f"passage {number}: the id {identifier!r} occurs twice; ids must be unique")
                seen.add(identifier)


class PassageStore:
    """Passages by position, read from a memory-mapped file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PASSAGES_NAME
        self._offsets = map_array(directory / OFFSETS_NAME)
        with self._path.open("rb") as stream:
            self._lines = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        offsets = self._offsets
        # Only the ends: an offset in between that is wrong gives a line that is none, which `_read` refuses.
        well_formed = offsets.ndim == 1 and offsets.dtype == np.int64 and len(offsets) >= 2 and offsets[0] == 0
        if not (well_formed and offsets[-1] == len(self._lines)):
            raise CorruptError(f"{directory / OFFSETS_NAME}: does not fit {PASSAGES_NAME}; build the index again")
        self._passage = lru_cache(maxsize=_CACHED_PASSAGES)(self._read)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def passage(self, position: int, score: float = 0.0) -> Passage:
        """The passage at `position`, with the score that a search gave it."""
        identifier, title, text = self._passage(position)
        return Passage(identifier, title, text, score)

    def _read(self, position: int) -> tuple[str, str, str]:
        line = self._lines[int(self._offsets[position]) : int(self._offsets[position + 1])]
        try:
            row = json.loads(line)
            return row["id"], row["title"], row["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{self._path}: line {position + 1} is no passage; build the index again") from error
