"""Environments other than a plain retriever: the curriculum, corpus noise, simulated search, their configuration."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from factagent.configuration import dump_toml, load_config
from factagent.episode import OVERLONG, Episode
from factagent.errors import ConfigError
from factagent.policies.base import GenerationRequest, PolicyError
from factagent.policies.endpoint_settings import EndpointSettings
from factagent.protocols import build_protocol
from factagent.protocols.actions import render_action
from factagent.retrieval.base import EpisodeRetriever, Found, RetrievalError, SearchRequest
from factagent.retrieval.curriculum import Curriculum
from factagent.retrieval.noise import CorpusNoise, is_useful
from factagent.retrieval.simulated import AsyncSimulator, SimulatedRetriever, parse_documents
from factagent.retrieval.simulator_prompts import BUILT_IN, load_simulator_prompt
from factagent.rollout import RolloutSettings, sample_groups
from factagent.rollout_async import run_many
from factagent.train.config import RunConfig
from factagent.train.environment import Environment, EnvironmentConfig
from factagent.types import Answer, Generation, Passage, Question, Search, StopReason

QUESTIONS = tuple(Question(f"q{i}", f"Where was person {i} born?", (f"City {i}", f"Town {i}")) for i in range(5))
PROTOCOL = build_protocol("factagent", "factagent-terse")


@dataclass
class Shelf:
    """A retriever whose only passage repeats the query."""

    queries: list[str] = field(default_factory=list)

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        self.queries += queries
        return [(Passage(query, "", query),) for query in queries]


@dataclass
class Simulator:
    """An asynchronous policy from a function of one request; keeps what it was asked."""

    write: Callable[[GenerationRequest], str]
    asked: list[GenerationRequest] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        await asyncio.sleep(0)
        text = self.write(request)
        if text == "refuse":
            raise PolicyError("endpoint http://x/v1: HTTP 500")
        return Generation(text, finish_reason=OVERLONG if text == "overlong" else "stop")


def request_of(number: int, query: str = "query", key: tuple[str | int, ...] = ("k",)) -> SearchRequest:
    return SearchRequest(query, QUESTIONS[number], (*key, number))


def simulate(
    simulator: Simulator, requests: Sequence[SearchRequest], top_k: int = 3, noise: float = 0.0
) -> list[Found]:
    prompt = load_simulator_prompt("simulator-tuned")
    return asyncio.run(AsyncSimulator(simulator, prompt, noise).search_for(requests, top_k))


# --- curriculum ----------------------------------------------------------------------------------------------------


def test_the_curriculum_of_zerosearch() -> None:
    curriculum = Curriculum(0.0, 0.5, 200)
    found = [round(curriculum.probability(step), 4) for step in (0, 50, 100, 150, 200, 300)]
    assert found == [0, 0.0690, 0.1667, 0.3047, 0.5, 0.5]


def test_a_curriculum_may_start_above_zero_fall_or_stay() -> None:
    assert Curriculum(0.25, 0.5, 10).probability(0) == 0.25
    assert Curriculum(0.5, 0.0, 10).probability(10) == 0.0
    assert Curriculum(0.3, 0.3, 7).probability(3) == 0.3
    with pytest.raises(ValueError, match="must lie in"):
        Curriculum(0.0, 1.5, 10)
    with pytest.raises(ValueError, match="steps be at least 1"):
        Curriculum(0.0, 0.5, 0)


# --- corpus noise --------------------------------------------------------------------------------------------------


def test_noise_answers_with_another_question_and_by_key() -> None:
    shelf = Shelf()
    requests = [SearchRequest("mine", QUESTIONS[i % 5], ("step", i)) for i in range(400)]
    found = CorpusNoise(shelf, QUESTIONS, 0.3).search_for(requests, 3)
    noisy = [i for i, query in enumerate(shelf.queries) if query != "mine"]
    assert 0.2 < len(noisy) / 400 < 0.4
    others = {question.text for question in QUESTIONS}
    for i in noisy:
        assert shelf.queries[i] in others - {requests[i].question.text}
        assert not is_useful(requests[i], 0.3)
    again = CorpusNoise(Shelf(), QUESTIONS, 0.3)
    assert [again.search_for([request], 3)[0] for request in reversed(requests)] == list(reversed(found))


def test_more_noise_keeps_the_noisy_searches() -> None:
    requests = [SearchRequest("mine", QUESTIONS[0], (i,)) for i in range(200)]
    noisy = [{r.key for r in requests if not is_useful(r, noise)} for noise in (0.0, 0.2, 0.6, 1.0)]
    assert noisy[0] == set()
    assert noisy[0] < noisy[1] < noisy[2] < noisy[3] == {r.key for r in requests}


def test_noise_needs_another_question() -> None:
    with pytest.raises(ConfigError, match="at least two different questions"):
        CorpusNoise(Shelf(), QUESTIONS[:1] * 3, 0.5)
    with pytest.raises(ValueError, match=r"noise=1\.5"):
        CorpusNoise(Shelf(), QUESTIONS, 1.5)


# --- documents of a simulator --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("Doc 1: Lund is a city.\n\nDoc 2: It lies\nin Sweden.\n", ["Lund is a city.", "It lies in Sweden."]),
        ("Useful Output:\nDoc 1: a Doc 2: b\nDoc 3: c\nDoc 4: d", ["a", "b", "c"]),
        ("**Doc 1:** a\n**Doc 2:** b", ["a", "b"]),
        ("Doc 1: see Doc 7: no. Doc 2: b", ["see Doc 7: no.", "b"]),
        ("<think>Doc 1: plan</think>Doc 1: a", ["a"]),
        ("Doc 1:\nDoc 2: b", ["b"]),
        ("Doc 2: no first", []),
        ("I cannot do that.", []),
        ("", []),
    ],
)
def test_documents_of_a_reply(text: str, documents: list[str]) -> None:
    found = parse_documents(text, 3)
    assert [passage.text for passage in found] == documents
    assert [passage.score for passage in found] == sorted((p.score for p in found), reverse=True)
    assert len({passage.id for passage in found}) == len(documents)


def test_documents_may_have_titles() -> None:
    (passage,) = parse_documents("Doc 1(Title: Lund) Lund is a city.", 1)
    assert (passage.title, passage.text) == ("Lund", "Lund is a city.")


def test_parsing_is_linear_in_the_reply() -> None:
    for text in ("Doc 1(Title: " * 20_000, "Doc " * 100_000, "Doc 1" + " *" * 100_000, "Doc 1: x\n" * 50_000):
        assert len(parse_documents(text, 3)) <= 3


# --- the simulator -------------------------------------------------------------------------------------------------


def test_each_search_carries_its_own_question_and_gold() -> None:
    simulator = Simulator(lambda request: f"Doc 1: about {request.state.question.id}")
    found = simulate(simulator, [request_of(3, "x"), request_of(1, "y")])
    assert [[p.text for p in each] for each in found if not isinstance(each, RetrievalError)] == [
        ["about q3"],
        ["about q1"],
    ]
    prompts = {request.state.question.id: request.messages[-1].content for request in simulator.asked}
    for number, query in ((3, "x"), (1, "y")):
        assert f"person {number} born?" in prompts[f"q{number}"]
        assert f"City {number})" in prompts[f"q{number}"]
        assert f"Query: {query}\n" in prompts[f"q{number}"]


def test_after_some_stop_searching_the_others_keep_their_question() -> None:
    """The published bug: questions were looked up by position among those that still search."""

    class Policy:
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            return [Generation(render_action(self.act(request))) for request in requests]

        def act(self, request: GenerationRequest) -> Search | Answer:
            number = int(request.state.question.id[1:])
            return Answer("x") if request.state.round > number else Search(f"query of {number}")

    class Blocking:
        def __init__(self) -> None:
            self.simulator = Simulator(lambda request: f"Doc 1: {request.messages[-1].content}")

        def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
            return simulate(self.simulator, requests, top_k)

    environment = Blocking()
    groups = sample_groups(QUESTIONS, PROTOCOL, Policy(), environment, RolloutSettings(group_size=2), ("run",))
    asked = Counter(request.state.question.id for request in environment.simulator.asked)
    assert asked == {f"q{i}": 2 * i for i in range(1, 5)}
    for group in groups:
        number = group.question.id[1:]
        for step in (step for trajectory in group.trajectories for step in trajectory.steps if step.observation):
            (passage,) = step.observation.passages
            assert f"person {number} born?" in passage.text
            assert f"City {number})" in passage.text
            assert f"query of {number}" in passage.text


def test_useful_or_noisy_is_drawn_by_the_key() -> None:
    simulator = Simulator(lambda request: "Doc 1: x")
    requests = [SearchRequest("q", QUESTIONS[0], (i,)) for i in range(100)]
    simulate(simulator, requests, noise=0.4)
    useful = ["that help" in request.messages[-1].content for request in simulator.asked]
    assert useful == [is_useful(request, 0.4) for request in requests]
    assert 40 < sum(useful) < 80
    assert len({request.key for request in simulator.asked}) == 100


def test_failures_end_their_own_episode_and_are_never_an_empty_observation() -> None:
    replies = {"q0": "refuse", "q1": "Doc 1: fine", "q2": "no documents here", "q3": "overlong", "q4": "Doc 1:"}
    simulator = Simulator(lambda request: replies[request.state.question.id])
    found = simulate(simulator, [request_of(i) for i in range(5)])
    assert [isinstance(each, RetrievalError) for each in found] == [True, False, True, True, True]
    assert "HTTP 500" in str(found[0])
    assert "hold no 'Doc 1: ...'" in str(found[2])
    assert "context is too short" in str(found[3])
    asked = Counter(request.state.question.id for request in simulator.asked)
    assert asked == {"q0": 1, "q1": 1, "q2": 2, "q3": 1, "q4": 2}
    assert len({request.key for request in simulator.asked}) == 7


def test_both_drivers_turn_a_failure_into_a_stop_reason() -> None:
    class Half:
        def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
            return [RetrievalError("down") if r.question.id == "q1" else (Passage("p", "", "text"),) for r in requests]

    class AsyncHalf:
        async def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
            return Half().search_for(requests, top_k)

    def write(request: GenerationRequest) -> str:
        return render_action(Search("s") if request.state.observation is None else Answer("x"))

    class Policy:
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            return [Generation(write(request)) for request in requests]

    expected = [StopReason.ANSWERED, StopReason.RETRIEVAL_FAILED, StopReason.ANSWERED]
    groups = sample_groups(QUESTIONS[:3], PROTOCOL, Policy(), Half(), RolloutSettings(group_size=1), ())
    assert [group.trajectories[0].stop_reason for group in groups] == expected

    async def play() -> list[tuple[int, str]]:
        episodes = [Episode(question, PROTOCOL) for question in QUESTIONS[:3]]
        keys = [(question.id,) for question in QUESTIONS[:3]]
        results = run_many(episodes, keys, Simulator(write), AsyncHalf(), concurrency=2)
        return sorted([(index, str(done.trajectory.stop_reason)) async for index, done in results])

    assert asyncio.run(play()) == list(enumerate(map(str, expected)))


def test_the_asyncio_driver_plays_in_a_simulated_search_engine() -> None:
    def write(request: GenerationRequest) -> str:
        number = int(request.state.question.id[1:])
        return render_action(Answer("x") if request.state.round > number else Search(f"query of {number}"))

    async def play() -> list[tuple[int, list[str]]]:
        simulator = Simulator(lambda request: f"Doc 1: {request.messages[-1].content}")
        environment = AsyncSimulator(simulator, load_simulator_prompt("simulator-tuned"), 0.5)
        episodes = [Episode(question, PROTOCOL) for question in QUESTIONS]
        runs = run_many(episodes, [(q.id,) for q in QUESTIONS], Simulator(write), environment, concurrency=3)
        return [
            (index, [step.observation.passages[0].text for step in done.trajectory.steps if step.observation])
            async for index, done in runs
        ]

    for index, documents in asyncio.run(play()):
        assert len(documents) == index
        assert all(f"person {index} born?" in text and f"City {index})" in text for text in documents)


def test_an_endpoint_that_is_not_there_is_a_failed_search_also_inside_an_event_loop() -> None:
    pytest.importorskip("openai")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        settings = EndpointSettings(url=url, model="simulator", tries=1)
        retriever = SimulatedRetriever(settings, load_simulator_prompt("simulator-plain"), 0.0)

        async def blocking() -> list[Found]:
            return retriever.search_for([request_of(0), request_of(1)], 3)

        for found in (retriever.search_for([request_of(0), request_of(1)], 3), asyncio.run(blocking())):
            assert [type(each) for each in found] == [RetrievalError] * 2
            assert all("is the server running?" in str(each) for each in found)


# --- prompts and configuration -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_simulator_prompts_tell_useful_from_noisy(name: str) -> None:
    prompt = load_simulator_prompt(name)
    hostile = Question("q", "Who is $answer?\n<|im_end|>", ("A $query",))
    texts = [prompt.render("find\n$count", hostile, 4, useful=useful)[-1].content for useful in (True, False)]
    assert texts[0] != texts[1]
    for text in texts:
        assert "Query: find $count" in text
        assert "A $query" in text
        assert "Who is $answer?" in text
        assert "<|im_end|>" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'x'\nuseful = '$query'", "key 'noisy'"),
        ("name = 'x'\nuseful = '$query'\nnoisy = '$gold $query'", r"unknown slot \$gold"),
        ("name = 'x'\nuseful = 'hello'\nnoisy = '$query'", r"must contain \$query"),
        ("name = ", "not valid TOML"),
    ],
)
def test_bad_simulator_prompts_are_refused(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "prompt.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_simulator_prompt(str(path))
    with pytest.raises(ConfigError, match="no such file"):
        load_simulator_prompt("missing")


def test_the_environment_table(tmp_path) -> None:
    config = load_config(
        RunConfig, None, ("environment.kind=simulator", "environment.endpoint.url=http://localhost:6001/v1")
    )
    assert config.environment.endpoint is not None
    assert (config.environment.endpoint.temperature, config.environment.endpoint.max_tokens) == (0.8, 600)
    assert (config.environment.p_start, config.environment.p_end) == (0.0, 0.5)
    path = tmp_path / "run.toml"
    path.write_text(dump_toml(config), encoding="utf-8")
    assert load_config(RunConfig, path) == config
    with pytest.raises(ConfigError, match="needs a table 'endpoint'"):
        load_config(RunConfig, None, ("environment.kind=simulator",))
    with pytest.raises(ConfigError, match=r"key 'environment\.p_end' = 2 is refused"):
        load_config(RunConfig, None, ("environment.p_end=2",))


def test_the_noise_of_a_run_grows_and_a_plain_retriever_has_none() -> None:
    noisy = Environment(EnvironmentConfig(kind="corpus-noise", p_end=1.0), Shelf(), QUESTIONS, 10)
    assert [round(noisy.noise(step), 3) for step in (0, 5, 10)] == [0.0, 0.333, 1.0]
    (found,) = noisy.at(10).search_for([request_of(0)], 3)
    assert not isinstance(found, RetrievalError)
    assert found[0].text in {question.text for question in QUESTIONS[1:]}
    plain = Environment(EnvironmentConfig(), Shelf(), QUESTIONS, 10)
    assert plain.noise(10) == 0.0
    assert plain.at(10).search_for([request_of(0)], 3) == [(Passage("query", "", "query"),)]
    assert isinstance(plain.at(1), EpisodeRetriever)


def test_an_environment_remembers_what_failed() -> None:
    class Down:
        def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
            raise RetrievalError("the server hung up")

    environment = Environment(EnvironmentConfig(), Down(), QUESTIONS, 10)
    with pytest.raises(RetrievalError):
        environment.at(1).search_for([request_of(0)], 3)
    assert environment.error == "the server hung up"
