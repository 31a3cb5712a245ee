"""BM25 over a memory-mapped index: scores computed by bm25s, read by a numba loop.

The directory of an index holds `passages.jsonl` and `offsets.npy` (the texts), `terms.json` (the vocabulary, in the
order of first occurrence), three `.npy` arrays (the scores by term) and `manifest.json`. Nothing in it is pickled, and
the same passages and settings always give the same bytes.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from factagent.errors import CorruptError, DataError, UsageError
from factagent.retrieval.bm25_kernel import compiled_scan, warm_up
from factagent.retrieval.manifest import (
    MANIFEST_NAME,
    BM25Settings,
    IndexManifest,
    Tokeniser,
    file_record,
    read_manifest,
    verify_files,
    write_manifest,
)
from factagent.retrieval.passages import OFFSETS_NAME, PASSAGES_NAME, PassageStore, PassageWriter, map_array
from factagent.types import Passage

logger = logging.getLogger(__name__)

TERMS_NAME = "terms.json"
SCORES_NAME = "scores.npy"
POSITIONS_NAME = "positions.npy"
STARTS_NAME = "starts.npy"
FILE_NAMES = (PASSAGES_NAME, OFFSETS_NAME, TERMS_NAME, SCORES_NAME, POSITIONS_NAME, STARTS_NAME)
_SHOW_PROGRESS_FROM = 20_000
# Lucene's default English list.
STOP_WORDS_EN = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with",
    )
)
_WORD = re.compile(Tokeniser().pattern)


def tokenise(text: str, settings: BM25Settings) -> list[str]:
    """Lower-case words of `text`, by the pinned tokeniser (`manifest.Tokeniser`)."""
    words: list[str] = _WORD.findall(text.lower())
    return words if settings.stop_words == "none" else [word for word in words if word not in STOP_WORDS_EN]


def write_index(
    passages: Iterable[Passage], directory: Path, settings: BM25Settings | None = None, *, overwrite: bool = False
) -> IndexManifest:
    """Index `passages` into `directory`, which appears in one piece at the end.

    The text searched is the title, a blank, and the text. Passages are streamed: RAM holds four bytes a token, the
    ids and the postings, not the texts.

    Raises:
        DataError: no passage, no word in any passage, or an id twice.
        UsageError: `directory` exists, and is not an index or `overwrite` is false.
    """
    settings = settings or BM25Settings()
    with _whole(directory, overwrite) as partial:
        terms: dict[str, int] = {}
        documents: list[array[int]] = []
        with (partial / PASSAGES_NAME).open("wb") as stream:
            writer = PassageWriter(stream)
            for passage in passages:
                writer.add(passage)
                words = tokenise(f"{passage.title} {passage.text}", settings)
                documents.append(array("i", [terms.setdefault(word, len(terms)) for word in words]))
        if not terms:
            raise DataError(f"the corpus holds {len(writer)} passages and no word in them; there is nothing to index")
        writer.save_offsets(partial / OFFSETS_NAME)
        (partial / TERMS_NAME).write_text(json.dumps(list(terms), ensure_ascii=False), "utf-8")
        version = _write_scores(documents, terms, partial, settings)
        files = {name: file_record(partial / name) for name in FILE_NAMES}
        manifest = IndexManifest(
            bm25s=version,
            settings=settings,
            tokeniser=Tokeniser(),
            passages=len(writer),
            terms=len(terms),
            corpus_sha256=files[PASSAGES_NAME].sha256,
            files=files,
        )
        write_manifest(partial, manifest)
    return manifest


class BM25Index:
    """A BM25 retriever (`base.Retriever`) over an index directory.

    Args:
        directory: an index written by `write_index`.
        threads: queries of a large batch are spread over this many threads; the results are the same.
    """

    def __init__(self, directory: Path, *, threads: int = 1) -> None:
        if threads < 1:
            raise UsageError(f"threads={threads}: must be at least 1")
        self.directory = directory
        self.manifest = read_manifest(directory)
        verify_files(directory, self.manifest, FILE_NAMES)
        self.passages = PassageStore(directory)
        terms = json.loads((directory / TERMS_NAME).read_text("utf-8"))
        self._terms = {term: number for number, term in enumerate(terms)}
        self._scores, self._positions, self._starts = _read_scores(directory, self.manifest)
        if len(self.passages) != self.manifest.passages or len(self._terms) != self.manifest.terms:
            raise CorruptError(f"{directory / MANIFEST_NAME}: passage or term count differs from the files'")
        self._threads = threads
        warm_up(self._scores, self._positions, self._starts)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, threads: int = 1) -> BM25Index:
        """Open an index, memory-mapped, after checking every file against the manifest.

        Raises:
            DataError: no index there, or one of another format.
            CorruptError: a file differs from the manifest.
        """
        return cls(Path(directory), threads=threads)

    @classmethod
    def build(cls, passages: Iterable[Passage], settings: BM25Settings | None = None, *, threads: int = 1) -> BM25Index:
        """Index `passages` into a temporary directory, which lives as long as the index object; see `save`."""
        directory = Path(tempfile.mkdtemp(prefix="factagent-bm25-"))
        try:
            write_index(passages, directory / "index", settings)
            index = cls(directory / "index", threads=threads)
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
        with _whole(Path(directory), overwrite) as partial:
            for name in (*FILE_NAMES, MANIFEST_NAME):
                shutil.copyfile(self.directory / name, partial / name)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """The best passages of each query by BM25; a query without a known word finds nothing.

        Raises:
            ValueError: `top_k` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k={top_k}: must be at least 1")
        chunk = max(1, -(-len(queries) // self._threads))
        parts = [queries[start : start + chunk] for start in range(0, len(queries), chunk)]
        if len(parts) < 2:
            return [found for part in parts for found in self._search(part, top_k)]
        with ThreadPoolExecutor(self._threads) as pool:
            return [found for result in pool.map(self._search, parts, [top_k] * len(parts)) for found in result]

    def _search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        settings, known = self.manifest.settings, self._terms
        ids = [[known[word] for word in tokenise(query, settings) if word in known] for query in queries]
        starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        flat = np.fromiter((number for query in ids for number in query), np.int64, int(starts[-1]))
        width = min(top_k, len(self))
        best, scores = compiled_scan()(self._scores, self._positions, self._starts, flat, starts, len(self), width)
        return [
            tuple(self.passages.passage(p, s) for p, s in zip(positions, values, strict=True) if p >= 0)
            for positions, values in zip(best.tolist(), scores.tolist(), strict=True)
        ]


def _write_scores(documents: list[array[int]], terms: dict[str, int], directory: Path, settings: BM25Settings) -> str:
    import bm25s

    scorer = bm25s.BM25(k1=settings.k1, b=settings.b, method=settings.method, backend="numpy", csc_backend="numpy")
    show = len(documents) >= _SHOW_PROGRESS_FROM and sys.stderr.isatty()
    scorer.index((documents, terms), create_empty_token=False, show_progress=show)
    for name, key, kind in (
        (SCORES_NAME, "data", np.float32),
        (POSITIONS_NAME, "indices", np.int32),
        (STARTS_NAME, "indptr", np.int64),
    ):
        np.save(directory / name, np.ascontiguousarray(scorer.scores[key], kind), allow_pickle=False)
    version: str = bm25s.__version__
    return version


def _read_scores(directory: Path, manifest: IndexManifest) -> tuple[npt.NDArray[Any], ...]:
    """Map the three arrays and check what the search loop, which checks no bounds, relies on."""
    scores, positions, starts = (map_array(directory / name) for name in (SCORES_NAME, POSITIONS_NAME, STARTS_NAME))
    kinds = [array.dtype.name for array in (scores, positions, starts)] == ["float32", "int32", "int64"]
    shapes = scores.ndim == 1 and scores.shape == positions.shape and starts.shape == (manifest.terms + 1,)
    if not (kinds and shapes and len(scores)):
        raise CorruptError(f"{directory}: the score arrays have unexpected types or shapes; build the index again")
    bounds = starts[0] == 0 and starts[-1] == len(scores) and bool(np.all(np.diff(starts) >= 0))
    inside = positions.min() >= 0 and positions.max() < manifest.passages
    if not (bounds and inside and scores.min() >= 0 and scores.max() < np.inf):
        raise CorruptError(f"{directory}: the score arrays hold values out of range; build the index again")
    return scores, positions, starts


@contextmanager
def _whole(directory: Path, overwrite: bool) -> Iterator[Path]:
    """Give a temporary neighbour to write into; it takes the name of `directory` if all went well, else vanishes."""
    if directory.exists() and not (overwrite and (directory / MANIFEST_NAME).is_file()):
        problem = "exists and is not an index" if overwrite else "exists; choose another, or allow overwriting"
        raise UsageError(f"index directory {directory}: {problem}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as scratch:
        partial = Path(scratch) / "new"
        partial.mkdir()
        yield partial
        if directory.exists():
            directory.rename(Path(scratch) / "old")
        partial.rename(directory)
