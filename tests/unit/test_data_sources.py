from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from factagent.data.contents import contents_of, split_contents
from factagent.data.sources import FORMATS, open_corpus, open_questions, open_source
from factagent.errors import DataError, UsageError
from factagent.protocols.questions import normalised_question
from factagent.types import Passage, Question, Triple

COUNTS = {
    "nq.test": 3_610,
    "triviaqa.test": 11_313,
    "popqa.test": 14_267,
    "hotpotqa.dev": 7_405,
    "2wikimultihopqa.dev": 12_576,
    "musique.dev": 2_417,
    "bamboogle.test": 125,
    "triviaqa.dev": 8_837,
    "nq.train_part": 13_757,
    "musique.train": 19_938,
    "multihop.train_part": 8_242,
    "extra.webquestions.test": 2_032,
    "extra.complexwebquestions.dev": 3_519,
}
CORPORA = {
    "2wikimultihopqa": 16_939,
    "hotpotqa": 28_836,
    "musique": 9_162,
    "nq_wiki": 4_759,
    "popqa_wiki": 5_215,
    "wiki18_sample": 11_140,
}
QUESTION_FILES = {
    "flashrag.bamboogle.test_sample.jsonl.gz": ("flashrag", 125),
    "flashrag.nq.test_sample.jsonl.gz": ("flashrag", 1_000),
    "flashrag.popqa.test_sample.jsonl.gz": ("flashrag", 1_000),
    "flashrag.triviaqa.test_sample.jsonl.gz": ("flashrag", 1_000),
    "original.2wikimultihopqa.dev_sample500.json.gz": ("2wikimultihopqa", 500),
    "original.hotpotqa.dev_sample500.json.gz": ("hotpotqa", 500),
    "original.musique_ans.dev_sample200.jsonl.gz": ("musique", 200),
    "popqa_with_paragraphs.json.gz": ("popqa", 1_000),
    "search_r1.nq_search.test.parquet": ("search-r1", 3_610),
    "verl_qa.bamboogle.test.parquet": ("verl-qa", 125),
}
CORPUS_FILES = {
    "original.2wikimultihopqa.dev_sample500.json.gz": 3_306,
    "original.hotpotqa.dev_sample500.json.gz": 4_961,
    "original.musique_ans.dev_sample200.jsonl.gz": None,
    "popqa_with_paragraphs.json.gz": None,
    "search_r1.example_corpus.jsonl.gz": 10,
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_question_set_reads_in_full(shared_data: Path, name: str) -> None:
    questions = open_questions(shared_data / "qa" / f"{name}.jsonl.gz")
    assert len(questions) == len({question.id for question in questions}) == COUNTS[name]


def test_no_shared_file_is_forgotten(shared_data: Path) -> None:
    assert {path.name.removesuffix(".jsonl.gz") for path in (shared_data / "qa").iterdir()} == set(COUNTS)
    assert {path.name.removesuffix(".jsonl.gz") for path in (shared_data / "corpora").iterdir()} == set(CORPORA)
    assert {path.name for path in (shared_data / "formats").iterdir()} == set(QUESTION_FILES) | set(CORPUS_FILES)


@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_reads_in_full(shared_data: Path, name: str) -> None:
    assert sum(1 for _ in open_corpus(shared_data / "corpora" / f"{name}.jsonl.gz")) == CORPORA[name]


@pytest.mark.parametrize("name", QUESTION_FILES)
def test_every_other_format_reads_in_full(shared_data: Path, name: str) -> None:
    path = shared_data / "formats" / name
    format, count = QUESTION_FILES[name]
    assert open_source(path).format.name == format
    assert len(open_questions(path)) == count
    assert len(open_questions(path, format, limit=7)) == 7


@pytest.mark.parametrize("name", CORPUS_FILES)
def test_files_with_paragraphs_are_corpora_too(shared_data: Path, name: str) -> None:
    passages = list(open_corpus(shared_data / "formats" / name))
    assert CORPUS_FILES[name] in (None, len(passages))
    assert len({passage.id for passage in passages}) == len({(p.title, p.text) for p in passages}) == len(passages) > 0


def test_the_originals_agree_with_the_annotated_sets(shared_data: Path) -> None:
    for original, ours in (
        ("original.hotpotqa.dev_sample500.json.gz", "hotpotqa.dev"),
        ("original.2wikimultihopqa.dev_sample500.json.gz", "2wikimultihopqa.dev"),
        ("original.musique_ans.dev_sample200.jsonl.gz", "musique.dev"),
    ):
        known = {question.id: question for question in open_questions(shared_data / "qa" / f"{ours}.jsonl.gz")}
        compared = 0
        for question in open_questions(shared_data / "formats" / original):
            other = known.get(question.id)
            if other is None:
                continue
            compared += 1
            assert (question.text, question.type) == (other.text.strip(), other.type)
            assert question.hops == other.hops
            assert set(question.supporting_titles) == set(other.supporting_titles)
            assert set(question.answers) <= set(other.answers)
            if other.evidences:
                assert question.evidences == other.evidences
        assert compared > 100


def test_supporting_titles_are_among_the_passages_of_the_same_file(shared_data: Path) -> None:
    path = shared_data / "formats" / "original.2wikimultihopqa.dev_sample500.json.gz"
    titles = {passage.title for passage in open_corpus(path)}
    assert all(set(question.supporting_titles) <= titles for question in open_questions(path))


def test_search_r1_rows_are_those_of_the_set_but_for_the_question_mark(shared_data: Path) -> None:
    rows = open_questions(shared_data / "formats" / "search_r1.nq_search.test.parquet")
    ours = open_questions(shared_data / "qa" / "nq.test.jsonl.gz")
    assert [row.id for row in rows] == [f"nq:{question.id}" for question in ours]
    assert [row.text for row in rows] == [normalised_question(question.text) for question in ours]
    assert [row.answers for row in rows] == [question.answers for question in ours]


@pytest.mark.parametrize(("text", "wanted"), [(" who ", "who?"), ("who?", "who?"), ("who ?", "who ?"), ("", "?")])
def test_normalised_question(text: str, wanted: str) -> None:
    assert normalised_question(text) == wanted


CHAIN = Triple("A", "born in", "B")
PARAGRAPHS = [{"title": "T", "paragraph_text": "one  two"}, {"title": "U", "paragraph_text": " "}]
MUSIQUE = {
    "id": "3hop1__1_2_3",
    "question": " Q ",
    "answer": "x",
    "answer_aliases": ["y", "x"],
    "paragraphs": PARAGRAPHS,
    "question_decomposition": [{"paragraph_support_idx": 1}, {"paragraph_support_idx": 0}],
}
HOTPOT = {
    "_id": "h",
    "question": "Q",
    "answer": "x",
    "type": "bridge",
    "supporting_facts": [["T", 0], ["T", 1], ["U", 0]],
    "context": [["T", ["one", " two"]], ["U", []]],
}
WIKI = HOTPOT | {"evidences": [list(CHAIN)]}
FLASHRAG: dict[str, Any] = {"id": "dev_0", "question": "Q ", "golden_answers": ["x"]}
FLASHRAG_HOTPOT = FLASHRAG | {
    "metadata": {
        "type": "bridge",
        "supporting_facts": {"title": ["T", "U"], "sent_id": [0, 1]},
        "context": {"title": ["T", "U"], "sentences": [["one", " two"], []]},
    }
}
FLASHRAG_MUSIQUE = FLASHRAG | {
    "metadata": {
        "answerable": True,
        "question_decomposition": [
            {"support_paragraph": {"title": "U", "paragraph_text": "u"}},
            {"support_paragraph": {"title": "T", "paragraph_text": "t"}},
        ],
    }
}
POPQA = {
    "id": 3,
    "question": "Q",
    "possible_answers": '["x"]',
    "subj": "A",
    "prop": "born in",
    "obj": "B",
    "s_wiki_title": "T",
}
SEARCH_R1 = {
    "id": "train_0",
    "question": "Q",
    "data_source": "nq",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["x"]}},
    "extra_info": {"split": "train", "index": 0},
}
RESEARCH = {
    "data_source": "musique",
    "question": "Q",
    "reward_model": {"style": "rule", "ground_truth": ["x"]},
    "extra_info": {"id": "2hop__1"},
}
VERL_QA = {
    "data_source": "b",
    "prompt": [],
    "reward_model": {"ground_truth": "x"},
    "extra_info": {"answer": ["x", "y"], "question": "Q", "split": "test", "index": 4},
}
PLAIN = {"id": "q", "question": "Q", "answers": ["x"]}


