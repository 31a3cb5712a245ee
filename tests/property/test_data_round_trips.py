"""What we write reads back as it was, for anything that our types can hold."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from factagent.data.contents import contents_of, split_contents
from factagent.data.corpus import write_passages
from factagent.data.dataset import write_questions
from factagent.data.identity import UniqueIds
from factagent.data.sources import open_corpus, open_questions
from factagent.data.splitting import count_words, split_text
from factagent.types import Passage, Question, Triple

FEWER = settings(max_examples=100)
"""For tests that write files, or draw long lists."""

ANY = st.text(st.characters(codec=None), max_size=12)
FILLED = ANY.filter(lambda text: bool(text.strip()))
TRIPLES = st.builds(Triple, *(3 * [ANY.map(str.strip)]))
SUFFIXES = st.sampled_from(["jsonl", "jsonl.gz", "jsonl.zst"])


@st.composite
def questions(draw: st.DrawFn) -> Question:
    evidences = tuple(draw(st.lists(TRIPLES, max_size=3)))
    variants = tuple(tuple(draw(st.lists(TRIPLES, max_size=2))) for _ in evidences) if draw(st.booleans()) else ()
    return Question(
        draw(FILLED),
        draw(FILLED),
        tuple(draw(st.lists(ANY, min_size=1, max_size=3))),
        draw(st.none() | FILLED),
        draw(st.none() | st.integers(0, 9)),
        tuple(draw(st.lists(ANY, max_size=3))),
        evidences,
        variants,
    )


@FEWER
@given(st.lists(questions(), min_size=1, max_size=4, unique_by=lambda question: question.id), SUFFIXES)
def test_questions(written: list[Question], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"qa.{suffix}"
        assert write_questions(path, written) == len(written)
        assert open_questions(path) == written


PASSAGES = st.builds(Passage, FILLED, ANY, FILLED)


@FEWER
@given(st.lists(PASSAGES, min_size=1, max_size=4, unique_by=lambda passage: passage.id), SUFFIXES)
def test_passages(written: list[Passage], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"corpus.{suffix}"
        assert write_passages(path, written) == len(written)
        assert list(open_corpus(path)) == written


@given(PASSAGES)
def test_contents(passage: Passage) -> None:
    assert split_contents(contents_of(passage)) == (passage.title.replace("\n", " "), passage.text)


IDS = st.one_of(
    st.integers(0, 200).map(str),
    st.builds("{}{}".format, st.sampled_from(["p", "p-", "", "0", "1"]), st.integers(0, 99)),
    st.builds("{:03d}".format, st.integers(0, 99)),
    ANY,
)


@FEWER
@given(st.lists(IDS, max_size=60), st.integers(0, 150), st.integers(0, 200))
def test_unique_ids_are_a_set(mixed: list[str], start: int, length: int) -> None:
    counted = [f"p{number}" for number in range(start, start + length)]
    ids, plain = UniqueIds(), set[str]()
    for identity in [*mixed, *counted, *reversed(mixed), *counted[:3]]:
        assert ids.add(identity) == (identity not in plain)
        plain.add(identity)


PROSE = st.lists(st.sampled_from(["one", "two.", "Three!", "四", "五。", "x" * 150, "\n\n", "\n", " "]), max_size=80)


@given(PROSE.map(" ".join), st.integers(1, 12))
def test_passages_of_a_text_hold_all_its_words_and_are_not_too_long(text: str, words: int) -> None:
    passages = split_text(text, words)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(passage == passage.strip() != "" for passage in passages)
    assert all(count_words(passage) <= words for passage in passages[:-1])
    assert all(count_words(passage) < words * 1.25 for passage in passages[-1:] if words > 3) or words <= 3
