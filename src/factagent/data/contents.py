"""The one-string form of a passage, as corpora of Search-R1 and FlashRAG hold it: `"Title"`, a line break, the text.

Search servers send it, and E5 embeds it with the quotes in place; everywhere else a title stands without them.
"""

from __future__ import annotations

from factagent.data.formats import filled_text, identifier
from factagent.rows import Row
from factagent.types import Passage


def contents_of(passage: Passage) -> str:
    """Title in double quotes, a line break, the text. Line breaks in the title become blanks."""
    return f'"{passage.title.replace(chr(10), " ")}"\n{passage.text}'


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of `contents`: the first line is the title, quoted or not; a single line has no title."""
    first, line_break, rest = contents.partition("\n")
    if not line_break:
        return "", contents
    quoted = len(first) >= 2 and first[0] == first[-1] == '"'
    return first[1:-1] if quoted else first, rest


def contents_passage(row: Row) -> Passage:
    """The passage of a row `{"id", "contents"}`.

    Raises:
        DataError: a field is missing or malformed, or there is no text after the title.
    """
    title, text = split_contents(filled_text(row, "contents"))
    if not text.strip():
        raise row.error("contents", "has no text after its title line")
    return Passage(identifier(row, "id"), title, text)
