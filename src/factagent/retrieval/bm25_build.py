"""Building a BM25 index: in shards, in bounded memory, and on from where a killed build stopped.

1. Collect: passages are read one at a time, written to `passages.jsonl`, and their words counted into shards
   (`bm25_shards`). After each shard the state is saved. A build that goes on reads its corpus from the beginning and
   compares every passage with what it has, so it cannot mix two corpora; that is far cheaper than counting words.
2. Merge: the shards become one array of scores. Killed here, a build merges again.
3. Place: the finished directory gets its name.

All this happens in a hidden neighbour, `.NAME.building`. The finished bytes depend on passages and settings alone: not
on the size of the shards, nor on where a build was interrupted. RAM holds the vocabulary (which search needs too),
eight bytes an id, four bytes a passage, and one shard.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from factagent.errors import DataError, UsageError
from factagent.retrieval.bm25_shards import OpenShard, Shard, merge
from factagent.retrieval.bm25_words import tokenise
from factagent.retrieval.building import (
    ChangedBuildError,
    building_path,
    hold,
    place,
    refuse_target,
    restore,
    sync,
    write_whole,
)
from factagent.retrieval.manifest import (
    MANIFEST_NAME,
    BM25Settings,
    IndexManifest,
    Tokeniser,
    file_record,
    read_manifest,
    write_manifest,
)
from factagent.retrieval.passages import (
    OFFSETS_NAME,
    PASSAGES_NAME,
    SeenIds,
    corpus_sha256,
    id_hash,
    passage_line,
)
from factagent.types import Passage

TERMS_NAME = "terms.json"
SCORES_NAME = "scores.npy"
POSITIONS_NAME = "positions.npy"
STARTS_NAME = "starts.npy"
FILE_NAMES = (PASSAGES_NAME, OFFSETS_NAME, TERMS_NAME, SCORES_NAME, POSITIONS_NAME, STARTS_NAME)
SHARD_WORDS = 8_000_000
"""Default size of a shard: some 80,000 passages of 100 words, about 250 MB of RAM while it is saved."""
_STATE_NAME = "state.json"
_REPORT_EVERY = 256

_RESTART = "start again with --force (restart=True), or go back to what it began with"

Report = Callable[[Literal["comparing", "reading", "scoring"], int, int | None], None]
"""Is told the stage, how much of it is done, and of how much (None: unknown).

The stages are `comparing` (passages that an interrupted build had read), `reading` (passages) and `scoring` (postings).
"""


class _State(BaseModel):
    """How far a build is: what it was begun with, and its finished shards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    settings: BM25Settings
    tokeniser: Tokeniser = Tokeniser()
    shards: int = 0
    passages: int = 0
    corpus_bytes: int = 0


def write_index(
    passages: Iterable[Passage],
    directory: Path,
    settings: BM25Settings | None = None,
    *,
    overwrite: bool = False,
    restart: bool = False,
    shard_words: int = SHARD_WORDS,
    report: Report | None = None,
) -> IndexManifest:
    """Index `passages` into `directory`, which appears in one piece at the end.

    The text searched is the title, a blank, and the text. An interrupted build goes on when called again with the same
    passages and settings; the size of the shards may change.

    Args:
        passages: the corpus, read once.
        directory: where the index goes.
        settings: constants and words; Pyserini's by default.
        overwrite: replace the index that `directory` holds.
        restart: forget an interrupted build.
        shard_words: a shard is closed once it holds so many words; RAM is about 30 bytes for each.
        report: called now and then with the progress.

    Raises:
        DataError: no passage, no word in any passage, or an id twice.
        ChangedBuildError: an interrupted build was begun with other passages or settings.
        UsageError: `directory` exists, and is not an index or `overwrite` is false; `shard_words` is below 1.
        TryAgainError: another process is building `directory`.
    """
    if shard_words < 1:
        raise UsageError(f"shard_words={shard_words}: must be at least 1")
    path = building_path(directory)
    with hold(path):
        build = _Build(path, directory, settings or BM25Settings(), report or _say_nothing)
        try:
            return build.run(passages, overwrite, restart, shard_words)
        finally:
            if build.is_over:
                shutil.rmtree(path)


def _say_nothing(stage: str, done: int, total: int | None) -> None:
    pass


