from __future__ import annotations

import logging
import os
import unicodedata
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

from factagent.data.documents import DocumentFolder
from factagent.data.extraction import clean_text, read_document
from factagent.data.sources import open_corpus, open_questions
from factagent.data.splitting import count_words, split_text
from factagent.errors import DataError
from factagent.types import Passage

MARKDOWN = """```
# not a heading
```
Café au *lait* [here](http://x.y) ![cup](c.png).

# The `first` heading

- one<br>
- two
"""


def write_pdf(path: Path, *pages: str, password: str | None = None) -> Path:
    """A PDF of one line of text a page."""
    writer = PdfWriter()
    font = DictionaryObject({NameObject(f"/{key}"): NameObject(f"/{value}") for key, value in FONT.items()})
    for text in pages:
        page = writer.add_blank_page(300, 300)
        content = StreamObject()
        lines = "".join(f"({line}) Tj 0 -14 Td " for line in text.split("\n"))
        content.set_data(f"BT /F1 12 Tf 20 200 Td {lines} ET".encode("latin-1"))
        page[NameObject("/Contents")] = writer._add_object(content)
        fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


FONT = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica"}


def test_a_folder_of_documents_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfFirst line\r\nsame paragraph.\r\n\r\nSecond\x00 one.")
    (tmp_path / "sub" / "a.MD").write_text(unicodedata.normalize("NFD", MARKDOWN), encoding="utf-8")
    write_pdf(tmp_path / "c.pdf", "Page one was writ-\nten here.", "Page two.")
    assert list(open_corpus(tmp_path)) == [
        Passage("b.txt#1", "b", "First line same paragraph.\nSecond one."),
        Passage("c.pdf#1", "c", "Page one was written here.\nPage two."),
        Passage(
            "sub/a.MD#1", "The first heading", "# not a heading\nCafé au lait here cup.\nThe first heading\none\ntwo"
        ),
    ]
    assert next(open_corpus(tmp_path / "b.txt")).id == "b.txt#1"
    with pytest.raises(DataError, match="holds passages"):
        open_questions(tmp_path)


def test_html_pages(tmp_path: Path) -> None:
    pytest.importorskip("lxml_html_clean", reason="trafilatura needs it, and its own requirements name it in vain")
    page = (
        "<html><head><title> My &amp; page </title><style>p{}</style></head><body><nav>Menu</nav><article><h1>Head</h1>"
        "<p>The first paragraph tells about rivers and what lives in them.</p><p>The second one is about lakes.</p>"
        "</article><script>alert(1)</script></body></html>"
    )
    (tmp_path / "page.html").write_text(page)
    document = read_document(tmp_path / "page.html")
    assert document.title == "My & page"
    assert "rivers and what lives in them.\n\nThe second one" in document.text
    assert "alert" not in document.text
    (tmp_path / "short.htm").write_text("<html><head></head><body><p>Hi</p></body></html>")
    assert read_document(tmp_path / "short.htm") == ("short", "Hi")
    (tmp_path / "empty.html").write_text("")
    with pytest.raises(DataError, match=r"empty\.html: is no HTML page that can be read"):
        read_document(tmp_path / "empty.html")


@pytest.mark.parametrize(
    ("source", "title", "text"),
    [
        ("---\ntitle: 'Front'\nx: y\n---\n# Head\nbody", "Front", "Head\n\nbody"),
        ("---\nx: y\n---\n\nbody", "note", "body"),
        ("Head\n====\nbody\nmore", "Head", "Head\n\nbody more"),
        ("---\n\nbody", "note", "body"),
        ("<div>\nraw <b>x</b>\n</div>", "note", "raw  x"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "note", "a\n\nb\n\n1\n\n2"),
        ("# \nbody", "note", "body"),
    ],
)
def test_markdown(tmp_path: Path, source: str, title: str, text: str) -> None:
    (tmp_path / "note.md").write_text(source)
    assert read_document(tmp_path / "note.md") == (title, text)


