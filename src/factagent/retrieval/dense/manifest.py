"""The manifest of a dense index: which encoder made the vectors, how, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from factagent.errors import CorruptError, DataError
from factagent.retrieval.manifest import MANIFEST_NAME, FileRecord, file_record
from factagent.retrieval.passages import OFFSETS_NAME, PASSAGES_NAME
from factagent.sentence_models import Precision

FORMAT = "factagent-dense"
_REBUILD = "build it again with: factagent index build --kind dense --encoder NAME --corpus FILE --out DIR"

HASHED_BYTES = 256 << 20
"""An index up to this size has its hashes compared whenever it is opened (a fraction of a second)."""
Pooling = Literal["model", "mean", "cls"]
"""How token vectors become one: as the model's own files say, the mean over the text's tokens, or the first token."""
TitleForm = Literal["plain", "quoted"]
"""How a title stands before its passage: as it is, or in double quotes as in Search-R1's corpus."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EncoderSettings(_Record):
    """Everything about an encoder that its vectors depend on, apart from the weights."""

    name: str = Field(min_length=1)
    """"minilm", a name that sentence-transformers resolves, or a directory."""
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "model"
    titles: TitleForm = "plain"
    query_tokens: int = Field(default=256, ge=2)
    """A query is cut to this many tokens, the prefix and the model's own marks included."""
    passage_tokens: int = Field(default=256, ge=2)


class EncoderRecord(EncoderSettings):
    """The settings of the encoder that embedded a corpus, with what it was."""

    weights_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 over names and bytes of all weights: another model of the same name is refused."""
    precision: Precision
    """What the passages were embedded in."""


class DenseManifest(_Record):
    """Everything needed to decide whether a dense index may be read, and to build it again."""

    format: Literal["factagent-dense"] = "factagent-dense"
    version: Literal[1] = 1
    encoder: EncoderRecord
    dimension: int = Field(ge=1)
    dtype: Literal["float16"] = "float16"
    passages: int = Field(ge=1)
    shard_size: int = Field(ge=1)
    """Vectors of each shard but the last."""
    shards: tuple[str, ...]
    """Names of the files with the vectors, in order."""
    corpus_sha256: str
    """SHA-256 of the passages in canonical form (`passages.corpus_sha256`)."""
    files: dict[str, FileRecord]

    @property
    def vectors_sha256(self) -> str:
        """Identity of the vectors: SHA-256 over the hashes of the shards."""
        return hashlib.sha256("".join(self.files[name].sha256 for name in self.shards).encode("ascii")).hexdigest()


def shard_name(number: int) -> str:
    """The file that holds a shard's vectors."""
    return f"vectors-{number:05d}.npy"


def write_dense_manifest(directory: Path, manifest: DenseManifest) -> None:
    """Write `manifest.json`, the last file of an index."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    (directory / MANIFEST_NAME).write_text(text, "utf-8")


def read_dense_manifest(directory: Path) -> DenseManifest:
    """Read and check `manifest.json`.

    Raises:
        DataError: no index there, or an index of another format or version.
        CorruptError: the manifest is not JSON, or does not list the files that a dense index has.
    """
    path = directory / MANIFEST_NAME
    if not path.is_file():
        raise DataError(f"{directory} holds no index ({MANIFEST_NAME} is missing); {_REBUILD}")
    try:
        manifest = DenseManifest.model_validate(json.loads(path.read_text("utf-8")))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptError(f"{path}: not valid JSON ({error}); {_REBUILD}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(whole file)"
        raise DataError(f"{path}: key '{key}' is {first['input']!r}: {first['msg']}; {_REBUILD}") from error
    shards = -(-manifest.passages // manifest.shard_size)
    wanted = [PASSAGES_NAME, OFFSETS_NAME, *map(shard_name, range(shards))]
    if list(manifest.shards) != wanted[2:] or sorted(manifest.files) != sorted(wanted):
        raise CorruptError(f"{path}: lists other files than {manifest.passages} passages need; {_REBUILD}")
    return manifest


def verify_dense_files(directory: Path, manifest: DenseManifest, *, verify: bool | None = None) -> None:
    """Check the size of every file, and its SHA-256 with `verify`; None does so up to `HASHED_BYTES` in all.

    Raises:
        CorruptError: names the first file that is missing or differs.
    """
    small = sum(record.bytes for record in manifest.files.values()) <= HASHED_BYTES
    hashes = small if verify is None else verify
    for name, wanted in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise CorruptError(f"{path} is missing; {_REBUILD}")
        if (size := path.stat().st_size) != wanted.bytes:
            raise CorruptError(f"{path}: {size} bytes, the manifest says {wanted.bytes}; {_REBUILD}")
        if hashes and file_record(path).sha256 != wanted.sha256:
            raise CorruptError(f"{path}: its SHA-256 differs from the manifest's; {_REBUILD}")