class _Build:
    """One run of a build; the caller holds the lock of `path`."""

    def __init__(self, path: Path, directory: Path, settings: BM25Settings, report: Report) -> None:
        self._path, self._directory, self._report = path, directory, report
        self._index, self._lines = path / "index", path / "index" / PASSAGES_NAME
        self._state = _State(settings=settings)
        self._terms: dict[str, int] = {}
        self._ids = SeenIds()

    @property
    def is_over(self) -> bool:
        """True where nothing is left that a later run could go on from: placed, or no shard finished."""
        return not self._index.exists() or not (self._path / _STATE_NAME).exists()

    def run(self, passages: Iterable[Passage], overwrite: bool, restart: bool, shard_words: int) -> IndexManifest:
        """All stages; see `write_index`."""
        restore(self._index, self._directory)
        begun = (self._path / _STATE_NAME).exists() and not restart
        if begun:
            self._take_up()
            if not self._index.exists():
                return self._confirm(passages)
        refuse_target(self._directory, MANIFEST_NAME, overwrite)
        if not begun:
            self._begin()
        self._collect(passages, shard_words)
        manifest = self._finish()
        place(self._index, self._directory)
        return manifest

    def _begin(self) -> None:
        """Clear what is there. The state is saved with the first shard; before that there is nothing to keep."""
        (self._path / _STATE_NAME).unlink(missing_ok=True)
        for name in ("index", "shards"):
            shutil.rmtree(self._path / name, ignore_errors=True)
            (self._path / name).mkdir()
        self._lines.touch()

    def _take_up(self) -> None:
        """Read the state of an interrupted build, and refuse it where it was begun with other settings."""
        where = self._path / _STATE_NAME
        try:
            state = _State.model_validate_json(where.read_bytes())
        except ValidationError as error:
            raise ChangedBuildError(f"{where}: written by another version of factagent; {_RESTART}") from error
        old, new = state.settings.model_dump(), self._state.settings.model_dump()
        changes = [f"{key} was {old[key]}, is now {new[key]}" for key in old if old[key] != new[key]]
        if changes:
            raise ChangedBuildError(f"{self._interrupted} has other settings ({', '.join(changes)}); {_RESTART}")
        self._state = state

    @property
    def _interrupted(self) -> str:
        return f"index directory {self._directory}: the interrupted build"

    def _confirm(self, passages: Iterable[Passage]) -> IndexManifest:
        """The last run was killed between giving the index its name and saying so: nothing is left to do."""
        manifest = read_manifest(self._directory)
        if corpus_sha256(passages) != manifest.corpus_sha256:
            raise ChangedBuildError(f"index directory {self._directory}: finished, but from another corpus; {_RESTART}")
        return manifest

    def _collect(self, passages: Iterable[Passage], shard_words: int) -> None:
        """Write the passages and their shards, from where the last run stopped."""
        with self._lines.open("r+b") as stream:
            stream.truncate(self._state.corpus_bytes)
            rest = self._skip(iter(passages), stream)
            for shard in self._shards():
                self._terms.update(zip(shard.new_words(), count(len(self._terms)), strict=False))
                self._ids.add(shard.ids, self._lines)
            known = len(self._terms)
            while (fresh := self._fill(rest, stream, shard_words)).passages:
                stream.flush()
                self._save(fresh, list(islice(self._terms, known, None)))
                known = len(self._terms)

    def _skip(self, passages: Iterator[Passage], stream: BinaryIO) -> Iterator[Passage]:
        """Go past the passages of the finished shards, once they have been compared with the corpus."""
        known = self._state.passages
        for number in range(1, known + 1):
            passage = next(passages, None)
            if passage is None:
                problem = f"had read {known} passages, the corpus now ends after {number - 1}"
                raise ChangedBuildError(f"{self._interrupted} {problem}; {_RESTART}")
            if passage_line(passage) != stream.readline():
                problem = f"had read another passage {number} than the corpus has now (id {passage.id!r})"
                raise ChangedBuildError(f"{self._interrupted} {problem}; {_RESTART}")
            if number % _REPORT_EVERY == 0 or number == known:
                self._report("comparing", number, known)
        stream.seek(0, os.SEEK_END)
        return passages

    def _fill(self, passages: Iterator[Passage], stream: BinaryIO, shard_words: int) -> OpenShard:
        """The next shard, without passages where there are no more."""
        shard, terms, settings = OpenShard(self._state.passages), self._terms, self._state.settings
        for passage in passages:
            line = passage_line(passage)
            stream.write(line)
            words = tokenise(f"{passage.title} {passage.text}", settings)
            shard.add([terms.setdefault(word, len(terms)) for word in words], len(line), id_hash(passage.id))
            if shard.passages % _REPORT_EVERY == 0:
                self._report("reading", shard.first + shard.passages, None)
            if shard.words >= shard_words:
                break
        return shard

    def _save(self, shard: OpenShard, new_words: list[str]) -> None:
        """Keep a shard: once the state is saved, no later run does its work again."""
        self._ids.add(shard.ids, self._lines)
        sync([self._lines])
        state = self._state
        directory = self._shard_path(state.shards)
        shutil.rmtree(directory, ignore_errors=True)  # of a run that was killed while it wrote
        shard.save(directory, new_words)
        self._state = state.model_copy(
            update={
                "shards": state.shards + 1,
                "passages": state.passages + shard.passages,
                "corpus_bytes": state.corpus_bytes + shard.corpus_bytes,
            }
        )
        write_whole(self._path / _STATE_NAME, self._state.model_dump_json(indent=2))

    def _finish(self) -> IndexManifest:
        """Merge the shards and write everything else."""
        if not self._terms:
            (self._path / _STATE_NAME).unlink(missing_ok=True)
            found = f"{self._state.passages} passages and no word in them"
            raise DataError(f"the corpus holds {found}; there is nothing to index")
        shards, index = self._shards(), self._index
        line_bytes = np.concatenate([shard.line_bytes for shard in shards])
        np.save(index / OFFSETS_NAME, np.append(0, np.cumsum(line_bytes)), allow_pickle=False)
        (index / TERMS_NAME).write_text(json.dumps(list(self._terms), ensure_ascii=False), "utf-8")
        starts = merge(
            shards,
            len(self._terms),
            self._state.settings,
            index / SCORES_NAME,
            index / POSITIONS_NAME,
            lambda done, total: self._report("scoring", done, total),
        )
        np.save(index / STARTS_NAME, starts, allow_pickle=False)
        return self._sign()

    def _sign(self) -> IndexManifest:
        """Write the manifest, and see everything onto the disk before the index gets its name."""
        files = {name: file_record(self._index / name) for name in FILE_NAMES}
        manifest = IndexManifest(
            settings=self._state.settings,
            tokeniser=Tokeniser(),
            passages=self._state.passages,
            terms=len(self._terms),
            corpus_sha256=files[PASSAGES_NAME].sha256,
            files=files,
        )
        write_manifest(self._index, manifest)
        sync([*self._index.iterdir(), self._index])
        return manifest

    def _shards(self) -> list[Shard]:
        return [Shard(self._shard_path(number)) for number in range(self._state.shards)]

    def _shard_path(self, number: int) -> Path:
        return self._path / "shards" / f"{number:06d}"
