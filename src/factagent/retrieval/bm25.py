"""BM25 over a memory-mapped index.

The directory of an index holds `passages.jsonl` and `offsets.npy` (the texts), `terms.json` (the vocabulary, in the
order of first occurrence), three `.npy` arrays (the scores by term) and `manifest.json`. Nothing in it is pickled, and
the same passages and settings always give the same bytes. `bm25_build` writes it.

Opening an index reads the manifest, the vocabulary and where each term's postings begin, and looks at the size of
every file. Hashes are compared where the index is small (`HASHED_BYTES`) or the caller asks (`verify`). A term's
postings are checked when it is first searched, so that none can lead the search out of its arrays.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from factagent.errors import CorruptError, UsageError
from factagent.retrieval.bm25_build import (
    FILE_NAMES,
    POSITIONS_NAME,
    SCORES_NAME,
    STARTS_NAME,
    TERMS_NAME,
    write_index,
)
from factagent.retrieval.bm25_kernel import compiled, first_bad_term, scan, warm_up
from factagent.retrieval.bm25_words import tokenise
from factagent.retrieval.building import place, refuse_target
from factagent.retrieval.manifest import MANIFEST_NAME, BM25Settings, IndexManifest, read_manifest, verify_files
from factagent.retrieval.passages import PassageStore, map_array
from factagent.types import Passage

HASHED_BYTES = 256 << 20
"""An index up to this size has its hashes compared whenever it is opened (a fraction of a second)."""


class BM25Index:
    """A BM25 retriever (`base.Retriever`) over an index directory.

    Args:
        directory: an index written by `bm25_build.write_index`.
        threads: queries of a large batch are spread over this many threads; the results are the same.
        verify: compare the hash of every file; None does where the index has at most `HASHED_BYTES`.
    """

    def __init__(self, directory: Path, *, threads: int = 1, verify: bool | None = None) -> None:
        if threads < 1:
            raise UsageError(f"threads={threads}: must be at least 1")
        self.directory = directory
        self.manifest = read_manifest(directory)
        small = sum(record.bytes for record in self.manifest.files.values()) <= HASHED_BYTES
        verify_files(directory, self.manifest, FILE_NAMES, hashes=small if verify is None else verify)
        self.passages = PassageStore(directory)
        self._terms = _read_terms(directory / TERMS_NAME)
        if len(self.passages) != self.manifest.passages or len(self._terms) != self.manifest.terms:
            raise CorruptError(f"{directory / MANIFEST_NAME}: passage or term count differs from the files'")
        self._scores, self._positions, self._starts = _map_postings(directory, self.manifest)
        self._checked = np.zeros(len(self._terms), np.uint8)
        self._threads = threads
        warm_up(self._scores, self._positions, self._starts)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, threads: int = 1, verify: bool | None = None) -> BM25Index:
        """Open an index, memory-mapped.

        Raises:
            DataError: no index there, or one of another format.
            CorruptError: a file differs from the manifest.
        """
        return cls(Path(directory), threads=threads, verify=verify)

    @classmethod
    def build(cls, passages: Iterable[Passage], settings: BM25Settings | None = None, *, threads: int = 1) -> BM25Index:
        """Index `passages` into a temporary directory, which lives as long as the index object; see `save`."""
        directory = Path(tempfile.mkdtemp(prefix="factagent-bm25-"))
        try:
            write_index(passages, directory / "index", settings)
            index = cls(directory / "index", threads=threads, verify=False)
        except BaseException:
            shutil.rmtree(directory)
            raise
        weakref.finalize(index, shutil.rmtree, directory, ignore_errors=True)
        return index

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Copy the index to `directory`, in one piece.

        Raises:
            UsageError: `directory` exists, and is not an index or `overwrite` is false.
        """
        target = Path(directory)
        refuse_target(target, MANIFEST_NAME, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
            partial = Path(scratch) / "new"
            partial.mkdir()
            for name in (*FILE_NAMES, MANIFEST_NAME):
                shutil.copyfile(self.directory / name, partial / name)
            place(partial, target)

    def verify(self) -> None:
        """Read the whole index and check it: the hash of every file, and every posting.

        Raises:
            CorruptError: names the first file that is not as it was written.
        """
        verify_files(self.directory, self.manifest, FILE_NAMES)
        self._check(np.arange(len(self._terms)))

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """The best passages of each query by BM25; a query without a known word finds nothing.

        Raises:
            ValueError: `top_k` is below 1.
            CorruptError: the index holds values that could not have been written.
        """
        chunk = max(1, -(-len(queries) // self._threads))
        parts = [queries[start : start + chunk] for start in range(0, len(queries), chunk)]
        if len(parts) < 2:
            return self._search(queries, top_k)
        with ThreadPoolExecutor(self._threads) as pool:
            return [found for result in pool.map(self._search, parts, [top_k] * len(parts)) for found in result]

    def top(
        self, queries: Sequence[Sequence[str]], top_k: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Positions of the best passages, and their scores, for queries that are words (`bm25_words.tokenise`).

        Returns:
            Positions int64 (queries, width) and scores float32 of equal shape, where width is `top_k` or the number of
            passages if that is less; -1 and 0 where fewer passages hold a word of the query.

        Raises:
            ValueError: `top_k` is below 1.
            CorruptError: the index holds values that could not have been written.
        """
        if top_k < 1:
            raise ValueError(f"top_k={top_k}: must be at least 1")
        known = self._terms
        ids = [[known[word] for word in words if word in known] for words in queries]
        starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        terms = np.fromiter((number for query in ids for number in query), np.int64, int(starts[-1]))
        self._check(terms)
        width = min(top_k, len(self))
        best, scores = compiled(scan)(self._scores, self._positions, self._starts, terms, starts, len(self), width)
        return best, scores

    def _search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        best, scores = self.top([tokenise(query, self.manifest.settings) for query in queries], top_k)
        return [
            tuple(self.passages.passage(p, s) for p, s in zip(positions, values, strict=True) if p >= 0)
            for positions, values in zip(best.tolist(), scores.tolist(), strict=True)
        ]

    def _check(self, terms: npt.NDArray[np.int64]) -> None:
        """Refuse postings that the search loop, which checks nothing, must not see; each term is looked at once."""
        bad = compiled(first_bad_term)(self._scores, self._positions, self._starts, terms, self._checked, len(self))
        if bad >= 0:
            word = next(word for word, number in self._terms.items() if number == bad)
            files = f"{SCORES_NAME} or {POSITIONS_NAME}"
            raise CorruptError(f"{self.directory}: {files}: values out of range for {word!r}; build the index again")


def _read_terms(path: Path) -> dict[str, int]:
    try:
        terms = json.loads(path.read_bytes())
    except ValueError as error:
        raise CorruptError(f"{path}: not JSON ({error}); build the index again") from error
    if not (isinstance(terms, list) and all(isinstance(term, str) for term in terms)):
        raise CorruptError(f"{path}: not a list of words; build the index again")
    return {term: number for number, term in enumerate(terms)}


def _map_postings(directory: Path, manifest: IndexManifest) -> tuple[npt.NDArray[Any], ...]:
    """Map scores, positions and starts, and check that they fit together; the postings themselves are not read."""
    scores, positions, starts = (map_array(directory / name) for name in (SCORES_NAME, POSITIONS_NAME, STARTS_NAME))
    kinds = [array.dtype.name for array in (scores, positions, starts)] == ["float32", "int32", "int64"]
    shapes = scores.ndim == 1 and scores.shape == positions.shape and starts.shape == (manifest.terms + 1,)
    if not (kinds and shapes and len(scores)):
        raise CorruptError(f"{directory}: the score arrays have unexpected types or shapes; build the index again")
    if not (starts[0] == 0 and starts[-1] == len(scores) and bool(np.all(np.diff(starts) >= 0))):
        raise CorruptError(f"{directory / STARTS_NAME}: values out of range; build the index again")
    return scores, positions, starts
