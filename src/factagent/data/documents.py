"""A folder of documents as a corpus: `.txt`, `.md`, `.html` and `.pdf`, split into passages.

Passages are `{"id": "relative/path.md#3", "title", "text"}`, numbered from 1 in each document; documents come in the
order of their paths. What is left out is named in `DocumentFolder.skipped`, and in a warning of this module's logger.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from factagent.data.extraction import SUFFIXES, read_document
from factagent.data.splitting import split_text
from factagent.errors import DataError
from factagent.types import Passage

_LOG = logging.getLogger(__name__)
_SHOWN = 5

PASSAGE_WORDS = 100


class Skipped(NamedTuple):
    """A file or folder that gave no passage, by its path in the folder, and why."""

    path: str
    reason: str


@dataclass
class DocumentFolder:
    """The documents below a folder, or a single one.

    `words` is the size of a passage. An unreadable, encrypted or empty document is an error, unless `skip_unreadable`
    is set. Hidden files, files of other kinds, and links to what is in the folder anyway are left out; a link that
    leaves the folder is an error.
    """

    path: Path
    words: int = PASSAGE_WORDS
    skip_unreadable: bool = False
    skipped: list[Skipped] = field(default_factory=list, init=False)
    """What was left out; complete once `passages` is exhausted."""

    def exists(self) -> bool:
        """Whether the path is a folder, or a file of one of the kinds."""
        return self.path.is_dir() or (self.path.is_file() and self.path.suffix.lower() in SUFFIXES)

    def passages(self) -> Iterator[Passage]:
        """Stream the passages, document by document.

        Raises:
            DataError: a document cannot be read, a link leaves the folder, or there is no document.
            MissingExtraError: the extra `documents` is not installed.
        """
        self.skipped.clear()
        count = 0
        for name, file in self._files():
            try:
                document = read_document(file)
            except DataError as error:
                if not self.skip_unreadable:
                    raise
                self.skipped.append(Skipped(name, str(error)))
                continue
            count += 1
            for number, text in enumerate(split_text(document.text, self.words), start=1):
                yield Passage(f"{name}#{number}", document.title, text)
        if not count:
            kinds = ", ".join(SUFFIXES)
            raise DataError(f"{self.path}: holds no document that can be read ({kinds}); {len(self.skipped)} skipped")
        self._warn()

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Relative name and path of each document, sorted; what is left out is noted."""
        if self.path.is_file():
            yield self.path.name, self.path
            return
        found: list[tuple[str, Path]] = []
        for folder, names, files in os.walk(self.path, onerror=_refuse):
            names[:] = [name for name in names if self._wanted(Path(folder, name), is_folder=True)]
            found += ((self._name(path), path) for path in (Path(folder, name) for name in files) if self._wanted(path))
        yield from sorted(found)

    def _wanted(self, path: Path, *, is_folder: bool = False) -> bool:
        reason = None
        if path.is_symlink():
            self._check_link(path)
            reason = "a link to something in this folder"
        elif path.name.startswith("."):
            reason = "hidden"
        elif not is_folder and path.suffix.lower() not in SUFFIXES:
            reason = f"not one of {', '.join(SUFFIXES)}"
        if reason:
            self.skipped.append(Skipped(self._name(path), reason))
        return reason is None

    def _check_link(self, path: Path) -> None:
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise DataError(f"{path}: is a link that leaves {self.path}; copy the document there or remove the link")

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _warn(self) -> None:
        if self.skipped:
            shown = "; ".join(f"{name} ({reason})" for name, reason in self.skipped[:_SHOWN])
            more = f"; and {len(self.skipped) - _SHOWN} more" if len(self.skipped) > _SHOWN else ""
            _LOG.warning("%s: %d skipped: %s%s", self.path, len(self.skipped), shown, more)


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