def test_unreadable_documents_are_named(tmp_path: Path) -> None:
    broken = {
        "latin.txt": (b"caf\xe9", "is not UTF-8 \\(byte 3\\)"),
        "blank.md": (b" \n\x00", "holds no text"),
        "torn.pdf": (b"%PDF-1.7\ngarbage", "is no PDF that can be read"),
        "none.pdf": (b"", "is no PDF that can be read"),
    }
    for name, (content, problem) in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}: {problem}"):
            list(open_corpus(tmp_path / name))
    for name, pages, password, problem in (
        ("locked.pdf", ["secret"], "pw", "is encrypted; save a copy without the password"),
        ("scan.pdf", [""], None, "holds no text; scanned pages"),
    ):
        write_pdf(tmp_path / name, *pages, password=password)
        with pytest.raises(DataError, match=rf"{name}: {problem}"):
            list(open_corpus(tmp_path / name))


def test_what_is_left_out_is_listed_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "note.md").write_text("hidden")
    (tmp_path / "logo.png").write_bytes(b"png")
    (tmp_path / "note.md").write_text("text")
    (tmp_path / "void.txt").write_text("")
    (tmp_path / "again.md").symlink_to(tmp_path / "note.md")
    with pytest.raises(DataError, match=r"void\.txt: holds no text"):
        list(open_corpus(tmp_path))
    folder = DocumentFolder(tmp_path, skip_unreadable=True)
    with caplog.at_level(logging.WARNING):
        assert [passage.id for passage in folder.passages()] == ["note.md#1"]
    reasons = {skipped.path: skipped.reason for skipped in folder.skipped}
    assert set(reasons) == {".git", "logo.png", "void.txt", "again.md"}
    assert reasons[".git"] == "hidden"
    assert "holds no text" in reasons["void.txt"]
    assert "4 skipped" in caplog.text
    assert "logo.png" in caplog.text


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside):
        folder.mkdir()
        (folder / "note.txt").write_text("text")
    for target, name in ((outside / "note.txt", "file.txt"), (outside, "folder")):
        link = inside / name
        link.symlink_to(target)
        with pytest.raises(DataError, match=rf"{name}: is a link that leaves"):
            list(DocumentFolder(inside, skip_unreadable=True).passages())
        link.unlink()
    link = tmp_path / "entrance"
    link.symlink_to(inside)
    assert len(list(open_corpus(link))) == 1


def test_a_folder_without_documents_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"holds no document that can be read \(\.txt, .*\); 1 skipped"):
        list(open_corpus(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("text")
    path.chmod(0)
    with pytest.raises(DataError, match=r"note\.txt: cannot be read"):
        list(open_corpus(tmp_path))


def test_text_is_cleaned() -> None:
    assert clean_text(" e\u0301\x07\ta\r\nb\x0cc\rd\ud800\u2029e ") == "é\ta\nb\nc\nd\n\ne"


def sentences(*sizes: int) -> str:
    return " ".join(f"{'w ' * (size - 1)}w." for size in sizes)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (sentences(4, 4, 4, 4), [8, 8]),
        (sentences(4) + "\n\n" + sentences(4, 4), [8, 4]),
        (sentences(5) + "\n\n" + sentences(6), [5, 6]),
        (sentences(2) + "\n\n" + sentences(2) + "\n\n" + sentences(9), [4, 9]),
        (sentences(25), [10, 10, 5]),
        (sentences(10, 2), [12]),
        (sentences(10, 3), [10, 3]),
        ("五" * 12, [12]),
        ("x" * 1001, [11]),
        ("", []),
    ],
)
def test_passages_end_with_sentences_and_paragraphs(text: str, sizes: list[int]) -> None:
    assert [count_words(passage) for passage in split_text(text, 10)] == sizes


def test_sentences_end_at_marks_and_not_within_numbers() -> None:
    text = 'He said "no." Then pi was 3.14 again! 是。不是。 Last'
    assert split_text(text, 3) == ['He said "no."', "Then pi was", "3.14 again!", "是。", "不是。", "Last"]
