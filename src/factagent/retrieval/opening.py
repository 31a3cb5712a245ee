"""Open whatever retriever a string names: an index directory of any kind, several fused, or a server.

DIR                   an index (BM25, dense, approximate), Search-R1's published files, or a directory with hybrid.toml
FILE.toml             a hybrid configuration under another name
A+B                   a hybrid of equal parts, each any of these
http://, https://     a search server
qdrant+http://HOST:PORT/COLLECTION    a collection of a Qdrant server (see `qdrant`)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from factagent.errors import CorruptError, DataError, UsageError
from factagent.retrieval.base import Retriever
from factagent.retrieval.hybrid import HYBRID_NAME, HybridConfig, HybridRetriever, read_hybrid
from factagent.retrieval.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from factagent.retrieval.dense.exact import ScanPrecision

_HELP = "give an index directory, a hybrid.toml, A+B, or the URL of a search server"
_PLUS = re.compile(r"(?<!^qdrant)(?<!\+qdrant)\+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningOptions:
    """How retrievers are opened; each kind takes what concerns it."""

    threads: int = 1
    device: str = "auto"
    """For encoders and exact search: "auto", "cpu", "cuda" or "cuda:N"."""
    precision: ScanPrecision = "bf16"
    """Of exact search's scan; the results are the same."""
    encoder: str | None = None
    """Where the query encoder lies now, for dense indexes whose encoder was moved."""
    memory_bytes: int | None = None
    """The most that exact search may hold in memory."""
    verify: bool | None = None
    """Compare the hash of every file of an index; None does where it is small."""
    protocol: str = "search-r1"
    """What a server speaks: a key of `remote.PROTOCOLS`."""
    token_env: str | None = None
    """Environment variable with a server's bearer token."""


def open_retriever(spec: str | Path, **options: Any) -> Retriever:
    """The retriever that `spec` names; the options are those of `OpeningOptions`.

    Raises:
        UsageError: `spec` names nothing that can be opened, or an option does not exist.
        DataError: an index is of an unknown format, or the parts of a hybrid hold different corpora.
        CorruptError: a file of an index differs from its manifest.
        MissingExtraError: what this kind needs is not installed.
    """
    unknown = sorted(set(options) - set(OpeningOptions.__dataclass_fields__))
    if unknown:
        raise UsageError(f"open_retriever has no option '{unknown[0]}'; see OpeningOptions")
    return _open(str(spec), OpeningOptions(**options))


def describe(spec: str | Path) -> dict[str, object]:
    """What a run record says about its retriever: `kind`, `directory` or `url`, and for an index its `passages`,
    `corpus_sha256` and what its manifest says about how it searches. Nothing is loaded.

    Raises:
        UsageError, DataError: as `open_retriever`.
    """
    spec = str(spec)
    if "://" in spec.partition("+")[0] or (spec.startswith("qdrant+") and len(_split(spec)) == 1):
        return {"kind": "qdrant" if spec.startswith("qdrant+") else "server", "url": spec}
    hybrid = _hybrid(spec)
    if hybrid is not None:
        parts = [describe(part) for part in hybrid.retrievers]
        fusion = {"k": hybrid.k, "depth": hybrid.depth, "weights": list(hybrid.weights)}
        return {"kind": "hybrid", "corpus_sha256": _one_corpus(spec, parts), **fusion, "retrievers": parts}
    directory = Path(spec)
    manifest = _manifest(directory)
    kind = str(manifest["format"]).removeprefix("factagent-")
    if kind == "approximate":
        beneath = describe(directory.parent)
        return {**beneath, "kind": kind, "directory": spec, **_kept(manifest, "preset", "nprobe", "rerank")}
    kept = _kept(manifest, "passages", "corpus_sha256", "settings", "encoder")
    return {"kind": kind, "directory": spec, **kept}


def index_format(directory: Path) -> str:
    """The format of the index in a directory, as its manifest names it.

    Raises:
        UsageError: there is no index.
        DataError: it is of a format that this version does not know.
    """
    return str(_manifest(directory)["format"])


def _open(spec: str, options: OpeningOptions) -> Retriever:
    hybrid = _hybrid(spec)
    if hybrid is not None:
        describe(spec)  # refuses parts over different corpora before anything is loaded
        parts = [_open(part, options) for part in hybrid.retrievers]
        return HybridRetriever(parts, weights=hybrid.weights or None, k=hybrid.k, depth=hybrid.depth)
    if spec.startswith(("http://", "https://")):
        return _open_server(spec, options)
    if spec.startswith("qdrant+"):
        return _open_qdrant(spec, options)
    directory = Path(spec)
    return _OPENERS[index_format(directory)](directory, options)


def _hybrid(spec: str) -> HybridConfig | None:
    """The configuration where `spec` names a hybrid, else None."""
    path = Path(spec)
    if path.suffix == ".toml":
        return read_hybrid(path)
    if (path / HYBRID_NAME).is_file():
        return read_hybrid(path / HYBRID_NAME)
    parts = () if path.exists() else _split(spec)
    return HybridConfig(retrievers=parts) if len(parts) > 1 and all(parts) else None


