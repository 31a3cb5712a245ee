"""Fetch the published files, write our rows, count them, and say in a manifest what came from where.

A directory keeps to the commits with which it began: they stand in its manifest from the first call on. A file is done
when it stands there with its hash; a call that was killed goes on behind the last one that is done, and a download
behind its last byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from factagent.data.contents import contents_passage
from factagent.data.dataset import write_questions
from factagent.data.formats import sha256_of, write_bytes
from factagent.data.hub import MAIN, Hub, HubFile, part_of
from factagent.data.identity import UniqueIds
from factagent.data.published import Corpus, Item, Original, QuestionSet, originals_of
from factagent.data.sources import open_source
from factagent.errors import CorruptError, DataError, ServiceError
from factagent.retrieval.building import hold
from factagent.rows import iter_lines, row_of_line
from factagent.types import Question

MANIFEST = "manifest.json"
ORIGINALS = "originals"

_UNPACKED = 4
"""A packed corpus takes its own size and at most three times as much unpacked (Wiki-18: 2.8 times)."""

_RESERVE_BYTES = 64 << 20
_TOLD_ROWS = 1_000_000


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OriginalRecord(_Record):
    """A published file: where it is, at which commit, and what it was."""

    repository: str
    revision: str
    path: str
    bytes: int
    sha256: str


class OutputRecord(_Record):
    """A file that was prepared; `rows` is None for vectors."""

    rows: int | None
    bytes: int
    sha256: str
    originals: tuple[OriginalRecord, ...]


class Manifest(_Record):
    """What a directory holds: commits by repository, files by path."""

    format: Literal[1] = 1
    revisions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, OutputRecord] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Need:
    """An item that is not done: its published files, and the bytes that it still takes on the disk."""

    item: Item
    files: tuple[HubFile, ...]
    bytes: int


def read_manifest(out: Path) -> Manifest:
    """The manifest of a directory, an empty one where there is none.

    Raises:
        CorruptError: it cannot be read.
    """
    path = out / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes()) if path.exists() else Manifest()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(whole)"
        raise CorruptError(f"{path}: key '{key}': {first['msg']}; delete it to prepare anew") from error


class Preparation:
    """The work on one directory. Create it, look at `done` and `needs`, then iterate `run`.

    Args:
        out: the directory.
        items: what is wanted.
        hub: where it is fetched; asked for nothing where all is done.
        any_count: accept other numbers of rows than the published ones.
        tell: takes a line on what is done now; some steps take minutes.

    Raises:
        CorruptError: the manifest cannot be read.
        DataError: a file that is done holds another number of rows.
        ServiceError: the hub cannot be reached, or lacks a file.
    """

    def __init__(
        self,
        out: Path,
        items: Sequence[Item],
        hub: Hub,
        *,
        any_count: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.out, self._hub, self._any_count, self._tell = out, hub, any_count, tell
        self.manifest = read_manifest(out)
        self.done = [item for item in items if self._is_done(item)]
        listings: dict[str, dict[str, HubFile]] = {}
        self.needs = [self._need(item, listings) for item in items if item not in self.done]

    @property
    def missing_bytes(self) -> int:
        """Bytes that the disk lacks for what is needed; 0 where it all fits."""
        place = next(path for path in (self.out, *self.out.absolute().parents) if path.exists())
        wanted = sum(need.bytes for need in self.needs)
        return max(0, wanted + _RESERVE_BYTES - shutil.disk_usage(place).free) if wanted else 0

    def run(self) -> Iterator[tuple[Item, OutputRecord]]:
        """Prepare what is needed, item by item.

        Raises:
            TryAgainError: another process prepares this directory.
            ServiceError: the hub failed, or the disk is too small (before anything is fetched).
            DataError: a row is malformed, or their number is not the published one.
            CorruptError: a file arrived with another hash.
        """
        with hold(self.out):
            self.manifest = read_manifest(self.out)
            if missing := self.missing_bytes:
                raise ServiceError(
                    f"{self.out}: the disk lacks {missing / 1e9:,.1f} GB; make room, choose another --out, or leave "
                    "out Wiki-18 (--no-corpus)"
                )
            self._write_manifest(revisions=_revisions(self.needs))
            for need in self.needs:
                record = self._prepare(need)
                self._write_manifest(files={need.item.file: record})
                if isinstance(need.item, Corpus):
                    self._original_path(need.item.original).unlink()
                yield need.item, record

    def _is_done(self, item: Item) -> bool:
        record, path = self.manifest.files.get(item.file), self.out / item.file
        if record is None or not path.is_file() or path.stat().st_size != record.bytes:
            return False
        self._tell(f"checking {item.file}")
        if sha256_of(path) != record.sha256:
            return False
        wanted = sum(original.rows or 0 for original in originals_of(item))
        if record.rows is not None:
            self._check_count(path, item.name, record.rows, wanted)
        return True

    def _need(self, item: Item, listings: dict[str, dict[str, HubFile]]) -> Need:
        files, size = [], 0
        for original in originals_of(item):
            name = original.repository
            if name not in listings:
                listings[name] = self._hub.files(name, self.manifest.revisions.get(name, MAIN))
            if original.path not in listings[name]:
                raise ServiceError(
                    f"{self._hub.endpoint}/datasets/{name}: has no file {original.path}; was it renamed, or is this "
                    "another repository (--endpoint)?"
                )
            file = listings[name][original.path]
            files.append(file)
            size += file.size * (_UNPACKED if isinstance(item, Corpus) else 1) - self._there(item, original, file)
        return Need(item, tuple(files), size)

    def _there(self, item: Item, original: Original, file: HubFile) -> int:
        """Bytes of a published file that are on the disk already."""
        target = self._target(item, original)
        there = next((path for path in (target, part_of(target, file)) if path.exists()), None)
        return min(file.size, there.stat().st_size) if there else 0

    def _target(self, item: Item, original: Original) -> Path:
        return self._original_path(original) if isinstance(item, QuestionSet | Corpus) else self.out / item.file

    def _original_path(self, original: Original) -> Path:
        return self.out / ORIGINALS / original.repository.rpartition("/")[2] / original.path

    def _prepare(self, need: Need) -> OutputRecord:
        item, path = need.item, self.out / need.item.file
        path.parent.mkdir(parents=True, exist_ok=True)
        targets = [self._target(item, original) for original in originals_of(item)]
        records = tuple(self._fetch(file, target) for file, target in zip(need.files, targets, strict=True))
        self._tell(f"writing {item.file}")
        if isinstance(item, QuestionSet):
            rows: int | None = write_questions(path, self._questions(item, targets))
        else:
            rows = self._unpack(item, targets[0], path) if isinstance(item, Corpus) else None
        return OutputRecord(rows=rows, bytes=path.stat().st_size, sha256=sha256_of(path), originals=records)

    def _fetch(self, file: HubFile, target: Path) -> OriginalRecord:
        self._tell(f"fetching {file.url} ({file.size / 1e6:,.1f} MB)")
        return OriginalRecord(
            repository=file.repository,
            revision=file.revision,
            path=file.path,
            bytes=file.size,
            sha256=self._hub.fetch(file, target),
        )

    def _questions(self, item: QuestionSet, paths: Sequence[Path]) -> Iterator[Question]:
        """The questions of a set; ends in an error, so that no file appears, where their number is wrong."""
        for original, path in zip(item.originals, paths, strict=True):
            prefix = f"{original.path.partition('/')[0]}:" if len(item.originals) > 1 else ""
            count = 0
            for question in open_source(path, "flashrag").questions():
                yield replace(question, id=prefix + question.id)
                count += 1
            self._check_count(path, original.path, count, original.rows)

    def _unpack(self, item: Corpus, packed: Path, path: Path) -> int:
        """The lines of a packed corpus as they are, each read as a passage."""
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("wb") as stream:
                count = self._copy_passages(item, packed, stream)
            self._check_count(packed, item.name, count, item.original.rows)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return count

    def _copy_passages(self, item: Corpus, packed: Path, stream: IO[bytes]) -> int:
        seen, count = UniqueIds(), 0
        for number, line in iter_lines(packed):
            row = row_of_line(packed, number, line)
            passage = contents_passage(row)
            if not seen.add(passage.id):
                raise row.error("id", f"{passage.id!r} occurs twice; ids must be unique in a corpus")
            stream.write(line if line.endswith(b"\n") else line + b"\n")
            count += 1
            if count % _TOLD_ROWS == 0:
                self._tell(f"writing {item.file}: {count:,} passages")
        return count

    def _check_count(self, path: Path, name: str, found: int, wanted: int | None) -> None:
        if wanted is not None and found != wanted and not self._any_count:
            raise DataError(
                f"{path}: {name} holds {found:,} rows, expected are {wanted:,}; the published file may have changed, "
                "--any-count accepts it as it is"
            )

    def _write_manifest(
        self, *, revisions: dict[str, str] | None = None, files: dict[str, OutputRecord] | None = None
    ) -> None:
        self.manifest = Manifest(
            revisions=self.manifest.revisions | (revisions or {}), files=self.manifest.files | (files or {})
        )
        write_bytes(self.out / MANIFEST, self.manifest.model_dump_json(indent=2).encode() + b"\n")


def _revisions(needs: Sequence[Need]) -> dict[str, str]:
    return {file.repository: file.revision for need in needs for file in need.files}
