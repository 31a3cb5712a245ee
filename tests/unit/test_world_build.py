from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from factagent.cli.world import build as build_command
from factagent.data.corpus import read_facts, read_passages
from factagent.data.dataset import read_questions
from factagent.data.formats import sha256_of
from factagent.data.world.build import build_world, make_world, words_of
from factagent.data.world.config import WorldConfig, parse_config
from factagent.data.world.drafts import Evidence
from factagent.data.world.generate import check_facts, generate
from factagent.data.world.joint import JointQuery
from factagent.data.world.passages import write_pages
from factagent.data.world.relations import RELATION_OF_PHRASE, RELATIONS
from factagent.data.world.solver import FactTable, chance_of, solve
from factagent.errors import ConfigError, UsageError
from factagent.types import Passage, Question, Triple

SPLITS = ("train", "dev", "test")
SMALL = WorldConfig(entities=900, train=700, dev=100, test=100, negated=0.3)


class Built:
    """The files of one world, read back."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.passages = read_passages(directory / "corpus.jsonl")
        self.facts = read_facts(directory / "facts.jsonl")
        self.splits = {split: read_questions(directory / f"qa.{split}.jsonl") for split in SPLITS}
        self.questions: list[Question] = [question for split in SPLITS for question in self.splits[split]]
        self.triples = [triple for triples in self.facts.values() for triple in triples]
        self.manifest = json.loads((directory / "world.json").read_text())
        rows = [line for split in SPLITS for line in (directory / f"qa.{split}.jsonl").read_text().splitlines()]
        self.programs = {row["id"]: row["program"] for row in map(json.loads, rows)}

    @property
    def by_title(self) -> dict[str, list[Passage]]:
        titles: dict[str, list[Passage]] = {}
        for passage in self.passages:
            titles.setdefault(passage.title, []).append(passage)
        return titles


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    directory = tmp_path_factory.mktemp("world") / "small"
    assert build_world(SMALL, directory)
    return Built(directory)


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Built:
    directory = tmp_path_factory.mktemp("world") / "default"
    assert build_world(WorldConfig(), directory)
    return Built(directory)


def test_the_same_settings_give_the_same_bytes(built: Built, tmp_path: Path) -> None:
    build_world(SMALL, tmp_path / "again")
    for name, expected in built.manifest["sha256"].items():
        assert sha256_of(tmp_path / "again" / name) == expected == sha256_of(built.directory / name)
    assert (tmp_path / "again" / "world.json").read_bytes() == (built.directory / "world.json").read_bytes()


def test_another_seed_gives_another_world(built: Built, tmp_path: Path) -> None:
    build_world(SMALL.model_copy(update={"seed": 1}), tmp_path / "other")
    other = json.loads((tmp_path / "other" / "world.json").read_text())
    assert not set(other["sha256"].values()) & set(built.manifest["sha256"].values())


def test_the_default_world_meets_its_targets(default: Built) -> None:
    counts = default.manifest["counts"]
    assert counts["entities"] == 2400 == len(default.by_title)
    assert all(1 <= len(passages) <= 2 for passages in default.by_title.values())
    assert counts["distinct_words"] <= 1900
    assert {split: len(questions) for split, questions in default.splits.items()} == {
        "train": 6000,
        "dev": 600,
        "test": 600,
    }
    chains = sum(question.type == "chain" for question in default.questions)
    assert chains <= len(default.questions) / 2
    assert {question.hops for question in default.questions} == {1, 2, 3, 4}
    lengths = sorted(len(passage.text.split()) for passage in default.passages)
    assert lengths[len(lengths) // 20] >= 12
    assert lengths[-len(lengths) // 20] <= 34


def test_splits_keep_the_mix_of_types_and_hops(default: Built) -> None:
    mixes = {
        split: {cell: n / len(qs) for cell, n in Counter((q.type, q.hops) for q in qs).items()}
        for split, qs in default.splits.items()
    }
    for split in ("dev", "test"):
        assert mixes[split].keys() == mixes["train"].keys()
        assert all(abs(mixes[split][cell] - mixes["train"][cell]) < 0.01 for cell in mixes["train"])


def test_no_question_and_no_evidence_set_occurs_twice(default: Built) -> None:
    assert len({question.id for question in default.questions}) == len(default.questions)
    assert len({frozenset(question.evidences) for question in default.questions}) == len(default.questions)
    texts = Counter(question.text for question in default.questions)
    assert texts.most_common(1)[0][1] == 1


def test_guessing_seldom_pays(default: Built) -> None:
    for kind, limit in {"chain": 0.0, "shared": 0.0, "bridge_comparison": 0.1, "selection": 0.25}.items():
        chances = [chance_of(default.programs[q.id]) for q in default.questions if q.type == kind]
        assert sum(chances) / len(chances) <= limit, kind
    comparisons = [chance_of(default.programs[q.id]) for q in default.questions if q.type == "comparison"]
    assert max(comparisons) <= 1 / 3
    top = Counter(question.answers[0] for question in default.questions).most_common(1)[0][1]
    assert top <= 0.01 * len(default.questions)


def test_every_answer_follows_from_the_statements_of_the_corpus_alone(built: Built) -> None:
    table = FactTable(built.triples)
    for question in built.questions:
        assert solve(built.programs[question.id], table) == set(question.answers), question


def test_the_evidences_suffice_and_each_is_needed(built: Built) -> None:
    for question in built.questions:
        program, evidences = built.programs[question.id], question.evidences
        assert question.hops == len(evidences)
        assert solve(program, FactTable(evidences)) == set(question.answers), question
        for index in range(len(evidences)):
            partial = FactTable(evidences[:index] + evidences[index + 1 :])
            assert solve(program, partial) != set(question.answers), question


def test_every_evidence_stands_in_a_supporting_passage(built: Built) -> None:
    by_title = built.by_title
    for question in built.questions:
        stated = {t for title in question.supporting_titles for p in by_title[title] for t in built.facts[p.id]}
        for evidence, variants in zip(question.evidences, question.evidence_variants, strict=True):
            assert variants[0] == evidence
            assert len(variants) >= 3
            assert stated & set(variants), (question.text, evidence)


def test_each_sentence_states_its_triple(built: Built) -> None:
    for passage in built.passages:
        sentences = " ".join(f"{triple.text}." for triple in built.facts[passage.id])
        assert passage.text == sentences
        name = passage.title.split(" (")[0]
        assert all(name in (triple.subject, triple.object) for triple in built.facts[passage.id])


def test_negated_sentences_contradict_nothing(built: Built) -> None:
    of_negation = {relation.negation: relation for relation in RELATIONS.values() if relation.negation}
    table = FactTable(built.triples)
    negated = [triple for triple in built.triples if triple.relation in of_negation]
    assert len(negated) > 50
    for triple in negated:
        relation = of_negation[triple.relation]
        assert triple.object not in table.objects(triple.subject, relation.name)


def test_namesakes_have_pages_of_their_own_and_no_questions(built: Built) -> None:
    plain = Counter(title.split(" (")[0] for title in built.by_title)
    shared = {name for name, count in plain.items() if count > 1}
    assert len(shared) >= 10
    for question in built.questions:
        named = {name for t in question.evidences for name in (t.subject, t.object)} | set(question.answers)
        assert not named & shared


def test_open_questions_do_not_name_their_answer(built: Built) -> None:
    for question in built.questions:
        if chance_of(built.programs[question.id]) == 0.0:
            assert question.answers[0] not in question.text


def test_compared_years_lie_apart(built: Built) -> None:
    for question in built.questions:
        if question.type == "comparison" and int(question.evidences[0].object) < 2000:
            years = sorted(int(evidence.object) for evidence in question.evidences)
            assert min(b - a for a, b in pairwise(years)) >= SMALL.year_gap


def as_evidence(triple: Triple) -> Evidence:
    relation, _ = RELATION_OF_PHRASE[triple.relation]
    return Evidence(triple.subject, relation.name, triple.object)


def test_bm25_finds_evidence_by_subject_and_relation_but_no_joint_query_answers(built: Built) -> None:
    index = JointQuery(write_pages(generate(SMALL)))
    evidences = [evidence for question in built.questions for evidence in question.evidences]
    tops = index.top([f"{evidence.subject} {evidence.relation}" for evidence in evidences])
    found = [index.states(top, as_evidence(evidence)) for top, evidence in zip(tops, evidences, strict=True)]
    assert sum(found) / len(found) >= 0.95
    several = [question for question in built.questions if question.type != "chain"]
    tops = index.top([question.text for question in several])
    for question, top in zip(several, tops, strict=True):
        assert not all(index.states(top, as_evidence(evidence)) for evidence in question.evidences), question.text


def test_facts_link_the_kinds_that_relations_declare() -> None:
    check_facts(generate(SMALL))


def test_more_distractors_state_more_that_nobody_asks(tmp_path: Path) -> None:
    shares = []
    for distractors in (0, 3):
        pages = write_pages(generate(SMALL.model_copy(update={"distractors": distractors, "negated": 0.0})))
        triples = [triple for page in pages for triple in page.triples]
        shares.append(sum(RELATION_OF_PHRASE[triple.relation][0].distractor for triple in triples) / len(triples))
    assert shares[0] == 0.0
    assert shares[1] > 0.15


def test_words_of_strips_punctuation() -> None:
    assert list(words_of("Silent Bay (film), 1950?")) == ["Silent", "Bay", "film", "1950"]


def test_building_again_is_a_no_op_and_other_settings_need_force(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "world"
    config = WorldConfig(entities=600, train=20, dev=0, test=0, reject_joint=False)
    assert build_world(config, out)
    before = (out / "world.json").stat().st_mtime_ns
    assert not build_world(config, out)
    assert (out / "world.json").stat().st_mtime_ns == before
    other = config.model_copy(update={"seed": 3})
    with pytest.raises(UsageError, match="--force"):
        build_world(other, out)
    assert build_world(other, out, force=True)
    assert json.loads((out / "world.json").read_text())["config"]["seed"] == 3
    assert [path.name for path in out.parent.iterdir()] == ["world"]


def test_a_damaged_world_is_not_taken_for_complete(tmp_path: Path) -> None:
    out = tmp_path / "world"
    config = WorldConfig(entities=600, train=20, dev=0, test=0, reject_joint=False)
    build_world(config, out)
    with (out / "corpus.jsonl").open("a") as stream:
        stream.write("\n")
    with pytest.raises(UsageError, match="--force"):
        build_world(config, out)


def test_force_never_replaces_what_is_no_world(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="is no world"):
        build_world(SMALL, tmp_path, force=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_world_too_small_for_its_questions_says_which_kind(tmp_path: Path) -> None:
    config = WorldConfig(entities=600, train=3000, dev=0, test=0, hops=(1,), type_weights={"chain": 1.0})
    with pytest.raises(ConfigError, match=r"only \d+ of 3000 questions of type chain with 1 hops"):
        build_world(config, tmp_path / "world")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hops": "1,x"}, "hops '1,x'"),
        ({"hops": "5"}, "setting 'hops'"),
        ({"hops": "1", "types": "chain"}, "types 'chain'"),
        ({"hops": "1", "types": "riddle=1"}, "riddle"),
        ({"hops": "1", "types": "chain=-1"}, "negative"),
        ({"hops": "1", "entities": 5}, "setting 'entities'.*got 5"),
        ({"hops": "1", "namesakes": 2.0}, "setting 'namesakes'"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(**settings)


def test_no_kind_of_question_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kind of question"):
        build_world(parse_config(hops="1", types="shared=1"), tmp_path / "world")


def test_shares_of_cells_follow_the_weights() -> None:
    cells = parse_config(hops="1,2", types="chain=1,shared=1").cells()
    assert cells == {("chain", 1): 0.25, ("chain", 2): 0.25, ("shared", 2): 0.5}


def test_the_command_builds_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "out": tmp_path / "w",
        "entities": 600,
        "train": 10,
        "dev": 0,
        "test": 0,
        "hops": "1",
        "types": "chain=1",
    }
    build_command(**settings)
    assert capsys.readouterr().out == f"{tmp_path / 'w'}: world built\n"
    build_command(**settings)
    assert "nothing to do" in capsys.readouterr().out


def test_skipped_questions_are_those_of_a_smaller_build():
    base = {"entities": 700, "hops": (1, 2), "type_weights": {"chain": 1.0}}
    first = make_world(WorldConfig(**base, train=60, dev=20, test=20))
    later = make_world(WorldConfig(**base, skip=100, train=40, dev=10, test=10))
    evidences = [
        {question.evidences for questions in world.questions.values() for question in questions}
        for world in (first, later)
    ]
    assert [page.passage for page in first.pages] == [page.passage for page in later.pages]
    assert {split: len(questions) for split, questions in later.questions.items()} == {
        "train": 40,
        "dev": 10,
        "test": 10,
    }
    assert not evidences[0] & evidences[1]
