"""A retriever over Search-R1's published files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from factagent.errors import DataError
from factagent.retrieval.dense.flat_file import (
    DEFAULT_ENCODER,
    ContentsStore,
    check_lengths,
    flat_identity,
    map_flat_index,
    need_flat_files,
)
from factagent.retrieval.dense.index import DenseRetriever

if TYPE_CHECKING:
    from factagent.retrieval.dense.index import VectorSearch
    from factagent.retrieval.dense.vectors import VectorShards


def open_flat_file(
    directory: Path,
    encoder: str | None = None,
    *,
    search: Callable[[VectorShards, str], VectorSearch],
    device: str = "cpu",
    threads: int = 1,
) -> DenseRetriever:
    """Open `e5_Flat.index` (or its parts) and `wiki-18.jsonl` in `directory`.

    Args:
        directory: holds the files.
        encoder: of the queries; e5-base-v2, which made the published vectors, by default.
        search: makes the search over the vectors and their identity.
        device: of the encoder: "cpu", "cuda" or "cuda:N".
        threads: of torch.

    Raises:
        DataError: a file is missing or malformed, or files and encoder do not belong together.
        CorruptError: a file is cut off.
    """
    from factagent.retrieval.dense.encode import TextEncoder

    files = need_flat_files(directory)
    vectors, passages = map_flat_index(files.pieces), ContentsStore(files.corpus)
    check_lengths(files, vectors, passages)
    loaded = TextEncoder.load(encoder or DEFAULT_ENCODER, device=device, threads=threads)
    if loaded.dimension != vectors.dimension:
        raise DataError(
            f"{files.pieces[0]}: vectors of {vectors.dimension} dimensions, the encoder '{loaded.name}' has "
            f"{loaded.dimension}; give the encoder that made them"
        )
    return DenseRetriever(loaded, search(vectors, flat_identity(files)), passages)
