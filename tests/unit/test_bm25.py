from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from factagent.cli import main
from factagent.errors import CorruptError, DataError, UsageError
from factagent.retrieval import bm25_kernel
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.bm25_build import FILE_NAMES, write_index
from factagent.retrieval.bm25_words import tokenise
from factagent.retrieval.manifest import MANIFEST_NAME, BM25Settings
from factagent.retrieval.passages import PassageStore, corpus_sha256
from factagent.types import Passage

PASSAGES = [
    Passage("p0", "Anna Keller", "Anna Keller was born in Lisbon in 1931."),
    Passage("p1", "Lisbon", "Lisbon is the capital of Portugal."),
    Passage("p2", "Twin A", "the same words"),
    Passage("p3", "Twin B", "the same words"),
    Passage("p4", "Ünïcode_Straße", "Kafé “déjà-vu” \n\t</s> <|im_start|> 東京"),
    Passage("p5", "", "untitled page about Lisbon trams"),
]


@pytest.fixture(scope="module")
def index() -> BM25Index:
    return BM25Index.build(PASSAGES)


def random_corpus(passages: int = 300, words: int = 60, seed: int = 5) -> list[Passage]:
    draw = random.Random(seed)
    texts = [" ".join(f"w{draw.randrange(words)}" for _ in range(draw.randrange(1, 9))) for _ in range(passages)]
    return [Passage(f"id{number}", "", text) for number, text in enumerate(texts)]


def reference_scores(passages: list[Passage], query: str, settings: BM25Settings) -> list[float]:
    """Lucene's BM25 from its definition, term by term, in float64."""
    documents = [re.findall(r"[^\W_]+", f"{p.title} {p.text}".lower()) for p in passages]
    mean = sum(map(len, documents)) / len(documents)
    scores = [0.0] * len(documents)
    for word in re.findall(r"[^\W_]+", query.lower()):
        frequency = sum(word in document for document in documents)
        idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
        for number, document in enumerate(documents):
            count = document.count(word)
            scores[number] += idf * count / (count + settings.k1 * (1 - settings.b + settings.b * len(document) / mean))
    return scores


def test_scores_are_lucenes_with_k1_09_and_b_04(index: BM25Index) -> None:
    settings = BM25Settings()
    assert (settings.k1, settings.b, settings.method, settings.stop_words) == (0.9, 0.4, "lucene", "none")
    expected = reference_scores(PASSAGES, "born in Lisbon", settings)
    (found,) = index.search(["born in Lisbon"], 6)
    assert [p.id for p in found] == ["p0", "p1", "p5"]
    assert [p.score for p in found] == pytest.approx([expected[0], expected[1], expected[5]], rel=1e-6)


@pytest.mark.parametrize("settings", [BM25Settings(), BM25Settings(k1=1.2, b=0.75), BM25Settings(b=0)])
def test_whole_ranking_equals_the_definition(settings: BM25Settings) -> None:
    passages = random_corpus()
    index = BM25Index.build(passages, settings)
    for query in ("w1 w2 w3", "w7 w7 w9", "w0", "w59 unknown w4"):
        scores = np.array(reference_scores(passages, query, settings))
        (found,) = index.search([query], len(passages))
        assert len(found) == int((scores > 0).sum())
        by_id = dict(zip((p.id for p in passages), scores, strict=True))
        assert [p.score for p in found] == pytest.approx([by_id[p.id] for p in found], rel=1e-5)
        assert [p.score for p in found] == pytest.approx(sorted(scores[scores > 0], reverse=True), rel=1e-5)


def test_a_repeated_query_word_counts_twice(index: BM25Index) -> None:
    once, twice = index.search(["portugal", "portugal portugal"], 1)
    assert twice[0].score == pytest.approx(2 * once[0].score)


def test_title_is_searched_and_fields_survive(index: BM25Index) -> None:
    (found,) = index.search(["STRASSE straße kafé"], 3)
    assert [(p.id, p.title, p.text) for p in found] == [("p4", PASSAGES[4].title, PASSAGES[4].text)]


