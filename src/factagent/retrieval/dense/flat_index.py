"""A retriever over Search-R1's published files, searched exactly or by an approximate index built beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from factagent.errors import DataError
from factagent.retrieval.dense.approximate import ApproximateIndex
from factagent.retrieval.dense.approximate_manifest import APPROXIMATE_DIRECTORY, MANIFEST_NAME
from factagent.retrieval.dense.flat_file import (
    DEFAULT_ENCODER,
    ContentsStore,
    check_lengths,
    flat_identity,
    map_flat_index,
    need_flat_files,
)
from factagent.retrieval.plan import refuse_unless_it_fits
from factagent.types import Passage

if TYPE_CHECKING:
    from factagent.retrieval.dense.encode import TextEncoder
    from factagent.retrieval.dense.index import VectorSearch


class FlatFileIndex:
    """A dense retriever (`base.Retriever`) over vectors and passages that were published apart.

    Args:
        encoder: of the queries; it must be the one that made the vectors.
        search: over the vectors.
        passages: by position.
    """

    def __init__(self, encoder: TextEncoder, search: VectorSearch, passages: ContentsStore) -> None:
        self.encoder, self.passages, self._search = encoder, passages, search

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """The passages whose vectors have the largest inner product with the query's.

        Raises:
            ValueError: `top_k` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k={top_k}: must be at least 1")
        if not queries:
            return []
        positions, scores = self._search.top(self.encoder.queries(queries), top_k)
        return [
            tuple(self.passages.passage(p, s) for p, s in zip(where, values, strict=True) if p >= 0)
            for where, values in zip(positions.tolist(), scores.tolist(), strict=True)
        ]


def open_flat_file(
    directory: Path,
    encoder: TextEncoder | None = None,
    *,
    threads: int = 1,
    device: str = "auto",
    exact: bool = False,
) -> FlatFileIndex:
    """Open `e5_Flat.index` (or its parts) and `wiki-18.jsonl` in `directory`.

    An approximate index beside them (`factagent index approximate`) is used where there is one, unless `exact`.

    Args:
        directory: holds the files.
        encoder: of the queries; e5-base-v2, which made the published vectors, by default.
        threads: of torch and faiss.
        device: of encoder and exact search: "auto", "cpu", "cuda" or "cuda:N".
        exact: search exactly although there is an approximate index.

    Raises:
        DataError: a file is missing or malformed, or the files do not belong together.
        CorruptError: a file is cut off, or the approximate index is of other vectors.
        ServiceError: the vectors do not fit the memory that is free.
    """
    from factagent.retrieval.dense.encode import TextEncoder
    from factagent.retrieval.dense.exact import ExactIndex, open_device

    files = need_flat_files(directory)
    vectors = map_flat_index(files.pieces)
    passages = ContentsStore(files.corpus)
    check_lengths(files, vectors, passages)
    beside = directory / APPROXIMATE_DIRECTORY
    search: VectorSearch
    if (beside / MANIFEST_NAME).is_file() and not exact:
        search = ApproximateIndex.load(beside, vectors, flat_identity(files), threads=threads)
    else:
        chosen = open_device(device)
        refuse_unless_it_fits("exact-bf16", len(vectors), vectors.dimension, device=chosen)
        search = ExactIndex(vectors, device=str(chosen), threads=threads)
    encoder = encoder or TextEncoder.load(DEFAULT_ENCODER, device=str(open_device(device)), threads=threads)
    if encoder.dimension != vectors.dimension:
        raise DataError(
            f"{files.pieces[0]}: vectors of {vectors.dimension} dimensions, the encoder '{encoder.name}' has "
            f"{encoder.dimension}; give the encoder that made them"
        )
    return FlatFileIndex(encoder, search, passages)
