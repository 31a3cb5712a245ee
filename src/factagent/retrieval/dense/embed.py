"""Build a dense index: embed a corpus shard by shard, so that a killed build goes on where it stopped.

A shard's vectors are written to a temporary name, synced and renamed, and only then recorded. A build that is started
again reads the corpus from its beginning, checks the passages of finished shards against their recorded hash, and
embeds the rest; batches never reach over a shard's end, so the result has the same bytes. RAM holds one shard of
vectors, a block of texts and sixteen bytes a passage.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from factagent.errors import CorruptError, DataError, UsageError
from factagent.retrieval.building import ChangedBuildError, building_path, hold, place, refuse_target, restore, sync
from factagent.retrieval.building import write_whole as write_state
from factagent.retrieval.dense.encode import TextEncoder
from factagent.retrieval.dense.manifest import (
    DenseManifest,
    EncoderRecord,
    shard_name,
    write_dense_manifest,
)
from factagent.retrieval.dense.progress import EmbeddingProgress
from factagent.retrieval.manifest import MANIFEST_NAME, FileRecord, file_record
from factagent.retrieval.passages import OFFSETS_NAME, PASSAGES_NAME, SeenIds, id_hash, passage_line
from factagent.types import Passage

logger = logging.getLogger(__name__)

SHARD_SIZE = 65_536
"""Vectors of a shard by default: 100 MB at 768 dimensions. A killed build loses at most one shard's work."""
BLOCK = 2_048
"""Texts handed to the encoder at once; it sorts them by length."""
STATE_NAME = "build.json"


