"""The manifest of an index directory: what was indexed, how, and the hash of every file.

An index is read only where the manifest fits: known format and version, exactly the expected files, their sizes. Hashes
are compared where the caller asks for it (`verify_files`); a changed byte is then an error that names the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from factagent.errors import CorruptError, DataError

MANIFEST_NAME = "manifest.json"
_REBUILD = "build it again with: factagent index build --corpus FILE --out DIR"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Record = TypeVar("Record", bound=BaseModel)


class BM25Settings(_Record):
    """How BM25 reads text and scores it. The constants are Pyserini's, which Search-R1 and its successors use."""

    k1: float = Field(default=0.9, gt=0, allow_inf_nan=False)
    """Term-frequency saturation."""
    b: float = Field(default=0.4, ge=0, le=1)
    """Length normalisation."""
    method: Literal["lucene", "robertson", "atire"] = "lucene"
    """The variant of the formula; these three score 0 where no query term occurs."""
    stop_words: Literal["none", "en"] = "none"
    """`en` drops Lucene's 33 English stop words from passages and queries."""


class Tokeniser(_Record):
    """The pinned tokeniser: lower-case, then every match of `pattern`; no stemming."""

    name: Literal["lower-words"] = "lower-words"
    pattern: Literal[r"[^\W_]+"] = r"[^\W_]+"
    version: Literal[1] = 1


class FileRecord(_Record):
    """Size and hash of one file of the index."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class IndexManifest(_Record):
    """Everything needed to decide whether an index may be read, and to build the same one again."""

    format: Literal["factagent-bm25"] = "factagent-bm25"
    version: Literal[2] = 2
    settings: BM25Settings
    tokeniser: Tokeniser
    passages: int = Field(ge=1)
    terms: int = Field(ge=1)
    corpus_sha256: str
    """SHA-256 of the passages in canonical form (`passages.corpus_sha256`), whatever file they came from."""
    files: dict[str, FileRecord]


def file_record(path: Path) -> FileRecord:
    """Size and SHA-256 of a file, read in pieces."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileRecord(bytes=path.stat().st_size, sha256=digest)


def write_manifest(directory: Path, manifest: IndexManifest) -> None:
    """Write `manifest.json`; it comes last, so that a directory without it is known to be unfinished."""
    text = json.dumps(manifest.model_dump(), indent=2, ensure_ascii=False) + "\n"
    (directory / MANIFEST_NAME).write_text(text, "utf-8")


def read_manifest(directory: Path) -> IndexManifest:
    """Read and check `manifest.json`.

    Raises:
        DataError: no index there, or an index of another format or version.
        CorruptError: the manifest is not valid JSON.
    """
    return read_record(directory / MANIFEST_NAME, IndexManifest, "index", _REBUILD)


def read_record(path: Path, model: type[Record], kind: str, rebuild: str) -> Record:
    """A manifest of any kind of index, checked; `rebuild` says how to make the index again."""
    if not path.is_file():
        raise DataError(f"{path.parent} holds no {kind} ({path.name} is missing); {rebuild}")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptError(f"{path}: not valid JSON ({error}); {rebuild}") from error
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(whole file)"
        raise DataError(f"{path}: key '{key}' is {first['input']!r}: {first['msg']}; {rebuild}") from error


def verify_files(directory: Path, manifest: IndexManifest, names: Sequence[str], *, hashes: bool = True) -> None:
    """Check that the manifest lists exactly `names` and that each file has its size and, with `hashes`, its bytes.

    Raises:
        CorruptError: names the first file that is missing, or has another size or hash.
    """
    if sorted(manifest.files) != sorted(names):
        listed = ", ".join(sorted(manifest.files))
        raise CorruptError(f"{directory / MANIFEST_NAME}: lists the files {listed}; expected {', '.join(names)}")
    for name in names:
        path, wanted = directory / name, manifest.files[name]
        if not path.is_file():
            raise CorruptError(f"{path} is missing; {_REBUILD}")
        if (size := path.stat().st_size) != wanted.bytes:
            raise CorruptError(f"{path}: {size} bytes, the manifest says {wanted.bytes}; {_REBUILD}")
        if hashes and file_record(path).sha256 != wanted.sha256:
            raise CorruptError(f"{path}: its SHA-256 differs from the manifest's; {_REBUILD}")