@pytest.mark.parametrize(
    ("row", "format", "wanted"),
    [
        (PLAIN, "questions", Question("q", "Q", ("x",))),
        (MUSIQUE, "musique", Question("3hop1__1_2_3", "Q", ("x", "y"), "3hop1", 2, ("U", "T"))),
        (HOTPOT, "hotpotqa", Question("h", "Q", ("x",), "bridge", 2, ("T", "U"))),
        (WIKI, "2wikimultihopqa", Question("h", "Q", ("x",), "bridge", 1, ("T", "U"), (CHAIN,))),
        (FLASHRAG, "flashrag", Question("dev_0", "Q", ("x",))),
        (FLASHRAG | {"metadata": {}}, "flashrag", Question("dev_0", "Q", ("x",))),
        (FLASHRAG_HOTPOT, "flashrag", Question("dev_0", "Q", ("x",), "bridge", 2, ("T", "U"))),
        (FLASHRAG_MUSIQUE, "flashrag", Question("dev_0", "Q", ("x",), None, 2, ("U", "T"))),
        (POPQA, "popqa", Question("3", "Q", ("x",), None, 1, ("T",), (CHAIN,))),
        (SEARCH_R1, "search-r1", Question("nq:train_0", "Q", ("x",))),
        (RESEARCH, "research", Question("musique:2hop__1", "Q", ("x",))),
        (VERL_QA, "verl-qa", Question("b:test_4", "Q", ("x", "y"))),
    ],
)
@pytest.mark.parametrize("container", ["rows.jsonl", "rows.jsonl.gz", "rows.json", "rows.json.zst", "rows.parquet"])
def test_each_format_in_each_container(
    tmp_path: Path, row: dict[str, Any], format: str, wanted: Question, container: str
) -> None:
    if container.endswith("parquet") and (format in ("hotpotqa", "2wikimultihopqa") or "metadata" in row):
        pytest.skip("Parquet has no lists of mixed types and no empty objects")
    path = write(tmp_path / container, [row])
    source = open_source(path)
    assert (source.format.name, list(source.questions())) == (format, [wanted])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    import zstandard

    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    lines = "\n".join(map(json.dumps, rows))
    content = (json.dumps(rows, indent=1) if ".json" in path.suffixes else lines).encode()
    packers = {".gz": gzip.compress, ".zst": zstandard.compress}
    path.write_bytes(packers[path.suffix](content) if path.suffix in packers else content)
    return path


