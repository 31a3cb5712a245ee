"""Groups on a cluster without the cluster: the policy over a token server, failures, back-pressure, alarms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from factagent.distributed.alarms import alarm_of_rows
from factagent.distributed.play import CreditedGroup, GroupPlayer
from factagent.distributed.policy import ServerPolicy
from factagent.episode import OVERLONG, NeedsGeneration
from factagent.evaluation.local import model_path
from factagent.policies.base import GenerationRequest, PolicyError, seed_of
from factagent.protocols.state import State
from factagent.retrieval.base import RetrievalError
from factagent.train.config import AlarmConfig, RunConfig
from factagent.types import Generation, Message, Passage, Question, StopReason

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

QUESTION = Question("q1", "Where was Ada born?", ("Riverton",))
ASK = '<think> find</think>{"action":"search","parameters":{"query":" Ada"}}'
KEEP = (
    '<think> keep</think>{"action":"assert","parameters":{"triples":[{"subject":" Ada","relation":" born",'
    '"object":" Riverton"}]}}'
)
RIGHT = '<think> done</think>{"action":"answer","parameters":{"response":" Riverton"}}'
WRONG = '<think> done</think>{"action":"answer","parameters":{"response":" London"}}'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The tokenizer of the packaged policy."""
    return transformers.AutoTokenizer.from_pretrained(model_path("tiny"))