def test_equal_scores_keep_corpus_order_at_every_cut() -> None:
    passages = [Passage(f"x{n}", "", "alpha beta" if n % 3 else "alpha alpha beta gamma") for n in range(50)]
    index = BM25Index.build(passages)
    (full,) = index.search(["alpha"], 50)
    assert [p.id for p in full] == [p.id for p in sorted(full, key=lambda p: (-p.score, int(p.id[1:])))]
    for top_k in range(1, 50):
        assert index.search(["alpha"], top_k) == [full[:top_k]]


@pytest.mark.parametrize("query", ["", "   ", "zzz unknown", "___", "?!", "\x00"])
def test_query_without_a_known_word_finds_nothing(index: BM25Index, query: str) -> None:
    assert index.search([query], 3) == [()]
    assert index.search([query, "lisbon", query], 1)[0::2] == [(), ()]


def test_no_query_no_result(index: BM25Index) -> None:
    assert index.search([], 3) == []


def test_top_k_below_one_is_refused(index: BM25Index) -> None:
    with pytest.raises(ValueError, match="top_k=0"):
        index.search(["lisbon"], 0)


def test_alone_in_a_batch_shuffled_or_threaded_the_result_is_the_same(tmp_path: Path) -> None:
    BM25Index.build(random_corpus()).save(tmp_path / "i")
    one, four = BM25Index.load(tmp_path / "i"), BM25Index.load(tmp_path / "i", threads=4)
    draw = random.Random(1)
    queries = [" ".join(f"w{draw.randrange(70)}" for _ in range(draw.randrange(6))) for _ in range(97)]
    alone = [one.search([query], 3)[0] for query in queries]
    assert one.search(queries, 3) == alone
    assert one.search(queries[::-1], 3) == alone[::-1]
    assert four.search(queries, 3) == alone
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: one.search(queries, 3), range(16))) == [alone] * 16


def test_tokeniser_is_pinned() -> None:
    plain, english = BM25Settings(), BM25Settings(stop_words="en")
    assert tokenise("The U.S.A.'s snake_case, 3.5 Straße—東京", plain) == [
        "the", "u", "s", "a", "s", "snake", "case", "3", "5", "straße", "東京",
    ]  # fmt: skip
    assert tokenise("The capital of an empire", english) == ["capital", "empire"]


def test_stop_words_are_dropped_from_passages_and_queries() -> None:
    index = BM25Index.build(PASSAGES, BM25Settings(stop_words="en"))
    assert index.search(["the of in"], 3) == [()]
    assert [p.id for p in index.search(["the capital"], 3)[0]] == ["p1"]


def test_save_and_load_give_the_same_results(index: BM25Index, tmp_path: Path) -> None:
    index.save(tmp_path / "a")
    loaded = BM25Index.load(tmp_path / "a")
    assert len(loaded) == 6
    assert loaded.search(["lisbon", "same words"], 3) == index.search(["lisbon", "same words"], 3)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted((*FILE_NAMES, MANIFEST_NAME))
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert isinstance(loaded._scores, np.memmap)


def test_same_passages_give_the_same_bytes_under_another_hash_seed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from factagent.retrieval.bm25_build import write_index\n"
        "from factagent.types import Passage\n"
        "write_index([Passage(str(n), 't', f'word{n} common text {n % 7}') for n in range(40)], Path(sys.argv[1]))"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", script, str(tmp_path / seed)]
        subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed})
    for name in (*FILE_NAMES, MANIFEST_NAME):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_manifest_says_what_was_indexed(index: BM25Index) -> None:
    manifest = index.manifest
    assert (manifest.format, manifest.version, manifest.passages) == ("factagent-bm25", 2, 6)
    assert manifest.corpus_sha256 == corpus_sha256(PASSAGES) != corpus_sha256(PASSAGES[:-1])
    assert manifest.tokeniser.pattern == r"[^\W_]+"
    assert set(manifest.files) == set(FILE_NAMES)


@pytest.mark.parametrize("name", FILE_NAMES)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_any_damaged_file_is_refused_by_name(tmp_path: Path, name: str, damage: str) -> None:
    write_index(PASSAGES, tmp_path / "i")
    path = tmp_path / "i" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(CorruptError, match=re.escape(name)):
        BM25Index.load(tmp_path / "i")