@pytest.mark.parametrize("row", [MUSIQUE, HOTPOT, FLASHRAG_HOTPOT])
def test_paragraphs_are_merged_and_blank_ones_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    other = row | {"_id": "other", "id": "other"}
    (passage,) = open_corpus(write(tmp_path / "rows.jsonl", [row, other]))
    assert (passage.title, passage.text) == ("T", "one two")
    assert passage.id == next(iter(open_corpus(write(tmp_path / "rows.json", [other])))).id


@pytest.mark.parametrize(
    ("row", "change", "field"),
    [
        (MUSIQUE, {"answer": None}, "answer"),
        (MUSIQUE, {"answerable": False}, "answerable"),
        (
            MUSIQUE,
            {"question_decomposition": [{"paragraph_support_idx": 2}]},
            "question_decomposition[0].paragraph_support_idx",
        ),
        (HOTPOT, {"answer": " "}, "answer"),
        (HOTPOT, {"supporting_facts": [["T"]]}, "supporting_facts[0]"),
        (HOTPOT, {"supporting_facts": "T"}, "supporting_facts"),
        (WIKI, {"evidences": [["a", "b"]]}, "evidences[0]"),
        (FLASHRAG, {"golden_answers": []}, "golden_answers"),
        (FLASHRAG, {"golden_answers": [1]}, "golden_answers[0]"),
        (FLASHRAG, {"id": True}, "id"),
        (FLASHRAG, {"metadata": 3}, "metadata"),
        (FLASHRAG_HOTPOT, {"metadata": {"supporting_facts": {}}}, "metadata.supporting_facts.title"),
        (POPQA, {"possible_answers": "[x]"}, "possible_answers"),
        (SEARCH_R1, {"reward_model": {"ground_truth": {}}}, "reward_model.ground_truth.target"),
        (RESEARCH, {"reward_model": {"ground_truth": []}}, "reward_model.ground_truth"),
        (RESEARCH, {"extra_info": {"index": 1}}, "extra_info.split"),
        (VERL_QA, {"extra_info": {"answer": "x", "id": 7}}, "extra_info.question"),
        (PLAIN, {"answers": "x", "hops": 1.5}, "hops"),
    ],
)
def test_a_malformed_row_names_file_place_and_field(
    tmp_path: Path, row: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    good = row | {name: "first" for name in ("id", "_id") if name in row}
    if "extra_info" in row:
        good["extra_info"] = row["extra_info"] | {"id": "first"}
    rows = [good, row | change]
    with pytest.raises(DataError) as lines:
        open_questions(write(tmp_path / "rows.jsonl", rows))
    assert str(lines.value).startswith(f"{tmp_path / 'rows.jsonl'}:2: field '{field}': ")
    with pytest.raises(DataError) as array:
        open_questions(write(tmp_path / "rows.json", rows))
    assert str(array.value).startswith(f"{tmp_path / 'rows.json'}: field '[1].{field}': ")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"context": [["T", "one"]]}, "context[0][1]"),
        ({"context": [["T", ["one", 2]]]}, "context[0][1]"),
        ({"context": {"title": ["T"], "sentences": []}}, "context.sentences"),
        ({"context": "T"}, "context"),
        ({"context": None, "paragraphs": [{"text": "t"}]}, "paragraphs[0].title"),
        ({"context": None, "paragraphs": [{"title": "t"}]}, "paragraphs[0].text"),
    ],
)
def test_malformed_paragraphs_name_their_place(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = write(tmp_path / "rows.jsonl", [HOTPOT | change])
    with pytest.raises(DataError) as error:
        list(open_corpus(path))
    assert str(error.value).startswith(f"{path}:1: field '{field}': ")


def test_parquet_names_the_row(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", [SEARCH_R1, SEARCH_R1 | {"id": "train_1", "question": None}])
    with pytest.raises(DataError, match=r"rows\.parquet:2: field 'question': is null"):
        open_questions(path)


def test_repeated_ids_are_refused_and_merged_sets_tell_theirs_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:2: field 'id': 'dev_0' occurs twice"):
        open_questions(write(tmp_path / "rows.jsonl", [FLASHRAG, FLASHRAG]))
    merged = write(tmp_path / "rows.parquet", [SEARCH_R1, SEARCH_R1 | {"data_source": "hotpotqa"}])
    assert [question.id for question in open_questions(merged)] == ["nq:train_0", "hotpotqa:train_0"]
    with pytest.raises(DataError, match=r"rows\.jsonl:2: field 'id': 'p' occurs twice"):
        list(open_corpus(write(tmp_path / "rows.jsonl", 2 * [{"id": "p", "title": "t", "text": "t"}])))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ": holds no row"),
        (b"[]", ": holds no row"),
        (b" \n\n", ": holds no row"),
        (b"[1]", ": field '[0]': must be an object, found int"),
        (b'[{"id": "a", "question": "q", "answers": "x"},]', ": field '[1]': is not JSON"),
        (
            b'[{"id": "a", "question": "q", "answers": "x"}',
            ": after item [0]: ',' or ']' expected, found ''; is the file whole?",
        ),
        (b"[", ": field '[0]': is not JSON"),
        (b'[{"id": "a", "question": "q", "answers": "x"}] x', ": text after the end of the array: 'x'"),
        (b'[{"id": NaN}]', ": field '[0]': is not JSON: NaN is not JSON"),
        (b'["\xff"]', ": is not UTF-8 (byte 2)"),
        (b'{"id": 1', ":1: is not JSON"),
        (b'{\n"id": 1}', ":1: is not JSON"),
        (
            b'{"id": "x", "qestion": "y"}',
            ":1: the fields id, qestion are those of no known format: questions (id, question",
        ),
        (b"[" * 100_000, ": field '[0]': is not JSON"),
    ],
)
def test_files_that_are_no_rows(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        open_questions(path)
    assert str(error.value).startswith(f"{path}{problem}")


@pytest.mark.parametrize(
    ("name", "content"), [("x.parquet", b"PAR1 not"), ("x.json.gz", b"plain"), ("x.jsonl.zst", b"plain")]
)
def test_damaged_containers_are_bad_data(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: cannot be read"):
        open_questions(tmp_path / name)


def test_a_wrong_kind_or_format_is_told(tmp_path: Path, shared_data: Path) -> None:
    with pytest.raises(DataError, match=r"holds passages \(format 'contents'\), not questions"):
        open_questions(shared_data / "formats" / "search_r1.example_corpus.jsonl.gz")
    for row in (PLAIN, FLASHRAG):
        with pytest.raises(DataError, match=r"holds questions \(format '\w+'\) without passages"):
            list(open_corpus(write(tmp_path / "rows.jsonl", [row])))
    with pytest.raises(UsageError, match="unknown format 'hotpot'; choose one of auto, questions"):
        open_questions(write(tmp_path / "rows.jsonl", [HOTPOT]), "hotpot")
    with pytest.raises(DataError, match="does not exist"):
        open_corpus(tmp_path / "none.jsonl")
    assert len({known.name for known in FORMATS}) == len(FORMATS)


def test_contents_of_the_example_corpus_survive(shared_data: Path) -> None:
    path = shared_data / "formats" / "search_r1.example_corpus.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [contents_of(passage) for passage in open_corpus(path)] == [row["contents"] for row in rows]


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"T"\nt\nu', "T", "t\nu"),
        ("T\nt", "T", "t"),
        ('"Weird Al" Y\nt', '"Weird Al" Y', "t"),
        ('""A" B"\nt', '"A" B', "t"),
        ("only text", "", "only text"),
        ('"\nt', '"', "t"),
    ],
)
def test_contents_split(contents: str, title: str, text: str) -> None:
    assert split_contents(contents) == (title, text)


