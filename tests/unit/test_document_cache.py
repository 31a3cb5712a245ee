"""Cached indexes of documents: found by content, made once, made again when something changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from factagent.errors import DataError, UsageError
from factagent.retrieval.document_cache import cache_directory, content_key, open_documents


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "letters").mkdir(parents=True)
    (folder / "anna.txt").write_text("Anna was born in Lund.", "utf-8")
    (folder / "letters" / "bo.md").write_text("# Bo\n\nBo lives in Oslo.", "utf-8")
    return folder


def test_documents_are_indexed_once(docs: Path, tmp_path: Path) -> None:
    stages: list[str] = []

    def report(stage: str, done: int, total: int | None) -> None:
        stages.append(stage)

    cache = tmp_path / "cache"
    first = open_documents(docs, cache, report)
    assert [passage.id for passage in first.search(["lund"], 1)[0]] == ["anna.txt#1"]
    assert stages
    stages.clear()
    second = open_documents(docs, cache, report)
    assert stages == []
    assert second.search(["oslo", "lund"], 2) == first.search(["oslo", "lund"], 2)
    assert len(list(cache.iterdir())) == 1


def test_any_change_of_a_document_is_seen(docs: Path, tmp_path: Path) -> None:
    keys = {content_key(docs)}
    (docs / "anna.txt").write_text("Anna was born in Oslo.", "utf-8")
    keys.add(content_key(docs))
    (docs / "anna.txt").rename(docs / "letters" / "anna.txt")
    keys.add(content_key(docs))
    (docs / "cecilia.md").write_text("Cecilia", "utf-8")
    keys.add(content_key(docs))
    assert len(keys) == 4
    (docs / "notes.bin").write_bytes(b"no document")
    assert content_key(docs) in keys
    index = open_documents(docs, tmp_path / "cache")
    assert index.search(["lund"], 3) == [()]


def test_a_corpus_file_is_cached_too(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "title": "Anna", "text": "born in Lund"}\n', "utf-8")
    assert len(open_documents(corpus, tmp_path / "cache")) == 1


def test_a_damaged_index_is_made_again(docs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    open_documents(docs, cache)
    (cache / content_key(docs) / "scores.npy").write_bytes(b"damaged")
    assert open_documents(docs, cache).search(["lund"], 1)[0]
    assert "indexing" in caplog.text
    assert "again" in caplog.text


def test_no_document_and_no_room_are_errors_that_say_so(docs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no document"):
        open_documents(tmp_path / "empty", tmp_path / "cache")
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(UsageError, match=r"cannot be written .*FACTAGENT_CACHE.*--no-cache"):
        open_documents(docs, tmp_path / "file" / "cache")


def test_where_the_cache_is() -> None:
    assert cache_directory({"FACTAGENT_CACHE": "/x"}) == Path("/x/documents")
    assert cache_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/factagent/documents")
    assert cache_directory({}) == Path.home() / ".cache" / "factagent" / "documents"
