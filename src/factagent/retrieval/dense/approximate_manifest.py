"""What an approximate index says about itself: preset, settings, measured recall, and the hash of its files.

A faiss file is opened only through this manifest, after size and SHA-256 fit: faiss trusts what it reads.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from factagent.errors import CorruptError
from factagent.retrieval.manifest import FileRecord, file_record, read_record

Preset = Literal["ivf-sq8", "ivf-rabitq"]

APPROXIMATE_DIRECTORY = "approximate"
"""Where the approximate index lies inside the directory of its dense index."""
MANIFEST_NAME = "manifest.json"
FAISS_NAME = "index.faiss"
SIZES_NAME = "sizes.npy"
LISTS_NAME = "lists.bin"
FILE_NAMES = (FAISS_NAME, SIZES_NAME, LISTS_NAME)
HASHED_BYTES = 1 << 30
"""Lists up to this size are compared with their hash at every start (some 2 seconds a gigabyte)."""
REBUILD = "build it again with: factagent index approximate DIR --preset ivf-sq8 (or ivf-rabitq) --force"
RECALL_AT = 3
"""Recall is measured among the best 3, what search agents read."""
MIN_POINTS_PER_LIST = 39
"""Fewer training vectors a list than this and k-means overfits (faiss warns at the same number)."""


class PresetFigures(NamedTuple):
    """What a preset keeps of a vector of d dimensions, and how many candidates it re-ranks unless told otherwise."""

    bytes_per_dimension: float
    bytes_fixed: int
    rerank: int

    def bytes_per_vector(self, dimension: int) -> float:
        """Bytes in the inverted lists: the code, faiss's factors, and the position (8 bytes)."""
        return math.ceil(self.bytes_per_dimension * dimension) + self.bytes_fixed


PRESETS: dict[Preset, PresetFigures] = {
    "ivf-sq8": PresetFigures(1.0, 8, 10),
    "ivf-rabitq": PresetFigures(1 / 8, 16, 50),
}


def list_count(passages: int) -> int:
    """Number of inverted lists: the power of two nearest to 2·sqrt(N), at most N / 39, at least 1.

    About sqrt(N) lists balance the comparison of a query with the lists' centres against the scan of a few lists; 2x
    makes lists short enough for a small `nprobe`. 100k passages: 512 lists, 1M: 2,048, 21M: 8,192.
    """
    wanted = 1 << round(math.log2(2 * math.sqrt(max(passages, 1))))
    return max(1, min(wanted, passages // MIN_POINTS_PER_LIST))


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Recall(_Record):
    """Recall among the best 3 against exact search, as measured when the index was built."""

    at: Literal[3] = 3
    measured: float = Field(ge=0, le=1)
    target: float = Field(gt=0, le=1)
    queries: int = Field(ge=1)
    source: Literal["perturbed", "given"]
    """`perturbed`: vectors of passages plus noise, the passage itself left out; `given`: vectors of real queries."""

    @property
    def met(self) -> bool:
        """True where the measured recall reaches the target."""
        return self.measured >= self.target


class ApproximateManifest(_Record):
    """Everything needed to decide whether an approximate index may be read, and how to search it."""

    format: Literal["factagent-approximate"] = "factagent-approximate"
    version: Literal[1] = 1
    faiss: str
    preset: Preset
    passages: int = Field(ge=1)
    dimension: int = Field(ge=1)
    vectors: str
    """Identity of the vectors that were indexed; an index of other vectors is refused."""
    nlist: int = Field(ge=1)
    nprobe: int = Field(ge=1)
    rerank: int = Field(ge=0)
    """Candidates of a query that are scored again with the stored vectors; 0 for none."""
    seed: int
    trained_on: int = Field(ge=1)
    recall: Recall
    bytes_per_vector: float = Field(gt=0)
    """Size of all files over the number of passages."""
    build_seconds: float = Field(ge=0)
    """Wall time of the last run of the build; a build that was resumed took longer in all."""
    files: dict[str, FileRecord]


def write_approximate_manifest(directory: Path, manifest: ApproximateManifest) -> None:
    """Write `manifest.json`, the last file of a build."""
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest.model_dump(), indent=2) + "\n", "utf-8")


def read_approximate_manifest(directory: Path) -> ApproximateManifest:
    """Read and check the manifest of the approximate index in `directory`.

    Raises:
        DataError: no approximate index there, or one of another format or version.
        CorruptError: the manifest is not JSON.
    """
    return read_record(directory / MANIFEST_NAME, ApproximateManifest, "approximate index", REBUILD)


def verify_approximate(directory: Path, manifest: ApproximateManifest, *, verify: bool | None = None) -> None:
    """Check size and SHA-256 of the files.

    `lists.bin` holds codes and positions, which no one interprets but the search that checks them; so the hash of large
    lists is compared only where `verify` is true. What faiss itself reads is always compared.

    Raises:
        CorruptError: names the file that is missing or differs.
    """
    if sorted(manifest.files) != sorted(FILE_NAMES):
        raise CorruptError(f"{directory / MANIFEST_NAME}: lists other files than {', '.join(FILE_NAMES)}; {REBUILD}")
    for name, wanted in manifest.files.items():
        small = wanted.bytes <= HASHED_BYTES if verify is None else verify
        check_file(directory / name, wanted, hashes=small or name != LISTS_NAME)


def check_file(path: Path, wanted: FileRecord, *, hashes: bool = True) -> None:
    """Check that a file is as it was written.

    Raises:
        CorruptError: it is missing, or its size or SHA-256 differs.
    """
    if not path.is_file():
        raise CorruptError(f"{path} is missing; {REBUILD}")
    if (size := path.stat().st_size) != wanted.bytes:
        raise CorruptError(f"{path}: {size} bytes, the manifest says {wanted.bytes}; {REBUILD}")
    if hashes and file_record(path) != wanted:
        raise CorruptError(f"{path}: its SHA-256 differs from the manifest's; {REBUILD}")
