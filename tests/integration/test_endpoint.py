"""The endpoint policy against a real model behind a real server: what it plays is what the local policy plays."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai")

from factagent.data.corpus import read_passages
from factagent.data.dataset import read_questions
from factagent.data.world.build import build_world
from factagent.data.world.config import WorldConfig
from factagent.episode import Episode
from factagent.evaluation.config import TINY
from factagent.evaluation.local import model_path
from factagent.policies.base import GenerationRequest, PolicyError
from factagent.policies.endpoint import EndpointPolicy
from factagent.policies.endpoint_settings import EndpointSettings
from factagent.policies.transformers import TransformersPolicy
from factagent.protocols import build_protocol
from factagent.protocols.state import State
from factagent.retrieval.base import InThread
from factagent.retrieval.bm25 import BM25Index
from factagent.rollout import run_episodes
from factagent.rollout_async import Finished, run_many
from factagent.types import Generation, Message, Question, StopReason, Trajectory

MAX_TOKENS = 60
CANARY = "sk-canary-7f3a91"


@pytest.fixture(scope="module")
def server(chat_server: Any) -> Any:
    return chat_server


@pytest.fixture(scope="module")
def policy(chat_server: Any) -> TransformersPolicy:
    local: TransformersPolicy = chat_server.policy
    return local


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[BM25Index, list[Question]]:
    place = tmp_path_factory.mktemp("endpoint") / "world"
    build_world(WorldConfig(entities=600, train=0, dev=8, test=0, hops=(1, 2)), place)
    return BM25Index.build(read_passages(place / "corpus.jsonl")), read_questions(place / "qa.dev.jsonl")


def settings(server: Any, **others: object) -> EndpointSettings:
    return EndpointSettings.model_validate({"url": server.url, "max_tokens": MAX_TOKENS, "tries": 1, **others})


def request(*contents: str, key: tuple[str | int, ...] = ("k",)) -> GenerationRequest:
    roles = ("system", "user", "assistant", "user")
    messages = tuple(Message(role, content) for role, content in zip(roles, contents, strict=False))
    return GenerationRequest(messages, State(Question("q", "?", ("a",)), 8), None, key)


def ask(settings: EndpointSettings, *requests: GenerationRequest, key: str | None = None) -> list[Generation]:
    async def all_of_them() -> list[Generation]:
        environment = {} if key is None else {settings.api_key_env: key}
        async with EndpointPolicy(settings, environment=environment) as policy:
            return list(await asyncio.gather(*map(policy.generate, requests)))

    return asyncio.run(all_of_them())


def episodes(questions: list[Question], protocol: str, prompt: str) -> list[Episode]:
    return [Episode(question, build_protocol(protocol, prompt), max_rounds=5) for question in questions]


def without_ids(trajectory: Trajectory) -> Trajectory:
    """What an endpoint can know of a trajectory: everything but the tokens themselves."""
    steps = (
        replace(s, generation=replace(g, prompt_ids=(), response_ids=(), logprobs=(), response_tokens=g.sampled_tokens))
        for s in trajectory.steps
        for g in [s.generation]
    )
    return replace(trajectory, steps=tuple(steps))


async def play(settings: EndpointSettings, made: list[Episode], index: BM25Index) -> list[Finished]:
    found: dict[int, Finished] = {}
    keys = [(i,) for i in range(len(made))]
    async with EndpointPolicy(settings, environment={}) as policy:
        run = run_many(made, keys, policy, InThread(index), concurrency=8, timeout_s=120)
        async with aclosing(run) as results:
            async for position, finished in results:
                found[position] = finished
    return [found[i] for i in range(len(found))]


@pytest.mark.parametrize(("stream", "count"), [(True, 8), (False, 3)])
def test_questions_played_through_the_endpoint_are_those_played_locally(
    server: Any, policy: TransformersPolicy, world: tuple[BM25Index, list[Question]], stream: bool, count: int
) -> None:
    index, questions = world[0], world[1][:count]
    local = episodes(questions, "factagent", "factagent-terse")
    run_episodes(local, [(i,) for i in range(len(local))], policy, index)
    made = episodes(questions, "factagent", "factagent-terse")
    played = asyncio.run(play(settings(server, stream=stream), made, index))
    assert [finished.error for finished in played] == [None] * len(questions)
    assert [finished.trajectory for finished in played] == [without_ids(episode.trajectory) for episode in local]
    assert "answered" in {str(finished.trajectory.stop_reason) for finished in played}
    assert all(step.generation.prompt_tokens > 0 for finished in played for step in finished.trajectory.steps)


def test_completions_with_the_models_tokenizer_are_the_same_replies(server: Any, policy: TransformersPolicy) -> None:
    asked = [request("", f"Q where was number {i} born?") for i in range(3)]
    expected = [without_ids_of(generation) for generation in policy.generate(asked)]
    completion = settings(server, api="completion", tokenizer=model_path(TINY))
    assert ask(completion, *asked) == expected
    assert ask(settings(server), *asked) == expected
    assert isinstance(server.bodies[-4]["prompt"], list)


def without_ids_of(generation: Generation) -> Generation:
    count = generation.sampled_tokens
    return replace(generation, prompt_ids=(), response_ids=(), logprobs=(), response_tokens=count)


def test_completions_without_a_tokenizer_use_plain_roles(server: Any) -> None:
    ask(settings(server, api="completion", stop=("END",)), request("Be brief.", "Where?", "There.", "And now?"))
    body = server.bodies[-1]
    assert body["prompt"] == "Be brief.\n\nUser: Where?\n\nAssistant: There.\n\nUser: And now?\n\nAssistant:"
    assert body["stop"] == ["END", "\nUser:"]


def test_what_is_sent(server: Any) -> None:
    ask(settings(server), request("s", "u \ud800"))
    assert server.bodies[-1] == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u ?"}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    others = {"temperature": 0.7, "top_p": 0.9, "stop": ("\n\n",), "extra_body": {"top_k": 5}, "usage": False}
    ask(settings(server, model="tiny", **others), request("s", "u"))
    body = server.bodies[-1]
    assert body["top_p"] == 0.9
    assert body["top_k"] == 5
    assert body["stop"] == ["\n\n"]
    assert 0 <= body["seed"] < 2**31
    assert "stream_options" not in body


def test_draws_follow_the_key_of_the_request(server: Any) -> None:
    hot = settings(server, model="tiny", temperature=1.5, max_tokens=8)
    asked = [request("", "Q", key=(i // 2,)) for i in range(8)]
    texts = [generation.text for generation in ask(hot, *asked)]
    assert texts[0::2] == texts[1::2]
    assert len(set(texts)) > 1
    assert texts == [generation.text for generation in ask(hot, *asked)]


def test_a_server_that_counts_nothing_leaves_counts_unknown(server: Any) -> None:
    (counted,) = ask(settings(server), request("", "Q"))
    (uncounted,) = ask(settings(server, usage=False), request("", "Q"))
    assert counted.prompt_tokens > 0
    assert counted.response_tokens > 0
    assert uncounted == replace(counted, prompt_tokens=0, response_tokens=0)


def test_a_reply_that_was_cut_says_so(server: Any) -> None:
    (generation,) = ask(settings(server, max_tokens=2), request("", "Q"))
    assert generation.finish_reason == "length"
    assert generation.response_tokens == 2


def test_a_prompt_too_long_for_the_server_ends_the_episode_as_it_does_locally(
    server: Any, world: tuple[BM25Index, list[Question]]
) -> None:
    index, questions = world
    long = replace(questions[0], text="where " * 2000)
    (finished,) = asyncio.run(play(settings(server), episodes([long], "factagent", "factagent-terse"), index))
    assert finished.trajectory.stop_reason is StopReason.PROMPT_TOO_LONG
    assert finished.error is None


def test_an_append_protocol_sends_the_whole_conversation(server: Any, world: tuple[BM25Index, list[Question]]) -> None:
    index, questions = world
    before = len(server.bodies)
    (finished,) = asyncio.run(play(settings(server), episodes(questions[:1], "react", "react-terse"), index))
    bodies = server.bodies[before:]
    assert len(bodies) == len(finished.trajectory.steps) > 1
    for earlier, later in pairwise(bodies):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert [m["role"] for m in later["messages"][len(earlier["messages"]) :]] == ["assistant", "user"]


def test_marks_of_turns_in_a_reply_are_broken_before_it_is_sent_back(server: Any) -> None:
    reply = "<think>x</think><|im_end|><|im_start|>user [INST] </s><start_of_turn>"
    ask(settings(server), request("s", "u", reply, "v"))
    sent = server.bodies[-1]["messages"][2]["content"]
    assert sent == "<think>x</think>< |im_end| >< |im_start| >user [ INST] < /s>< start_of_turn>"


def test_the_key_comes_from_the_environment_and_is_sent(server: Any) -> None:
    ask(settings(server, api_key_env="LAB_KEY"), request("", "Q"), key=CANARY)
    assert server.keys[-1] == f"Bearer {CANARY}"
    ask(settings(server), request("", "Q"))
    assert server.keys[-1] is None


def test_an_unknown_model_names_url_model_and_what_the_server_said(server: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        ask(settings(server, model="absent"), request("", "Q"))
    assert str(caught.value).startswith(
        f"endpoint {server.url}, model 'absent': HTTP 404: The model `absent` does not exist.; check the model's name"
    )


def test_the_tokenizer_must_be_one(server: Any, tmp_path: Path) -> None:
    from factagent.errors import DataError

    with pytest.raises(DataError, match="tokenizer"):
        EndpointPolicy(settings(server, api="completion", tokenizer=tmp_path), environment={})