def rewrite_manifest(directory: Path, **changes: object) -> None:
    path = directory / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1, "bm25s": "0.3.16"}, "'version' is 1.*index build"),
        ({"format": "other"}, "'format' is 'other'"),
        ({"tokeniser": {"name": "lower-words", "pattern": r"\w+", "version": 1}}, "tokeniser.pattern"),
        ({"settings": {"k1": -1}}, "settings.k1"),
        ({"surprise": 1}, "surprise"),
        ({"passages": 7}, "count differs"),
        ({"terms": 3}, "count differs"),
        ({"files": {}}, "lists the files"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write_index(PASSAGES, tmp_path / "i")
    rewrite_manifest(tmp_path / "i", **changes)
    with pytest.raises(DataError, match=message):
        BM25Index.load(tmp_path / "i")


def resign(directory: Path, name: str) -> None:
    """Give a changed file the size and hash that the manifest wants: a forged index."""
    from factagent.retrieval.manifest import file_record

    files = json.loads((directory / MANIFEST_NAME).read_text())["files"]
    rewrite_manifest(directory, files={**files, name: file_record(directory / name).model_dump()})


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [("positions.npy", 0, 6), ("positions.npy", 1, -1), ("starts.npy", 1, 999), ("scores.npy", 0, np.nan),
     ("scores.npy", 0, -1), ("offsets.npy", 1, 10_000)],
)  # fmt: skip
def test_values_that_would_leave_the_arrays_are_refused(tmp_path: Path, name: str, position: int, value: float) -> None:
    write_index(PASSAGES, tmp_path / "i")
    array = np.load(tmp_path / "i" / name)
    array[position] = value
    np.save(tmp_path / "i" / name, array)
    resign(tmp_path / "i", name)
    with pytest.raises(CorruptError, match=re.escape(name.replace("offsets.npy", "passages.jsonl"))):
        # Read when they are needed: on opening, or by the first search that meets them.
        BM25Index.load(tmp_path / "i").search([f"{p.title} {p.text}" for p in PASSAGES], 6)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    write_index(PASSAGES, tmp_path / "i")
    np.save(tmp_path / "i" / "starts.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    resign(tmp_path / "i", "starts.npy")
    with pytest.raises(CorruptError, match=r"starts\.npy"):
        BM25Index.load(tmp_path / "i")


def test_a_directory_without_an_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no index"):
        BM25Index.load(tmp_path)


def test_an_existing_directory_is_kept_unless_it_is_an_index_to_replace(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="mine"):
            write_index(PASSAGES, tmp_path / "mine", overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").exists()
    write_index(PASSAGES, tmp_path / "i")
    with pytest.raises(UsageError, match="exists"):
        write_index(PASSAGES[:2], tmp_path / "i")
    write_index(PASSAGES[:2], tmp_path / "i", overwrite=True)
    assert len(BM25Index.load(tmp_path / "i")) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["i", "mine"]


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        ([], "0 passages"),
        ([Passage("a", "", "..."), Passage("b", "", "")], "2 passages and no word"),
        ([Passage("a", "", "x"), Passage("a", "", "y")], "'a' occurs twice"),
        ([Passage("a", "", "\ud800")], "not valid Unicode"),
    ],
)
def test_a_corpus_that_cannot_be_indexed_leaves_nothing_behind(
    tmp_path: Path, passages: list[Passage], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        write_index(passages, tmp_path / "i")
    assert list(tmp_path.iterdir()) == []


def test_passage_store_reads_by_position(tmp_path: Path) -> None:
    write_index(PASSAGES, tmp_path / "i")
    store = PassageStore(tmp_path / "i")
    assert [store.passage(n) for n in range(len(store))] == PASSAGES


def test_interpreted_and_compiled_loops_agree_and_interpretation_is_announced(
    index: BM25Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = index.search(["same words", "lisbon in"], 2)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    bm25_kernel.compiled.cache_clear()
    try:
        assert index.search(["same words", "lisbon in"], 2) == compiled
        assert "interpreted Python" in caplog.text
    finally:
        bm25_kernel.compiled.cache_clear()


def test_cli_builds_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    command = ["index", "build", "--corpus", str(corpus), "--out", str(tmp_path / "i")]
    assert main(command) == 0
    assert "6 passages" in capsys.readouterr().out
    assert [p.id for p in BM25Index.load(tmp_path / "i").search(["capital"], 3)[0]] == ["p1"]
    assert main(command) == 2
    assert main([*command, "--force", "--k1", "1.2"]) == 0
    assert BM25Index.load(tmp_path / "i").manifest.settings.k1 == 1.2
    assert main([*command, "--force", "--b", "7"]) == 2
    assert "--b 7" in capsys.readouterr().err
    corpus.write_text('{"id": "a", "title": "t"}\n')
    assert main([*command, "--force"]) == 65
    assert len(BM25Index.load(tmp_path / "i")) == 6


def test_verify_reads_what_opening_a_large_index_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_index(PASSAGES, tmp_path / "i")
    assert main(["index", "verify", str(tmp_path / "i")]) == 0
    assert "6 passages" in capsys.readouterr().out
    path = tmp_path / "i" / "scores.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"scores\.npy: its SHA-256"):
        BM25Index.load(tmp_path / "i")
    monkeypatch.setattr("factagent.retrieval.bm25.HASHED_BYTES", 0)
    loaded = BM25Index.load(tmp_path / "i")
    assert loaded.search(["lisbon"], 3)[0][0].id
    with pytest.raises(CorruptError, match=r"scores\.npy"):
        BM25Index.load(tmp_path / "i", verify=True)
    with pytest.raises(CorruptError, match=r"scores\.npy"):
        loaded.verify()
    assert main(["index", "verify", str(tmp_path / "i")]) == 65
    assert "scores.npy" in capsys.readouterr().err


def test_opening_a_large_index_does_not_read_its_postings_or_passages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_index(PASSAGES, tmp_path / "i")
    for name in ("scores.npy", "positions.npy", "passages.jsonl"):
        path = tmp_path / "i" / name
        header = 128 if name.endswith(".npy") else 0
        path.write_bytes(path.read_bytes()[:header] + b"\xff" * (path.stat().st_size - header))
    monkeypatch.setattr("factagent.retrieval.bm25.HASHED_BYTES", 0)
    index = BM25Index.load(tmp_path / "i")
    with pytest.raises(CorruptError, match="out of range for 'lisbon'"):
        index.search(["lisbon"], 3)
    with pytest.raises(CorruptError, match=r"passages\.jsonl"):
        index.passages.passage(0)


def test_top_gives_positions_and_scores(index: BM25Index) -> None:
    positions, scores = index.top([["capital", "lisbon"], []], 9)
    assert positions.shape == scores.shape == (2, 6)
    assert positions[0, :3].tolist() == [1, 5, 0] and positions[0, 3:].tolist() == [-1] * 3
    assert positions[1].tolist() == [-1] * 6 and not scores[1].any()


@pytest.mark.parametrize("passages", [63, 64, 65, 129])
def test_the_last_passages_of_a_block_are_found(passages: int) -> None:
    index = BM25Index.build([Passage(str(n), "", f"same own{n}") for n in range(passages)])
    last = str(passages - 1)
    assert [p.id for p in index.search([f"own{last}"], 3)[0]] == [last]
    assert [p.id for p in index.search(["same"], passages)[0]] == [str(n) for n in range(passages)]


def test_ids_whose_hashes_agree_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("passages", "bm25_build"):
        monkeypatch.setattr(f"factagent.retrieval.{module}.id_hash", lambda identifier: len(identifier))
    write_index(PASSAGES, tmp_path / "i", shard_words=10)
    with pytest.raises(DataError, match="passage 7: the id 'p3' occurs twice"):
        write_index([*PASSAGES, PASSAGES[3]], tmp_path / "j", shard_words=10)


def test_cli_goes_on_after_an_interruption_and_force_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES]
    corpus.write_text("".join(rows) + "{broken\n")
    command = ["index", "build", "--corpus", str(corpus), "--out", str(tmp_path / "i"), "--shard-words", "10"]
    assert main(command) == 65
    corpus.write_text("".join(rows))
    assert main([*command, "--b", "0.5"]) == 2
    assert "b was 0.4, is now 0.5" in capsys.readouterr().err
    assert main(command) == 0
    expected = (tmp_path / "i" / "scores.npy").read_bytes()
    corpus.write_text("".join(rows) + "{broken\n")
    assert main([*command, "--force"]) == 65
    corpus.write_text("".join(rows[1:]))
    assert main([*command, "--force"]) == 0
    assert len(BM25Index.load(tmp_path / "i")) == 5
    assert (tmp_path / "i" / "scores.npy").read_bytes() != expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "i"]
