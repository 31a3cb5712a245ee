"""The stored vectors of a directory, whichever way it holds them, with the identity that an approximate index keeps."""

from __future__ import annotations

import hashlib
from pathlib import Path

from factagent.retrieval.dense.flat_file import find_flat_files, flat_identity, map_flat_index
from factagent.retrieval.dense.manifest import DenseManifest, read_dense_manifest
from factagent.retrieval.dense.vectors import VectorShards


def dense_identity(manifest: DenseManifest) -> str:
    """SHA-256 over the hashes of the shards, in order."""
    return hashlib.sha256("".join(manifest.files[name].sha256 for name in manifest.shards).encode()).hexdigest()


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
    return open_vectors(directory, manifest), dense_identity(manifest)