def _split(spec: str) -> tuple[str, ...]:
    return tuple(_PLUS.split(spec))


def _manifest(directory: Path) -> dict[str, object]:
    """The manifest of an index, of which only the format is known to be right."""
    from factagent.retrieval.dense.flat_file import find_flat_files

    path = directory / MANIFEST_NAME
    if not path.is_file():
        if directory.is_dir() and find_flat_files(directory):
            return {"format": "flat-file"}
        problem = "holds no index" if directory.is_dir() else "is no directory"
        raise UsageError(f"retriever '{directory}' {problem}; {_HELP}")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptError(f"{path}: not valid JSON ({error}); build the index again") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found not in _OPENERS:
        raise DataError(f"{path}: key 'format' is {found!r}; this version opens {', '.join(_OPENERS)}")
    return dict(content)


def _kept(manifest: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: manifest[key] for key in keys if key in manifest}


def _one_corpus(spec: str, parts: list[dict[str, object]]) -> str | None:
    """The hash of the corpus that all parts share, as far as they tell."""
    hashes = {str(part["corpus_sha256"]) for part in parts if part.get("corpus_sha256")}
    if len(hashes) > 1:
        found = ", ".join(f"{part.get('directory', part['kind'])}: {part.get('corpus_sha256')}" for part in parts)
        raise DataError(f"hybrid '{spec}': its parts hold different corpora ({found}); build them from one corpus")
    return next(iter(hashes), None)


def _open_server(url: str, options: OpeningOptions) -> Retriever:
    from factagent.retrieval.remote import RemoteRetriever, SyncRetriever

    return SyncRetriever(RemoteRetriever(url, options.protocol, token_env=options.token_env))


def _open_bm25(directory: Path, options: OpeningOptions) -> Retriever:
    from factagent.retrieval.bm25 import BM25Index

    return BM25Index(directory, threads=options.threads, verify=options.verify)


def _open_dense(directory: Path, options: OpeningOptions, search: Any = None) -> Retriever:
    from factagent.retrieval.dense.index import DenseIndex

    return DenseIndex(
        directory,
        encoder=options.encoder,
        search=search or _exact(options),
        device=options.device,
        precision=options.precision,
        threads=options.threads,
        memory_bytes=options.memory_bytes,
        verify=options.verify,
    )


def _open_approximate(directory: Path, options: OpeningOptions) -> Retriever:
    """An approximate index lies in the directory of the dense index whose vectors it searches."""
    from factagent.retrieval.dense.approximate import ApproximateIndex
    from factagent.retrieval.dense.flat_file import find_flat_files

    def search(vectors: Any, identity: str) -> ApproximateIndex:
        return ApproximateIndex.load(
            directory, vectors, identity, threads=options.threads, verify=options.verify
        )  # fmt: skip

    beneath = directory.resolve().parent
    return (_open_flat if find_flat_files(beneath) else _open_dense)(beneath, options, search)


def _open_flat(directory: Path, options: OpeningOptions, search: Any = None) -> Retriever:
    """Search-R1's published files, with exact search unless told otherwise."""
    from factagent.retrieval.dense.exact import open_device
    from factagent.retrieval.dense.flat_index import open_flat_file

    device = str(open_device(options.device))
    return open_flat_file(
        directory, options.encoder, search=search or _exact(options), device=device, threads=options.threads
    )


def _exact(options: OpeningOptions) -> Callable[[Any, str], Any]:
    """Exact search over vectors. Ones too large for the memory are refused, unless a limit allows reading from disk."""
    from factagent.retrieval.dense.exact import ExactIndex, open_device
    from factagent.retrieval.plan import check_memory

    def search(vectors: Any, identity: str) -> ExactIndex:
        device = open_device(options.device)
        if options.memory_bytes is None:
            kind: Literal["exact-bf16", "exact-fp32"] = "exact-bf16" if options.precision == "bf16" else "exact-fp32"
            check_memory(
                kind, len(vectors), vectors.dimension, gpu=(device.index or 0) if device.type == "cuda" else None
            )
        return ExactIndex(
            vectors,
            device=str(device),
            precision=options.precision,
            threads=options.threads,
            memory_bytes=options.memory_bytes,
        )

    return search


def _open_qdrant(spec: str, options: OpeningOptions) -> Retriever:
    from factagent.retrieval.qdrant import open_qdrant

    return open_qdrant(spec, encoder=options.encoder, device=options.device, threads=options.threads)


_OPENERS: dict[str, Callable[[Path, OpeningOptions], Retriever]] = {
    "factagent-bm25": _open_bm25,
    "factagent-dense": _open_dense,
    "factagent-approximate": _open_approximate,
    "flat-file": _open_flat,
}
