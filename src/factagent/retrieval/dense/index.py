"""A dense index as a retriever: an encoder for the queries, a search over vectors, and the passages."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from factagent.errors import CorruptError, UsageError
from factagent.retrieval.dense.encode import TextEncoder, settings_of
from factagent.retrieval.dense.exact import ExactIndex, ScanPrecision, open_device
from factagent.retrieval.dense.manifest import DenseManifest, EncoderSettings, read_dense_manifest, verify_dense_files
from factagent.retrieval.dense.vectors import VectorShards
from factagent.retrieval.passages import PassageStore
from factagent.types import Passage


class VectorSearch(Protocol):
    """Search over the vectors of a corpus: `ExactIndex`, `ApproximateIndex`."""

    def __len__(self) -> int: ...

    def top(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Positions (n, k) int64 (-1 where nothing was found) and inner products float32, best first."""
        ...


class PassageSource(Protocol):
    """Passages by position: `passages.PassageStore`, `flat_file.ContentsStore`."""

    def __len__(self) -> int: ...

    def passage(self, position: int, score: float = 0.0) -> Passage: ...


class DenseRetriever:
    """A dense retriever (`base.Retriever`) out of its three parts.

    Queries should be encoded in fp32, whatever the passages were embedded in. Vectors of a query encoded alone or among
    others differ by about 1e-7, so passages whose scores differ by less than that may change places; beyond that a
    score depends on the query's vector and the stored row only.

    Args:
        encoder: for the queries.
        search: over the vectors of the passages.
        passages: by the position of their vector.

    Raises:
        UsageError: there are more or fewer passages than vectors.
    """

    def __init__(self, encoder: TextEncoder, search: VectorSearch, passages: PassageSource) -> None:
        if len(search) != len(passages):
            raise UsageError(f"{len(passages)} passages, but a search over {len(search)} vectors; they belong together")
        self.encoder, self.passages = encoder, passages
        self._search = search

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
        distinct = list(dict.fromkeys(queries))
        positions, scores = self._search.top(self.encoder.queries(distinct), top_k)
        found = {
            query: tuple(self.passages.passage(p, s) for p, s in zip(where, values, strict=True) if p >= 0)
            for query, where, values in zip(distinct, positions.tolist(), scores.tolist(), strict=True)
        }
        return [found[query] for query in queries]


class DenseIndex(DenseRetriever):
    """A dense retriever over an index directory, by default with exact search.

    Args:
        directory: an index written by `embed.build_dense`.
        encoder: name or directory of the query encoder, where it is not to be found as the manifest names it.
        search: makes the search over the index's vectors and their identity, in place of the exact one.
        device: for encoder and exact search: "auto", "cpu", "cuda" or "cuda:N".
        precision: of the exact search's scan; the results are the same.
        threads: of torch.
        memory_bytes: the most that the exact search may hold in the device's memory.
        verify: compare the hash of every file; None does where the index is small.

    Raises:
        DataError: no index there, or one of another format.
        CorruptError: a file differs from the manifest.
        UsageError: the encoder is not there, or has other weights than the one that embedded the passages.
    """

    def __init__(
        self,
        directory: Path,
        *,
        encoder: str | None = None,
        search: Callable[[VectorShards, str], VectorSearch] | None = None,
        device: str = "auto",
        precision: ScanPrecision = "bf16",
        threads: int = 1,
        memory_bytes: int | None = None,
        verify: bool | None = None,
    ) -> None:
        self.directory = directory
        self.manifest = read_dense_manifest(directory)
        verify_dense_files(directory, self.manifest, verify=verify)
        self.vectors = open_vectors(directory, self.manifest)
        text_encoder = _query_encoder(directory, self.manifest, encoder, device, threads)
        super().__init__(
            text_encoder,
            search(self.vectors, self.manifest.vectors_sha256)
            if search
            else ExactIndex(
                self.vectors, device=device, precision=precision, threads=threads, memory_bytes=memory_bytes
            ),
            PassageStore(directory),
        )

    @classmethod
    def load(cls, directory: str | os.PathLike[str], **options: Any) -> DenseIndex:
        """Open an index; the options are those of the class."""
        return cls(Path(directory), **options)


def open_vectors(directory: Path, manifest: DenseManifest) -> VectorShards:
    """The memory-mapped vectors of an index.

    Raises:
        CorruptError: they have another shape than the manifest says.
    """
    vectors = VectorShards.open([directory / name for name in manifest.shards])
    if (len(vectors), vectors.dimension) != (manifest.passages, manifest.dimension):
        found, wanted = (len(vectors), vectors.dimension), (manifest.passages, manifest.dimension)
        raise CorruptError(f"{directory}: vectors of shape {found}, the manifest says {wanted}; build the index again")
    return vectors


def _query_encoder(
    directory: Path, manifest: DenseManifest, name: str | None, device: str, threads: int
) -> TextEncoder:
    """The encoder of the index, which may lie elsewhere now; prefixes, pooling and lengths stay."""
    settings = manifest.encoder.model_dump(include=set(EncoderSettings.model_fields))
    if name is not None:
        settings["name"] = settings_of(name).name
    encoder = TextEncoder(EncoderSettings.model_validate(settings), device=str(open_device(device)), threads=threads)
    if encoder.weights_sha256() != manifest.encoder.weights_sha256:
        raise UsageError(
            f"{directory}: its passages were embedded by other weights than those of the encoder '{encoder.name}'; "
            f"give the encoder it was built with ('{manifest.encoder.name}'), or build the index again"
        )
    return encoder