class _ShardRecord(BaseModel):
    """What is known of a finished shard."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    passages: int = Field(ge=1)
    lines_sha256: str
    vectors: FileRecord


def build_dense(
    passages: Iterable[Passage],
    directory: Path,
    encoder: TextEncoder,
    *,
    shard_size: int = SHARD_SIZE,
    total: int | None = None,
    overwrite: bool = False,
    restart: bool = False,
) -> DenseManifest:
    """Embed `passages` into the index `directory`, which appears in one piece at the end; run again to go on.

    Args:
        passages: the corpus, streamed; the same from its beginning when a build goes on.
        directory: where the index is to lie. Until then a hidden neighbour holds what there is.
        encoder: embeds the passages.
        shard_size: vectors of a shard.
        total: number of passages, for the estimate of the time left.
        overwrite: replace an index that is there.
        restart: begin again, whatever an unfinished build has done.

    Raises:
        UsageError: `directory` exists and `overwrite` is false.
        ChangedBuildError: an unfinished build is there, of another corpus or other settings.
        TryAgainError: another process builds here.
        DataError: no passages, an id twice, or a text that is not Unicode.
    """
    if shard_size < 1:
        raise UsageError(f"shard_size={shard_size}: must be at least 1")
    refuse_target(directory, MANIFEST_NAME, overwrite)
    work = building_path(directory)
    with hold(work):
        restore(work / "new", directory)
        if restart:
            _clear(work)
        record = EncoderRecord(
            **encoder.settings.model_dump(), weights_sha256=encoder.weights_sha256(), precision=encoder.precision
        )
        _claim(work, record, shard_size)
        with _Build(work, encoder, shard_size, total) as build:
            build.run(iter(passages))
        manifest = build.finish(record)
        place(work / "new", directory)
        shutil.rmtree(work)
    return manifest


class _Build:
    """A build in its working directory."""

    def __init__(self, work: Path, encoder: TextEncoder, shard_size: int, total: int | None) -> None:
        self._work, self._new, self._encoder, self._shard_size = work, work / "new", encoder, shard_size
        self._new.mkdir(exist_ok=True)
        self._lines: BinaryIO = (self._new / PASSAGES_NAME).open("wb")
        self._offsets = array("q", [0])
        self._ids = SeenIds()
        self._id_hashes = array("Q")  # of the shard at hand
        self._corpus = hashlib.sha256()
        self._shards: list[_ShardRecord] = []
        self._progress = EmbeddingProgress(total)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        self._lines.close()

    def run(self, passages: Iterator[Passage]) -> None:
        """Embed what is not yet embedded, until the corpus ends."""
        while len(self._offsets) - 1 == len(self._shards) * self._shard_size:
            number = len(self._shards)
            done = self._finished(number)
            shard = islice(passages, self._shard_size)
            record = self._pass_over(number, done, shard) if done else self._embed(number, shard)
            if record is None:
                break
            self._shards.append(record)
            self._refuse_repeated_ids()
        if not self._shards:
            raise DataError("the corpus holds no passages; there is nothing to index")

    def finish(self, encoder: EncoderRecord) -> DenseManifest:
        """Write offsets and manifest, remove what an earlier, longer build may have left, and sync everything."""
        np.save(self._new / OFFSETS_NAME, np.frombuffer(self._offsets, dtype=np.int64), allow_pickle=False)
        shards = {shard_name(number): shard.vectors for number, shard in enumerate(self._shards)}
        files = {name: file_record(self._new / name) for name in (PASSAGES_NAME, OFFSETS_NAME)} | shards
        for path in self._new.iterdir():
            if path.name not in files:
                path.unlink()
        manifest = DenseManifest(
            encoder=encoder,
            dimension=self._encoder.dimension,
            passages=len(self._offsets) - 1,
            shard_size=self._shard_size,
            shards=tuple(shards),
            corpus_sha256=self._corpus.hexdigest(),
            files=files,
        )
        write_dense_manifest(self._new, manifest)
        sync([*self._new.iterdir(), self._new])
        return manifest

    def _finished(self, number: int) -> _ShardRecord | None:
        """The record of a shard whose vectors are on disk as they were written, else None."""
        path = self._record_path(number)
        if not path.is_file():
            return None
        try:
            record = _ShardRecord.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise CorruptError(f"{path}: not a shard's record; delete {self._work} to begin again") from error
        vectors = self._new / shard_name(number)
        return record if vectors.is_file() and file_record(vectors) == record.vectors else None

    def _pass_over(self, number: int, record: _ShardRecord, shard: Iterator[Passage]) -> _ShardRecord:
        count, digest = 0, hashlib.sha256()
        for block in _blocks(shard):
            count += len(block)
            digest.update(self._keep(block))
            self._progress.passed_over(len(block))
        if (count, digest.hexdigest()) != (record.passages, record.lines_sha256):
            first = number * self._shard_size
            raise ChangedBuildError(
                f"{self._work}: the passages {first + 1} to {first + record.passages} are not those that this build "
                "began with; give the same corpus, or delete that directory to begin again"
            )
        return record

    def _embed(self, number: int, shard: Iterator[Passage]) -> _ShardRecord | None:
        """Embed and write one shard; None where the corpus has ended."""
        rows = np.empty((self._shard_size, self._encoder.dimension), dtype=np.float16)
        count, digest = 0, hashlib.sha256()
        for block in _blocks(shard):
            digest.update(self._keep(block))
            vectors = self._encoder.passages([self._encoder.contents(passage) for passage in block])
            rows[count : count + len(block)] = vectors
            count += len(block)
            self._progress.embedded(len(block))
        if not count:
            return None
        vectors_file = self._write(number, rows[:count])
        record = _ShardRecord(passages=count, lines_sha256=digest.hexdigest(), vectors=vectors_file)
        write_state(self._record_path(number), record.model_dump_json() + "\n")
        return record

    def _keep(self, block: list[Passage]) -> bytes:
        """Append passages to the corpus of the index; their lines."""
        lines = [passage_line(passage) for passage in block]
        joined = b"".join(lines)
        self._lines.write(joined)
        self._corpus.update(joined)
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._id_hashes.extend(id_hash(passage.id) for passage in block)
        return joined

    def _refuse_repeated_ids(self) -> None:
        self._lines.flush()  # read where two ids may be equal
        self._ids.add(np.array(self._id_hashes, dtype=np.uint64), self._new / PASSAGES_NAME)
        del self._id_hashes[:]

    def _write(self, number: int, rows: np.ndarray[tuple[int, int], np.dtype[np.float16]]) -> FileRecord:
        path = self._new / shard_name(number)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as stream:
            np.save(stream, rows, allow_pickle=False)
        sync([partial])
        partial.replace(path)
        sync([self._new])
        return file_record(path)

    def _record_path(self, number: int) -> Path:
        return self._work / f"shard-{number:05d}.json"


def _blocks(passages: Iterator[Passage]) -> Iterator[list[Passage]]:
    while block := list(islice(passages, BLOCK)):
        yield block


def _clear(work: Path) -> None:
    """Remove what a build has done, but not the lock that this one holds."""
    shutil.rmtree(work / "new", ignore_errors=True)
    for path in (work / STATE_NAME, *work.glob("shard-*.json")):
        path.unlink(missing_ok=True)


def _claim(work: Path, encoder: EncoderRecord, shard_size: int) -> None:
    """Note what is being built, or check that an unfinished build is of the same."""
    wanted = {"encoder": encoder.model_dump(mode="json"), "shard_size": shard_size}
    path = work / STATE_NAME
    if not path.is_file():
        write_state(path, json.dumps(wanted, indent=2, ensure_ascii=False) + "\n")
        return
    try:
        found = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptError(f"{path}: not valid JSON ({error}); delete {work} to begin again") from error
    if found != wanted:
        flat_found, flat_wanted = _flat(found), _flat(wanted)
        key = next(key for key in flat_wanted | flat_found if flat_found.get(key) != flat_wanted.get(key))
        raise ChangedBuildError(
            f"{work}: an unfinished build has {key}={flat_found.get(key)!r}, this one {flat_wanted.get(key)!r}; "
            "give the same settings, or delete that directory to begin again"
        )


def _flat(state: dict[str, object]) -> dict[str, object]:
    encoder = state.get("encoder")
    return {**state, **(encoder if isinstance(encoder, dict) else {}), "encoder": None}