@dataclass
class FakeServer:
    """A token server that replies with texts, by the number of the request."""

    tokenizer: Any
    reply: Callable[[int], Any]
    seen: list[dict[str, Any]] = field(default_factory=list)
    under_way: int = 0
    most: int = 0

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        number = len(self.seen)
        self.seen.append({"prompt": prompt_ids, **sampling_params})
        await asyncio.sleep(0.001)
        self.under_way -= 1
        reply = self.reply(number)
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, str):
            return reply
        tokens = [*self.tokenizer(reply, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        return SimpleNamespace(token_ids=tokens, log_probs=[-0.1] * len(tokens), stop_reason="completed")


def policy(server: FakeServer, **changes: Any) -> ServerPolicy:
    settings: dict[str, Any] = {"temperature": 0.7, "max_prompt_tokens": 900, "max_new_tokens": 64}
    return ServerPolicy(server, server.tokenizer, **settings | changes)


def request(**changes: Any) -> GenerationRequest:
    need = NeedsGeneration((Message("user", "Q Where?"),), State(QUESTION, 8), **changes)
    return GenerationRequest.of(need, (0, "train", 1))


def test_the_reply_is_the_servers_own_tokens(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, lambda _: RIGHT)
    generation = asyncio.run(policy(server).generate(request()))
    assert generation.text == RIGHT
    assert generation.finish_reason == "stop"
    assert generation.response_ids[-1] == tokenizer.eos_token_id
    assert len(generation.logprobs) == len(generation.response_ids)
    assert list(generation.prompt_ids) == server.seen[0]["prompt"]
    assert server.seen[0]["temperature"] == 0.7
    assert server.seen[0]["max_tokens"] == 64
    assert tokenizer.eos_token_id in server.seen[0]["stop_token_ids"]
    assert "seed" not in server.seen[0]
    assert "stop" not in server.seen[0]


def test_what_a_server_sends_beyond_the_end_is_not_trained_on(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    long = SimpleNamespace(token_ids=[70, 71, end, 72, end], log_probs=[-0.1] * 5, stop_reason="completed")
    generation = asyncio.run(policy(FakeServer(tokenizer, lambda _: long)).generate(request()))
    assert generation.response_ids == (70, 71, end)
    assert len(generation.logprobs) == 3


def test_a_stop_string_ends_the_reply_whatever_the_server_does_about_it(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, lambda _: "a</search>b")
    generation = asyncio.run(policy(server).generate(request(stop=("</search>",))))
    assert generation.text == "a</search>"
    assert generation.finish_reason == "stop"
    assert server.seen[0]["stop"] == ["</search>"]


def test_an_observation_inside_the_turn_continues_the_sampled_tokens(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, lambda _: RIGHT)
    prefix = Generation("x", (1, 2, 3), (40, 41), (-0.1, -0.1))
    asyncio.run(policy(server).generate(request(prefix=prefix, continuation="abcdef", continuation_tokens=4)))
    prompt = server.seen[0]["prompt"]
    assert prompt[:5] == [1, 2, 3, 40, 41]
    assert tokenizer.decode(prompt[5:]) == "abcd"


def test_a_prompt_that_does_not_fit_is_refused_and_never_sent(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, lambda _: RIGHT)
    generation = asyncio.run(policy(server, max_prompt_tokens=3).generate(request()))
    assert generation.finish_reason == OVERLONG
    assert generation.prompt_tokens > 3
    assert server.seen == []


def test_named_draws_travel_as_the_seed_of_the_request(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, lambda _: RIGHT)
    asyncio.run(policy(server, named_draws=True).generate(request()))
    assert server.seen[0]["seed"] == seed_of((0, "train", 1, 1))


@pytest.mark.parametrize(
    "reply",
    [
        SimpleNamespace(token_ids=[], log_probs=[], stop_reason="completed"),
        SimpleNamespace(token_ids=[70], log_probs=None, stop_reason="completed"),
        SimpleNamespace(token_ids=[70, 71], log_probs=[-0.1], stop_reason="completed"),
        SimpleNamespace(token_ids=[70], log_probs=[-0.1], stop_reason="aborted"),
        ConnectionError("actor died"),
    ],
    ids=["empty", "no logprobs", "too few logprobs", "aborted", "raised"],
)
def test_a_failing_server_is_a_policy_error_and_never_an_empty_reply(tokenizer: Any, reply: Any) -> None:
    with pytest.raises(PolicyError):
        asyncio.run(policy(FakeServer(tokenizer, lambda _: reply)).generate(request()))


class Passages:
    """A retriever that finds one passage, or fails."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    async def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        if self.fails:
            raise RetrievalError("no search today")
        return [(Passage("p1", "Ada", "Ada was born in Riverton."),) for _ in queries]


def config(group_size: int, **credit: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "rollout": {"prompt": "factagent-terse", "group_size": group_size, "max_rounds": 4, "max_new_tokens": 64},
            "credit": {"encoder": "exact", **credit},
        }
    )


def play(
    server: FakeServer, run: RunConfig, *, retriever: Passages | None = None, at_once: int = 8, timeout_s: float = 30.0
) -> CreditedGroup:
    async def go() -> CreditedGroup:
        player = GroupPlayer(
            run,
            policy(server),
            policy(server, temperature=0.0),
            lambda: retriever or Passages(),
            episodes_at_once=at_once,
            timeout_s=timeout_s,
        )
        return await player.play(QUESTION, 1)

    return asyncio.run(go())


def by_round(member_replies: Sequence[Sequence[str]]) -> Callable[[int], str]:
    """Replies of members that go in step: all first rounds, then all second ones."""
    size = len(member_replies)
    return lambda number: member_replies[number % size][number // size]


def test_a_group_gives_one_sample_a_step_with_the_ledgers_advantage(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, by_round([[ASK, KEEP, RIGHT], [ASK, KEEP, WRONG]]))
    played = play(server, config(2))
    assert [len(t.steps) for t in played.group.trajectories] == [3, 3]
    assert len(played.samples) == 6
    ledger = [step.advantage for trajectory in played.credit.trajectories for step in trajectory.steps]
    assert [float(sample.advantages[0]) for sample in played.samples] == ledger
    assert ledger[2] > 0 > ledger[5]
    assert played.problems == ()
    assert not played.dropped


def test_a_failed_member_leaves_the_statistics_of_its_group(tokenizer: Any) -> None:
    replies = by_round([[RIGHT], [WRONG], ["x"]])
    server = FakeServer(tokenizer, lambda number: ConnectionError("actor died") if number % 3 == 2 else replies(number))
    played = play(server, config(3))
    stops = [trajectory.stop_reason for trajectory in played.group.trajectories]
    assert stops == [StopReason.ANSWERED, StopReason.ANSWERED, StopReason.POLICY_FAILED]
    assert [trajectory.excluded for trajectory in played.credit.trajectories] == [False, False, True]
    assert len(played.samples) == 2
    assert not played.dropped
    assert "actor died" in played.problems[0]


def test_a_group_with_fewer_than_two_survivors_is_dropped(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, lambda number: RIGHT if number == 0 else ConnectionError("actor died"))
    played = play(server, config(3))
    assert played.samples == []
    assert played.dropped
    assert len(played.problems) == 2


def test_a_failed_search_is_no_low_reward(tokenizer: Any) -> None:
    played = play(FakeServer(tokenizer, lambda _: ASK), config(2), retriever=Passages(fails=True))
    assert {t.stop_reason for t in played.group.trajectories} == {StopReason.RETRIEVAL_FAILED}
    assert played.dropped


def test_an_episode_that_takes_too_long_leaves_the_statistics(tokenizer: Any) -> None:
    played = play(FakeServer(tokenizer, lambda _: ASK), config(2), timeout_s=0.0005)
    assert {t.stop_reason for t in played.group.trajectories} == {StopReason.TIMEOUT}


def test_no_more_episodes_than_allowed_are_under_way(tokenizer: Any) -> None:
    server = FakeServer(tokenizer, lambda _: RIGHT)
    play(server, config(6), at_once=2)
    assert server.most == 2
    server = FakeServer(tokenizer, lambda _: RIGHT)
    play(server, config(6), at_once=8)
    assert server.most == 6


def row(step: int, **changes: float) -> dict[str, float]:
    return {"step": step, "updates_skipped": 0, "failed_trajectories": 0.0, "parse_error_rate": 0.0, **changes}


def test_alarms_read_the_rows_of_a_run() -> None:
    alarms = AlarmConfig(parse_error_rate=0.3, parse_error_steps=2, non_finite_steps=2, failed_share=0.5)
    assert alarm_of_rows(alarms, [{"step": 0, "eval": {}}], 8) is None
    assert alarm_of_rows(alarms, [row(1), row(2)], 8) is None
    assert "not finite" in str(alarm_of_rows(alarms, [row(1, updates_skipped=1), row(2, updates_skipped=1)], 8))
    assert alarm_of_rows(alarms, [row(1, updates_skipped=1), row(2)], 8) is None
    assert "could not be parsed" in str(alarm_of_rows(alarms, [row(n, parse_error_rate=0.4) for n in (1, 2)], 8))
    assert alarm_of_rows(alarms, [row(1, parse_error_rate=0.4), row(2, parse_error_rate=0.2)], 8) is None
    failed = alarm_of_rows(alarms, [row(1, failed_trajectories=5.0)], 8, "no search today")
    assert "62% of the trajectories failed: no search today" in str(failed)
    ignoring = alarms.model_copy(update={"ignore": True})
    assert alarm_of_rows(ignoring, [row(1, failed_trajectories=8.0)], 8) is None
