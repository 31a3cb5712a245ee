"""BM25 indexes of somebody's documents, kept between calls and found again by the documents' content.

The name of a cached index is a hash over what was indexed and how, so a changed, added or renamed document gives
another index and an unchanged folder the one that is there. The directory is `$FACTAGENT_CACHE`, else `factagent` in
the user's cache directory; what is in it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from factagent.data.documents import PASSAGE_WORDS
from factagent.data.extraction import SUFFIXES
from factagent.data.sources import open_corpus
from factagent.errors import CorruptError, UsageError
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.bm25_build import Report, write_index
from factagent.retrieval.manifest import BM25Settings, Tokeniser

CACHE_VARIABLE = "FACTAGENT_CACHE"
"""Environment variable that names the directory of caches."""

_VERSION = 1
"""Counted up when documents are read or split in another way, so that old indexes are not found any more."""

_LOG = logging.getLogger(__name__)


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where indexes of documents are kept; it need not exist."""
    own = environment.get(CACHE_VARIABLE)
    base = Path(own) if own else Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "factagent"
    return base / "documents"


def open_documents(documents: Path, cache: Path, report: Report | None = None) -> BM25Index:
    """The index of a folder of documents, or of any corpus file; made where the cache lacks it.

    Args:
        documents: what `data.sources.open_corpus` reads.
        cache: the directory of cached indexes.
        report: is told how far the making is; not called where the index is there.

    Raises:
        DataError: there are no documents, or one cannot be read.
        UsageError: the cache cannot be written.
        TryAgainError: another process is indexing the same documents.
    """
    directory = cache / content_key(documents)
    if directory.is_dir():
        try:
            return BM25Index.load(directory)
        except CorruptError as error:
            _LOG.warning("%s; indexing %s again", error, documents)
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_index(open_corpus(documents), directory, overwrite=directory.exists(), report=report)
    except OSError as error:
        problem = (
            f"cannot be written ({error.strerror}); choose another by {CACHE_VARIABLE}, or do without (--no-cache)"
        )
        raise UsageError(f"cache {cache}: {problem}") from error
    return BM25Index.load(directory)


def content_key(documents: Path) -> str:
    """A name for the index of these documents: equal where their paths, their bytes and our settings are equal."""
    digest = hashlib.sha256()
    for setting in (_VERSION, PASSAGE_WORDS, BM25Settings().model_dump_json(), Tokeniser().model_dump_json()):
        digest.update(f"{setting}\0".encode())
    for name, path in _files(documents):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:32]


def _files(documents: Path) -> Iterator[tuple[str, Path]]:
    """Every file that may become a passage: relative name and path, sorted by name."""
    if not documents.is_dir():
        yield documents.name, documents
        return
    found = (path for path in documents.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    yield from sorted((path.relative_to(documents).as_posix(), path) for path in found)
