"""Title and text of one document: plain text, Markdown, HTML (trafilatura) or PDF (pypdf).

The text comes out in NFC without control characters, paragraphs separated by blank lines. Everything here needs the
extra `documents`.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from factagent.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from markdown_it.token import Token

EXTRA = "documents"

_FRONT_MATTER = re.compile(r"\A---[^\S\n]*\n(.*?)^(?:---|\.\.\.)[^\S\n]*$", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title:(.*)$", re.MULTILINE)
_TAG = re.compile(r"<[^<>]*>")


class Document(NamedTuple):
    """What was read: `title` falls back to the file's name without its suffix; `text` is not blank."""

    title: str
    text: str


def read_document(path: Path) -> Document:
    """Extract one document; its suffix says which kind it is (see `SUFFIXES`).

    Raises:
        DataError: the file cannot be read, is encrypted, or holds no text.
        MissingExtraError: the extra `documents` is not installed.
    """
    try:
        title, text = _READERS[path.suffix.lower()](path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _UnreadableError as error:
        raise DataError(f"{path}: {error}") from error
    text = clean_text(text)
    if not text:
        raise DataError(f"{path}: holds no text; scanned pages need character recognition (OCR) first")
    return Document(" ".join(clean_text(title).split()) or path.stem, text)


def clean_text(text: str) -> str:
    """NFC, uniform line breaks, no control characters but these and tabs, no lone surrogates, outer blanks off."""
    text = re.sub(r"\r\n?|[\x0b\x0c\x85\u2028]", "\n", text).replace("\u2029", "\n\n")
    kept = "".join(char for char in text if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs"))
    return unicodedata.normalize("NFC", kept).strip()


class _UnreadableError(Exception):
    """A document that its reader refuses; the message says why and what to do."""


def _read_text(content: bytes) -> tuple[str, str]:
    return "", _decode(content)


def _read_markdown(content: bytes) -> tuple[str, str]:
    """The title of the front matter, else the first heading; and the text of every block without its marks."""
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise MissingExtraError.of("markdown_it", EXTRA) from error

    source = clean_text(_decode(content))
    front = _FRONT_MATTER.match(source)
    named = _FRONT_TITLE.search(front[1]) if front else None
    title = named[1].strip().strip("'\"") if named else ""
    blocks, previous = [], ""
    for token in MarkdownIt("commonmark").enable("table").parse(source[front.end() :] if front else source):
        block = _visible(token.children) if token.children else _TAG.sub(" ", token.content)
        if previous == "heading_open":
            title = title or block
        if block.strip():
            blocks.append(block.strip())
        previous = token.type
    return title, "\n\n".join(blocks)


def _visible(tokens: Sequence[Token]) -> str:
    """The text of a block: links and images by their words, line breaks as blanks, no tags."""
    shown = {"softbreak": " ", "hardbreak": " ", "html_inline": ""}
    return "".join(shown.get(token.type, token.content) for token in tokens)


def _read_html(content: bytes) -> tuple[str, str]:
    """The page's `<title>`, and its main text; where no main text is found, all of its text."""
    try:
        import trafilatura
    except ImportError as error:
        raise MissingExtraError.of(error.name or "trafilatura", EXTRA) from error

    page = trafilatura.load_html(content)
    if page is None:
        raise _UnreadableError("is no HTML page that can be read")
    title = page.findtext(".//title") or ""
    text = trafilatura.extract(page, favor_recall=True, include_comments=False) or trafilatura.html2txt(content)
    # The extractor puts each block on a line of its own.
    return title, "\n\n".join(text.splitlines())


def _read_pdf(content: bytes) -> tuple[str, str]:
    """The text of all pages; words hyphenated at the end of a line are joined. PDF titles are rarely kept: none."""
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise MissingExtraError.of("pypdf", EXTRA) from error

    try:
        reader = PdfReader(io.BytesIO(content))
        locked = reader.is_encrypted and not reader.decrypt("")
        pages = [] if locked else [page.extract_text() for page in reader.pages]
    except Exception as error:
        # A damaged file makes pypdf fail in ways beyond its own errors (KeyError, RecursionError, ...).
        raise _UnreadableError(f"is no PDF that can be read: {type(error).__name__}: {error}") from error
    if locked:
        raise _UnreadableError("is encrypted; save a copy without the password")
    return "", re.sub(r"(?<=[a-z])-\n(?=[a-z])", "", "\n\n".join(pages))


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _UnreadableError(f"is not UTF-8 (byte {error.start}); convert it first") from error


_READERS: dict[str, Callable[[bytes], tuple[str, str]]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
}

SUFFIXES = tuple(_READERS)
"""The kinds of document, by suffix in lower case."""
