"""Approximate search: faiss inverted lists of small codes, then the best candidates scored with the stored vectors.

`ivf-sq8` keeps 8 bits a dimension, `ivf-rabitq` one bit (RaBitQ: Gao and Long, SIGMOD 2024, on vectors turned by a
random rotation, which its error bound assumes). The lists stay on disk, memory-mapped; `approximate_build` makes them.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from factagent.errors import CorruptError, MissingExtraError, UsageError
from factagent.retrieval.dense.approximate_manifest import (
    FAISS_NAME,
    LISTS_NAME,
    REBUILD,
    SIZES_NAME,
    ApproximateManifest,
    read_approximate_manifest,
    verify_approximate,
)
from factagent.retrieval.dense.vectors import VectorShards, best_first, rescore
from factagent.retrieval.passages import map_array
from factagent.retrieval.plan import check_memory

logger = logging.getLogger(__name__)

QUERY_BITS = 4
"""Bits of a query's dimensions under RaBitQ. 4 finds what 8 finds (recall within .007 on text) and is 1.2x faster."""


class SearchSettings(NamedTuple):
    """How many lists a query looks into, and how many candidates are scored again (0: none)."""

    nprobe: int
    rerank: int


class ApproximateIndex:
    """Approximate top-k by inner product, with the interface of the exact index.

    Args:
        index: the faiss index, its lists filled.
        shards: the vectors that it was built from; candidates are scored with them.
        settings: how to search.
        threads: threads of a search. OpenMP remembers them by calling thread, so each search sets them.
    """

    def __init__(self, index: Any, shards: VectorShards, settings: SearchSettings, *, threads: int = 1) -> None:
        faiss = load_faiss()
        self._faiss, self._index, self._shards, self._threads = faiss, index, shards, threads
        self._ivf = faiss.extract_index_ivf(index)
        self.settings = settings
        self.manifest: ApproximateManifest | None = None
        """What the build recorded; None while it is building."""

    @classmethod
    def load(
        cls,
        directory: Path,
        shards: VectorShards,
        vectors: str,
        *,
        threads: int = 1,
        nprobe: int | None = None,
        rerank: int | None = None,
        verify: bool | None = None,
    ) -> ApproximateIndex:
        """Open the index in `directory` after checking its files against the manifest; the lists are memory-mapped.

        Args:
            directory: where `build_approximate` put it.
            shards: the vectors of the corpus.
            vectors: identity of these vectors; it must be the one the index was built from.
            threads: threads of a search.
            nprobe: lists a query looks into, instead of the number chosen at the build.
            rerank: candidates scored again, instead of the number set at the build; 0 for none.
            verify: compare the hash of the lists too; None does where they are small.

        Raises:
            DataError: no approximate index there, or one of another format.
            CorruptError: a file differs from the manifest, or the index is of other vectors.
            UsageError: a setting is out of range.
        """
        manifest = read_approximate_manifest(directory)
        if (manifest.vectors, manifest.passages, manifest.dimension) != (vectors, len(shards), shards.dimension):
            raise CorruptError(f"{directory}: was built from other vectors than those beside it; {REBUILD}")
        settings = _checked(manifest, nprobe, rerank)
        check_memory(manifest.preset, manifest.passages, manifest.dimension)
        verify_approximate(directory, manifest, verify=verify)
        loaded = cls(open_index(directory), shards, settings, threads=threads)
        loaded._refuse_other_shape(directory, manifest)
        loaded.manifest = manifest
        if not manifest.recall.met:
            logger.warning("%s", shortfall(manifest))
        return loaded

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def top(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Positions and scores of the best `min(k, passages)` vectors of each query, best first, ties by position.

        Args:
            vectors: (n, d) queries.
            k: how many to return.

        Returns:
            Positions (n, k) int64 and inner products (n, k) float32; of the stored vectors where candidates are
            re-ranked, else as far as the codes tell.

        Raises:
            ValueError: `k` is below 1, or the queries have another dimension or hold NaN.
        """
        return self.top_with(vectors, k, self.settings)

    def top_with(
        self, vectors: NDArray[np.float32], k: int, settings: SearchSettings
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The same by other settings; calibration tries them."""
        queries = np.ascontiguousarray(vectors, np.float32)
        if k < 1:
            raise ValueError(f"k={k}: must be at least 1")
        if queries.ndim != 2 or queries.shape[1] != self._shards.dimension or not np.isfinite(queries).all():
            raise ValueError(f"queries of shape {queries.shape}: expected finite (n, {self._shards.dimension})")
        k = min(k, len(self))
        positions, scores = self._candidates(queries, k, settings)
        if settings.rerank:
            if positions.max(initial=-1) >= len(self):
                raise CorruptError(f"the lists name position {positions.max()} of {len(self)} vectors; {REBUILD}")
            scores = rescore(self._shards, queries, positions)
        return best_first(positions, scores, k)

    def _candidates(
        self, queries: NDArray[np.float32], k: int, settings: SearchSettings
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """At least `k` candidates a query; one whose lists hold fewer looks into twice as many lists, until it has."""
        width, nprobe = min(max(k, settings.rerank), len(self)), min(settings.nprobe, self._ivf.nlist)
        positions, scores = self._search(queries, width, nprobe)
        while (short := np.flatnonzero(positions[:, k - 1] < 0)).size and nprobe < self._ivf.nlist:
            nprobe = min(2 * nprobe, self._ivf.nlist)
            positions[short], scores[short] = self._search(queries[short], width, nprobe)
        return positions, scores

    def _search(
        self, queries: NDArray[np.float32], width: int, nprobe: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """One faiss call; the empty places of a short result are position -1, score -inf."""
        self._faiss.omp_set_num_threads(self._threads)
        scores, positions = self._index.search(queries, width, params=self._parameters(nprobe))
        scores[positions < 0] = -np.inf
        return positions, scores

    def _parameters(self, nprobe: int) -> Any:
        faiss = self._faiss
        if not isinstance(self._index, faiss.IndexPreTransform):
            return faiss.SearchParametersIVF(nprobe=nprobe)
        return faiss.SearchParametersPreTransform(
            index_params=faiss.IVFRaBitQSearchParameters(nprobe=nprobe, qb=QUERY_BITS)
        )

    def _refuse_other_shape(self, directory: Path, manifest: ApproximateManifest) -> None:
        found = (self._index.ntotal, self._index.d, self._ivf.nlist, self._index.metric_type)
        if found != (manifest.passages, manifest.dimension, manifest.nlist, self._faiss.METRIC_INNER_PRODUCT):
            raise CorruptError(f"{directory / FAISS_NAME}: its size differs from the manifest's; {REBUILD}")


def load_faiss() -> Any:
    """The faiss module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise MissingExtraError.of("faiss", "dense") from error


def read_index(path: Path, *, mapped: bool = True) -> Any:
    """Read a faiss index whose hash was checked; one whose lists are `mapped` from the file is read-only.

    Raises:
        CorruptError: faiss cannot read it.
    """
    faiss = load_faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY if mapped else 0)
    except RuntimeError as error:
        raise CorruptError(f"{path}: faiss cannot read it ({str(error).splitlines()[0]}); {REBUILD}") from error


def open_index(directory: Path) -> Any:
    """The index in `directory` with its lists mapped from `lists.bin`: for each list its codes, then its positions.

    Raises:
        CorruptError: the files do not fit each other.
    """
    faiss = load_faiss()
    index = read_index(directory / FAISS_NAME)
    ivf = faiss.extract_index_ivf(index)
    sizes = np.ascontiguousarray(map_array(directory / SIZES_NAME))
    path = directory / LISTS_NAME
    if (
        sizes.shape != (ivf.nlist,)
        or sizes.dtype != np.uint64
        or int(sizes.sum()) * (ivf.code_size + 8) != path.stat().st_size
    ):
        raise CorruptError(f"{directory}: {SIZES_NAME}, {LISTS_NAME} and {FAISS_NAME} do not fit each other; {REBUILD}")
    lists = faiss.OnDiskInvertedLists()
    lists.nlist, lists.code_size, lists.filename, lists.read_only = ivf.nlist, ivf.code_size, str(path), True
    # Its read-ahead threads (32 by default) would touch every byte of the lists before the search does.
    lists.prefetch_nthread = 0
    lists.lists.resize(ivf.nlist)
    lists.totsize = path.stat().st_size
    lists.set_all_lists_sizes(faiss.swig_ptr(sizes))
    lists.do_mmap()
    ivf.replace_invlists(lists, True)
    lists.this.disown()
    index.ntotal = ivf.ntotal = int(sizes.sum())
    return index


def shortfall(manifest: ApproximateManifest) -> str:
    """The warning for an index that misses its target: by how much, and what to do."""
    recall = manifest.recall
    return (
        f"approximate index ({manifest.preset}): recall@{recall.at} is {recall.measured:.3f}, below the target "
        f"{recall.target:.2f}, at nprobe {manifest.nprobe} of {manifest.nlist} and rerank {manifest.rerank}; build it "
        "again with a larger --nprobe or --rerank, or with ivf-sq8, or search exactly"
    )


def _checked(manifest: ApproximateManifest, nprobe: int | None, rerank: int | None) -> SearchSettings:
    chosen = SearchSettings(
        manifest.nprobe if nprobe is None else nprobe, manifest.rerank if rerank is None else rerank
    )
    if not 1 <= chosen.nprobe <= manifest.nlist:
        raise UsageError(f"nprobe={chosen.nprobe}: must be 1 to {manifest.nlist}, the number of lists")
    if chosen.rerank < 0:
        raise UsageError(f"rerank={chosen.rerank}: must be 0 (none) or more")
    return chosen