def test_contents_corpora_take_numbers_as_ids_and_need_text(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"id": 0, "contents": '"T"\nt'}, {"id": 1, "contents": '"T"\n '}])
    passages = open_corpus(path)
    assert next(passages) == Passage("0", "T", "t")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: field 'contents': has no text"):
        next(passages)


DPR = 'id\ttext\ttitle\n1\t"Aaron ( or ; ""Ahärôn"") is a prophet"\tAaron\n\n2\tplain\t"""Heroes"" (album)"\r\n'


@pytest.mark.parametrize("name", ["psgs.tsv", "psgs.tsv.gz"])
@pytest.mark.parametrize("header", [True, False])
def test_dpr_corpora(tmp_path: Path, name: str, header: bool) -> None:
    content = (DPR if header else DPR.partition("\n")[2]).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert list(open_corpus(tmp_path / name)) == [
        Passage("1", "Aaron", 'Aaron ( or ; "Ahärôn") is a prophet'),
        Passage("2", '"Heroes" (album)', "plain"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"3\ttext", "has 2 fields; 3 are needed: id, text, title"),
        (b'3\t"text\ttitle', "is not well quoted"),
        (b"3\t\xff\ttitle", "is not UTF-8"),
        (b"3\t \ttitle", "field 'text': must not be blank"),
        (b"2\ttext\ttitle", "field 'id': '2' occurs twice"),
        (b"3\t" + b"x" * 200_000 + b"\ttitle", "is not well quoted: field larger than field limit"),
    ],
)
def test_malformed_dpr_lines_name_the_line(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "psgs.tsv"
    path.write_bytes(DPR.encode() + line)
    with pytest.raises(DataError) as error:
        list(open_corpus(path))
    assert str(error.value).startswith(f"{path}:5: {problem}")


def test_dpr_columns_follow_the_header(tmp_path: Path) -> None:
    (tmp_path / "psgs.tsv").write_text("id\ttitle\ttext\n1\tT\tt\n")
    assert list(open_corpus(tmp_path / "psgs.tsv")) == [Passage("1", "T", "t")]
