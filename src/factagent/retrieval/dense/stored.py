"""The stored vectors of a directory, whichever way it holds them, with the identity that an approximate index keeps."""

from __future__ import annotations

from pathlib import Path

from factagent.retrieval.dense.flat_file import find_flat_files, flat_identity, map_flat_index
from factagent.retrieval.dense.manifest import read_dense_manifest
from factagent.retrieval.dense.vectors import VectorShards


def open_stored_vectors(directory: Path) -> tuple[VectorShards, str]:
    """The vectors of a dense index or of Search-R1's published files, memory-mapped, and their identity.

    Raises:
        DataError: the directory holds neither.
        CorruptError: a file does not fit its manifest or header.
    """
    files = find_flat_files(directory)
    if files is not None:
        return map_flat_index(files.pieces), flat_identity(files)
    from factagent.retrieval.dense.index import open_vectors

    manifest = read_dense_manifest(directory)
    return open_vectors(directory, manifest), manifest.vectors_sha256
