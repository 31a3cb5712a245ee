"""The scripted expert: right without noise, reproducible with it, and honest about what it has read."""

from __future__ import annotations

from itertools import islice
from random import Random

import numpy as np
import pytest

from factagent.data.corpus import read_facts, read_passages
from factagent.data.dataset import read_questions
from factagent.data.world.build import build_world
from factagent.data.world.config import WorldConfig
from factagent.evaluation.runner import evaluate, summarise
from factagent.policies.base import GenerationRequest
from factagent.policies.scripted import ScriptedExpert
from factagent.policies.scripted_replies import STYLES, Reply, write_reply
from factagent.protocols import build_protocol
from factagent.protocols.actions import parse_action
from factagent.protocols.state import State
from factagent.retrieval.bm25 import BM25Index
from factagent.rollout import RolloutSettings
from factagent.types import Answer, Assert, Invalid, Passage, Question, Search, Triple

ONE = RolloutSettings(group_size=1)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A world of 600 pages: dev questions, passages, retriever, facts."""
    directory = tmp_path_factory.mktemp("world") / "world"
    build_world(WorldConfig(entities=600, train=0, dev=60, test=0), directory)
    passages = read_passages(directory / "corpus.jsonl")
    return read_questions(directory / "qa.dev.jsonl"), passages, read_facts(directory / "facts.jsonl")


@pytest.fixture(scope="module")
def retriever(world):
    return BM25Index.build(world[1])


def play(world, retriever, expert, key=("eval",)):
    protocol = build_protocol("factagent", f"factagent-{expert.style}")
    return evaluate(world[0], protocol, expert, retriever, ONE, key=key)


def actions_of(results):
    return [[step.action for step in result.trajectory.steps] for result in results]


@pytest.mark.parametrize("style", STYLES)
def test_without_noise_it_answers_nearly_every_question_in_eight_rounds(world, retriever, style):
    results = play(world, retriever, ScriptedExpert(style, 0.0, world[2]))
    summary = summarise(results)
    assert summary["n"] == 60
    assert summary["em"] >= 0.95
    assert summary["coverage"] >= 0.95
    assert summary["parse_error_rate"] == 0.0
    assert max(result.steps for result in results) <= 8
    assert all(isinstance(actions[-1], Answer) for actions in actions_of(results))


def test_both_styles_are_the_same_actions(world, retriever):
    full = play(world, retriever, ScriptedExpert("full", 0.3, world[2]))
    terse = play(world, retriever, ScriptedExpert("terse", 0.3, world[2]))
    assert actions_of(full) == actions_of(terse)
    texts = [[step.generation.text for step in r.trajectory.steps] for results in (full, terse) for r in results]
    assert not any(isinstance(parse_action(text), Invalid) for row in texts for text in row)
    assert all(text.startswith("<think>") and "</think>" in text for row in texts for text in row)


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_it_never_asserts_before_it_has_searched_nor_what_no_passage_states(world, retriever, noise):
    results = play(world, retriever, ScriptedExpert("terse", noise, world[2]))
    asserted = 0
    for result in results:
        shown: set[Triple] = set()
        for step in result.trajectory.steps:
            if step.observation is not None:
                shown = {triple for passage in step.observation.passages for triple in world[2].get(passage.id, ())}
            if isinstance(step.action, Assert):
                asserted += 1
                assert set(step.action.triples) <= shown
    assert asserted > 20


def test_the_same_key_gives_the_same_choices_whatever_the_batch(world, retriever):
    expert = ScriptedExpert("terse", 0.4, world[2], seed=3)
    whole = play(world, retriever, expert)
    alone = [play((world[0][i : i + 1], *world[1:]), retriever, expert)[0] for i in (0, 7, 31)]
    assert actions_of(alone) == [actions_of(whole)[i] for i in (0, 7, 31)]
    assert actions_of(play(world, retriever, expert, ("other",))) != actions_of(whole)
    assert actions_of(play(world, retriever, ScriptedExpert("terse", 0.4, world[2], seed=4))) != actions_of(whole)


def test_noise_costs_answers(world, retriever):
    scores = []
    for noise in (0.0, 0.4, 0.9):
        results = play(world, retriever, ScriptedExpert("terse", noise, world[2]))
        scores.append(summarise(results)["em"])
    assert scores[0] > scores[1] + 0.1 > scores[2] + 0.2


def test_it_answers_in_the_last_round_whatever_it_holds(world):
    expert = ScriptedExpert("terse", 1.0, world[2])
    last = State(world[0][0], max_rounds=1)
    assert last.round == last.max_rounds
    assert {type(expert.choose(last, Random(seed)).action) for seed in range(20)} == {Answer}


def test_styles_write_what_the_parser_reads():
    for action in (
        Search('who "wrote" it?'),
        Assert((Triple("a \\ b", 'says "c"', "d\n"), Triple("é", "is", "漢字"))),
        Answer("42"),
    ):
        full, terse = (parse_action(write_reply(Reply("why", action), style)) for style in STYLES)
        stripped = action
        if isinstance(action, Assert):
            stripped = Assert(tuple(Triple(*(part.strip() for part in triple)) for triple in action.triples))
        assert full == terse == stripped


FILM, MAN = Triple("Blind Shaft", "director", "Li Yang"), Triple("Li Yang", "place of birth", "Xi'an")
CHAIN = Question("q", "Where was the director of Blind Shaft born?", ("Xi'an",), evidences=(FILM, MAN))


class Shelf:
    passages = (
        Passage("p0", "Blind Shaft", "Blind Shaft is a film directed by Li Yang."),
        Passage("p1", "Li Yang", "Li Yang, born in Xi'an, is a director."),
    )

    def search(self, queries, top_k):
        return [tuple(p for p in self.passages if p.title in query)[:top_k] for query in queries]


def test_without_annotated_passages_it_reads_subject_and_object_in_the_text():
    results = evaluate([CHAIN], build_protocol("factagent", "factagent-full"), ScriptedExpert(), Shelf(), ONE)
    assert actions_of(results)[0] == [
        Search("Blind Shaft director"),
        Assert((FILM,)),
        Search("Li Yang place of birth"),
        Assert((MAN,)),
        Answer("Xi'an"),
    ]
    noisy = ScriptedExpert(noise=1.0)  # has no other facts to assert, so it never does
    played = evaluate([CHAIN], build_protocol("factagent", "factagent-full"), noisy, Shelf(), ONE)
    assert not any(isinstance(action, Assert) for action in actions_of(played)[0])


def test_a_request_is_answered_from_the_state_alone():
    request = GenerationRequest((), State(CHAIN, 8), None, ("k",))
    assert parse_action(ScriptedExpert().generate([request])[0].text) == Search("Blind Shaft director")


def test_real_questions_with_gold_triples(shared_data):
    """2WikiMultihopQA: 30 questions whose passages are there, searched among those and 500 others."""
    questions = [
        question
        for question in islice(read_questions(shared_data / "qa" / "2wikimultihopqa.dev.jsonl.gz"), 6000)
        if question.evidences and len(question.supporting_titles) >= 2
    ]
    corpus = read_passages(shared_data / "corpora" / "2wikimultihopqa.jsonl.gz")
    titles = {passage.title for passage in corpus}
    chosen = [question for question in questions if set(question.supporting_titles) <= titles][:30]
    assert len(chosen) == 30
    wanted = {title for question in chosen for title in question.supporting_titles}
    shelf = [p for p in corpus if p.title in wanted] + [p for p in corpus if p.title not in wanted][:500]
    for style in STYLES:
        protocol = build_protocol("factagent", f"factagent-{style}")
        results = evaluate(chosen, protocol, ScriptedExpert(style), BM25Index.build(shelf), ONE)
        summary = summarise(results)
        assert summary["parse_error_rate"] == 0.0
        assert summary["em"] >= 0.5
        for actions in actions_of(results):
            first = next((i for i, action in enumerate(actions) if isinstance(action, Assert)), len(actions))
            assert isinstance(actions[0], Search)
            assert first >= 1


def test_haste_answers_with_the_newest_fact_as_soon_as_there_is_one(world, retriever):
    results = play(world, retriever, ScriptedExpert("terse", 0.0, world[2], haste=1.0))
    chains = [result for result in results if result.question.type == "chain"]
    one_hop = [result for result in chains if result.question.hops == 1]
    longer = [result for result in chains if (result.question.hops or 0) >= 3]
    assert np.mean([result.em for result in one_hop]) >= 0.9
    assert np.mean([result.em for result in longer]) <= 0.1
    assert all(result.steps <= 4 for result in longer)
