from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from factagent.data.corpus import iter_passages, read_facts, read_passages, write_facts, write_passages
from factagent.data.dataset import read_questions, write_questions
from factagent.data.formats import sha256_of, write_rows
from factagent.errors import DataError
from factagent.types import Passage, Question, Triple

DIRECTED = Triple("Silent Bay", "was directed by", "Alden Moor")
QUESTION = Question(
    "dev-1",
    "Who directed Silent Bay?",
    ("Alden Moor", "A. Moor"),
    "chain",
    1,
    ("Silent Bay",),
    (DIRECTED,),
    ((DIRECTED, Triple("Alden Moor", "directed", "Silent Bay")),),
)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_questions_survive_a_round_trip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"qa.{suffix}"
    bare = Question("dev-2", "Où ?", ("là",))
    assert write_questions(path, [QUESTION, bare]) == 2
    assert read_questions(path) == [QUESTION, bare]
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_passages_and_facts_survive_a_round_trip(tmp_path: Path, suffix: str) -> None:
    passages = [Passage("p1", "Silent Bay", "Alden Moor directed Silent Bay."), Passage("p2", "", "No title.")]
    corpus, facts = tmp_path / f"corpus.{suffix}", tmp_path / f"facts.{suffix}"
    assert write_passages(corpus, passages) == 2
    assert read_passages(corpus) == passages == list(iter_passages(corpus))
    write_facts(facts, {"p1": [DIRECTED], "p2": []})
    assert read_facts(facts) == {"p1": (DIRECTED,), "p2": ()}


def test_gzip_bytes_depend_on_the_rows_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    for path in (first, second):
        write_rows(path, [{"id": "x"}])
    assert sha256_of(first) == sha256_of(second)
    assert gzip.decompress(first.read_bytes()) == b'{"id": "x"}\n'


def test_a_passage_keeps_score_zero_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "p", "title": "T", "text": "t", "score": 3, "url": "u"}\n\n')
    assert read_passages(path) == [Passage("p", "T", "t", 0.0)]


GOOD: dict[str, object] = {"id": "q", "question": "Who?", "answers": ["x"]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": None}, "id"),
        ({"id": 7}, "id"),
        ({"id": " "}, "id"),
        ({"question": ""}, "question"),
        ({"answers": []}, "answers"),
        ({"answers": None}, "answers"),
        ({"answers": ["x", 1]}, r"answers\[1\]"),
        ({"hops": "2"}, "hops"),
        ({"hops": -1}, "hops"),
        ({"hops": True}, "hops"),
        ({"supporting_titles": [1]}, r"supporting_titles\[0\]"),
        ({"evidences": [["a", "b"]]}, r"evidences\[0\]"),
        ({"evidences": [["a", "b", "c"]], "evidence_variants": []}, "evidence_variants"),
        ({"evidences": [["a", "b", "c"]], "evidence_variants": {"0": []}}, "evidence_variants"),
        ({"evidences": [["a", "b", "c"]], "evidence_variants": [[["a", "b"]]]}, r"evidence_variants\.0\[0\]"),
    ],
)
def test_a_malformed_question_names_file_line_and_field(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(json.dumps(GOOD | {"id": "first"}) + "\n" + json.dumps(GOOD | change) + "\n")
    with pytest.raises(DataError, match=rf"qa\.jsonl:2: field '{field}'"):
        read_questions(path)


def test_repeated_ids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(2 * (json.dumps(GOOD | {"title": "t", "text": "t", "passage_id": "p", "triples": []}) + "\n"))
    for read, field in ((read_questions, "id"), (read_passages, "id"), (read_facts, "passage_id")):
        with pytest.raises(DataError, match=rf"rows\.jsonl:2: field '{field}': .* occurs twice"):
            read(path)


@pytest.mark.parametrize("row", [{"id": "p", "title": "t"}, {"id": "p", "title": "t", "text": " "}])
def test_a_passage_needs_text(tmp_path: Path, row: dict[str, str]) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(DataError, match=r"corpus\.jsonl:1: field 'text'"):
        read_passages(path)


def test_two_wikimultihop_reads_with_its_gold_triples(shared_data: Path) -> None:
    questions = read_questions(shared_data / "qa" / "2wikimultihopqa.dev.jsonl.gz")
    assert len(questions) == 12_576
    with_gold = [question for question in questions if question.evidences]
    assert len(with_gold) == 4_454
    assert all(question.hops == len(question.evidences) for question in with_gold)
    first = questions[1]
    assert first.answers == ("The Mask Of Fu Manchu",)
    assert first.evidences[0] == Triple("Blind Shaft", "publication date", "2003")


def test_musique_and_its_corpus_read(shared_data: Path) -> None:
    questions = read_questions(shared_data / "qa" / "musique.dev.jsonl.gz")
    passages = read_passages(shared_data / "corpora" / "musique.jsonl.gz")
    assert (len(questions), len(passages)) == (2_417, 9_162)
    assert all(question.supporting_titles for question in questions)
    assert passages[0].title == "...Baby One More Time (song)"
