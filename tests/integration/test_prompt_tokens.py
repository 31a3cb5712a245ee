from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from factagent.data.corpus import iter_passages
from factagent.episode import MAX_ROUNDS
from factagent.protocols.state import State
from factagent.retrieval.bm25 import BM25Index
from factagent.types import Answer, Passage, Question, Search, Triple

pytest.importorskip("transformers", reason="needs the extra 'train'")


@pytest.fixture(scope="module")
def bench(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prompt_tokens", repository / "benchmarks" / "prompt_tokens.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def result(bench: ModuleType, shared_data: Path) -> dict:
    questions = bench.load_questions(shared_data / "qa" / "hotpotqa.dev.jsonl.gz", 6)
    titles = {title for question in questions for title in question.supporting_titles}
    passages = list(iter_passages(shared_data / "corpora" / "hotpotqa.jsonl.gz"))
    kept = [passage for n, passage in enumerate(passages) if n % 40 == 0 or passage.title in titles]
    return bench.compare(questions, BM25Index.build(kept), bench.load_codec(shared_data), "SASASAS")


def test_append_grows_and_rebuild_stays_bounded(result: dict) -> None:
    react, factagent = result["by_round"]["react"], result["by_round"]["factagent"]
    assert all(later > earlier + 20 for earlier, later in pairwise(react))
    # After the first observation only the store and the list of queries grow.
    memory = result["composition_by_round"]["factagent"]["store and queries"]
    assert factagent[7] - factagent[1] <= memory[7] - memory[1] + 150
    assert result["round_8_ratio"] < 0.6
    assert result["round_8_ratio"] == pytest.approx(factagent[7] / react[7])
    assert result["met"] == (result["round_8_ratio"] <= 0.25)


def test_components_add_up_to_the_prompt(result: dict) -> None:
    for name, parts in result["composition_by_round"].items():
        for number in range(MAX_ROUNDS):
            assert sum(values[number] for values in parts.values()) == pytest.approx(result["by_round"][name][number])
            assert 0 < parts["template"][number] < 250
    history = result["composition_by_round"]["react"]["older observations"]
    assert history[:3] == [0, 0, 0] and history[3] > 100


def test_a_prefix_cache_leaves_react_with_its_last_prompt(result: dict) -> None:
    fresh = result["beyond_prefix_cache_per_question"]
    assert fresh["react"] == pytest.approx(result["by_round"]["react"][-1], abs=8 * MAX_ROUNDS)
    assert fresh["factagent"] < result["prompt_tokens_per_question"]["factagent"]


def test_the_reader_decides_by_the_state_alone(bench: ModuleType) -> None:
    question = Question("q", "Where was Ida born?", ("Lund",), supporting_titles=("Ida Ferrow", "Lund"))
    reader = bench.ScriptedReader("SASASAS")
    assert reader.reply(State(question, 8)).action == Search("Where was Ida born?")
    assert [reader.query(State(question, 8, steps=steps)) for steps in ((),)] == ["Where was Ida born?"]
    last = State(question, 1)
    assert reader.reply(last).action == Answer("Lund")


def test_sentences_become_triples(bench: ModuleType) -> None:
    assert bench.sentence_triple("T", "Ida Ferrow was born in Lund.") == Triple("Ida Ferrow", "was", "born in Lund")
    assert bench.sentence_triple("T", "No copula here.") == Triple("T", "is described by", "No copula here")


def test_different_actions_are_refused(bench: ModuleType, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question("q", "lund", ("a",), supporting_titles=("Lund",))
    index = BM25Index.build([Passage("p", "Lund", "Lund is a city.")])
    draws = iter(range(100))
    monkeypatch.setattr(bench.ScriptedReader, "query", lambda self, state: f"query {next(draws)}")
    with pytest.raises(RuntimeError, match="same eight rounds"):
        bench.compare([question], index, bench.load_codec(shared_data), "SASASAS")
