"""The fault matrix against the retrieval client: each fault is a typed error within its budget, never an empty result.

Budgets are small here; the bound on time is far above them, for it says "it ended", not how fast the machine is.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from factagent.credit.assign import assign_credit
from factagent.credit.config import CreditConfig
from factagent.credit.encoders import load_encoder
from factagent.episode import Episode
from factagent.http import RetryRule, TimeLimits
from factagent.policies.base import GenerationRequest
from factagent.protocols import build_protocol
from factagent.protocols.actions import render_action
from factagent.retrieval.remote import (
    RemoteRetrievalError,
    RemoteRetriever,
    SyncRetriever,
)
from factagent.rollout import RolloutSettings, sample_groups
from factagent.rollout_async import run_many
from factagent.types import Answer, Assert, Generation, Group, Passage, Question, Search, StopReason, Triple

AMPLE = TimeLimits(total_s=60)
QUICK = RetryRule(tries=3, first_wait_s=0.01)
SLACK_S = 20.0

# Fault -> kind of the error, requests that the server sees (None: as many as fit into the budget, or none at all).
MATRIX = {
    "refused": ("refused", None),
    "hang": ("timeout", 3),
    "reset": ("reset", 3),
    "no_reply": ("reset", 3),
    "reset_mid_body": ("reset", 3),
    "drip_body": ("budget", 1),
    "drip_head": ("budget", 1),
    "status_400": ("http_status", 1),
    "status_401": ("http_status", 1),
    "status_404": ("http_status", 1),
    "status_500": ("http_status", 1),
    "status_502": ("http_status", 3),
    "status_503": ("http_status", 3),
    "status_504": ("http_status", 3),
    "status_429": ("http_status", 3),
    "status_429_retry_after": ("budget", 1),
    "status_429_retry_after_hours": ("budget", 1),
    "status_204": ("http_status", 1),
    "huge_error": ("http_status", 1),
    "empty_body": ("bad_json", 1),
    "html": ("bad_json", 1),
    "half_json": ("bad_json", 1),
    "deep_json": ("bad_json", 1),
    "not_utf8": ("bad_json", 1),
    "nan_scores": ("bad_json", 1),  # NaN is no JSON; the reader is strict
    "wrong_schema": ("bad_schema", 1),
    "wrong_type": ("bad_schema", 1),
    "huge_body": ("too_large", 1),
    "endless_body": ("too_large", 1),
    "gzip_bomb": ("bad_http", 1),
    "bad_gzip": ("bad_http", 1),
    "redirect_loop": ("http_status", 1),
    "cut_chunks": ("reset", 3),
    "length_too_long": ("reset", 3),
    "length_too_short": ("bad_json", 1),
    "many_headers": ("bad_http", 1),
    "echo_error": ("http_status", 1),
    "echo_garbage": ("bad_http", 1),
    "garbage": ("bad_http", 1),
    "tls": ("bad_http", 1),
    "http2": ("bad_http", 1),
}
HEALTHY = {"none", "stale"}


def test_the_matrix_holds_every_fault(faulty: ModuleType) -> None:
    assert set(MATRIX) | HEALTHY == set(faulty.FAULTS)


@pytest.mark.parametrize("fault", MATRIX)
def test_each_fault_is_a_typed_error_within_its_budget(fault: str, faulty: ModuleType) -> None:
    kind, requests = MATRIX[fault]
    # Only what must run into a limit gets a small one: on a busy machine everything else may take its time.
    limits = {"timeout": TimeLimits(read_s=0.2), "budget": TimeLimits(total_s=0.5)}.get(kind, AMPLE)

    async def search(url: str) -> RemoteRetrievalError:
        async with RemoteRetriever(url, limits=limits, retries=QUICK, max_reply_bytes=1 << 20) as retriever:
            with pytest.raises(RemoteRetrievalError) as caught:
                await retriever.search(["who was first", "who was last"], 2)
        return caught.value

    with faulty.FaultyServer(fault=fault) as server:
        error = asyncio.run(search(server.url))
        asked = len(server.requests)
    assert error.kind == kind, str(error)
    assert error.failure.seconds < limits.total_s + SLACK_S
    assert error.exit_code == 69
    assert str(error).startswith(f"{server.url}: ")
    assert f"({kind}, after {error.failure.tries} t" in str(error)
    assert requests is None or asked == error.failure.tries == requests


def search_once(url: str, queries: list[str], **options: Any) -> list[tuple[Passage, ...]]:
    async def search() -> list[tuple[Passage, ...]]:
        async with RemoteRetriever(url, **{"limits": AMPLE, "retries": QUICK, **options}) as retriever:
            return await retriever.search(queries, 2)

    return asyncio.run(search())


@pytest.mark.parametrize("fault", ["reset", "no_reply", "reset_mid_body", "cut_chunks", "status_503", "status_429"])
def test_a_passing_fault_is_tried_again_and_leaves_no_trace(fault: str, faulty: ModuleType) -> None:
    with faulty.FaultyServer(fault=fault, times=2) as server:
        (found,) = search_once(server.url, ["a"])
        assert [passage.id for passage in found] == ["a/0", "a/1"]
        assert len(server.requests) == 3


def test_a_connection_that_the_server_closed_while_idle_costs_no_search(faulty: ModuleType) -> None:
    async def search_twice(url: str) -> None:
        async with RemoteRetriever(url, limits=AMPLE, retries=QUICK) as retriever:
            for query in ("a", "b", "c"):
                assert (await retriever.search([query], 1))[0][0].id == f"{query}/0"

    with faulty.FaultyServer(fault="stale") as server:
        asyncio.run(search_twice(server.url))


def test_the_wait_that_a_server_asks_for_is_kept(faulty: ModuleType) -> None:
    began = time.monotonic()
    with faulty.FaultyServer(fault="status_429_retry_after", times=1) as server:
        assert len(search_once(server.url, ["a"])) == 1
    assert time.monotonic() - began >= faulty.RETRY_AFTER_S


def test_an_outage_within_the_tries_costs_no_search(faulty: ModuleType) -> None:
    server = faulty.FaultyServer().start()
    patient = RetryRule(tries=5, first_wait_s=1.0, growth=1.0)
    with SyncRetriever(RemoteRetriever(server.url, limits=AMPLE, retries=patient)) as retriever:
        assert retriever.search(["a"], 1)
        server.stop()
        back = threading.Timer(0.1, server.start)
        back.start()
        try:
            assert retriever.search(["b"], 1)[0][0].id == "b/0"
        finally:
            back.join()
            server.stop()


def test_one_failing_part_of_a_batch_fails_the_whole_search(faulty: ModuleType) -> None:
    def fails_for_the_last(path: str, body: bytes) -> bytes:
        return b"{}" if b"q129" in body else faulty.retrieval_reply(path, body)

    with faulty.FaultyServer(fails_for_the_last) as server:
        with pytest.raises(RemoteRetrievalError, match="reply field 'result' is missing"):
            search_once(server.url, [f"q{i}" for i in range(130)])
        assert len(server.requests) <= 3


@pytest.mark.parametrize("fault", ["echo_error", "echo_garbage", "none"])
def test_a_server_that_repeats_the_token_does_not_get_it_into_the_error(
    fault: str, faulty: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = "canary-8f2b6c"
    monkeypatch.setenv("SEARCH_TOKEN", token)
    caplog.set_level("INFO")
    with faulty.FaultyServer(lambda path, body: b'{"result": "you sent canary-8f2b6c"}', fault) as server:
        with pytest.raises(RemoteRetrievalError) as caught:
            search_once(server.url, ["a"], token_env="SEARCH_TOKEN")
        assert server.requests[0].headers["authorization"] == f"Bearer {token}"
    shown = "".join(traceback.format_exception(caught.value))
    assert "***" in shown
    assert token not in shown + repr(caught.value) + caplog.text


def scripted(request: GenerationRequest) -> str:
    """Search (members of even number twice), assert, answer."""
    state = request.state
    member = request.key[-2]
    if state.round == 1 or (state.round == 2 and isinstance(member, int) and member % 2 == 0):
        return render_action(Search(f"{state.question.id} {state.round}"))
    if not len(state.store):
        return render_action(Assert((Triple(state.question.id, "is", "right"),)))
    return render_action(Answer("right"))


class Scripted:
    """A policy that follows `scripted`; before its first reply in the second round it runs `then`."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then: Callable[[], None] | None = then

    def reply(self, request: GenerationRequest) -> Generation:
        if request.state.round == 2 and self.then is not None:
            self.then()
            self.then = None
        return Generation(scripted(request))


class LockStep(Scripted):
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return [self.reply(request) for request in requests]


class Concurrent(Scripted):
    async def generate(self, request: GenerationRequest) -> Generation:
        return self.reply(request)


PROTOCOL = build_protocol("factagent", "factagent-terse")
QUESTIONS = [Question(f"q{i}", f"Is {i} right?", ("right",)) for i in range(3)]
MEMBERS = 4


def check_that_no_reward_is_wrong(groups: Sequence[Group]) -> None:
    """Those that searched again failed and count nowhere; of the others every one is right."""
    for group in groups:
        for trajectory in group.trajectories:
            failed = trajectory.member % 2 == 0
            assert (trajectory.stop_reason is StopReason.RETRIEVAL_FAILED) == failed
            assert (trajectory.answer is None) == failed
            assert trajectory.steps[0].observation is not None
            assert trajectory.steps[1].observation is None
    for credit in assign_credit(groups, CreditConfig(encoder="exact"), load_encoder("exact")):
        assert credit.baseline == 1.0
        assert [cluster.support for cluster in credit.clusters] == [MEMBERS // 2]
        for one in credit.trajectories[::2]:
            assert [step.advantage for step in one.steps] == [0.0, 0.0]


def test_a_server_that_dies_in_mid_group_makes_failures_and_no_wrong_reward(faulty: ModuleType) -> None:
    with faulty.FaultyServer() as server:
        remote = RemoteRetriever(server.url, limits=AMPLE, retries=QUICK)
        with SyncRetriever(remote) as retriever:
            settings = RolloutSettings(group_size=MEMBERS)
            groups = sample_groups(QUESTIONS, PROTOCOL, LockStep(server.stop), retriever, settings, ())
    check_that_no_reward_is_wrong(groups)


def test_nor_does_it_under_the_asynchronous_driver(faulty: ModuleType) -> None:
    async def roll_out(server: Any) -> list[Group]:
        episodes = [Episode(question, PROTOCOL, member=m) for question in QUESTIONS for m in range(MEMBERS)]
        keys = [(episode.state.question.id, episode.member) for episode in episodes]
        everyone_searched = asyncio.Barrier(len(episodes))

        class Together(Concurrent):
            async def generate(self, request: GenerationRequest) -> Generation:
                if request.state.round == 2:
                    await everyone_searched.wait()
                return await super().generate(request)

        async with RemoteRetriever(server.url, limits=AMPLE, retries=QUICK) as retriever:
            policy = Together(server.stop)
            running = run_many(episodes, keys, policy, retriever, concurrency=len(episodes), timeout_s=60)
            finished = [one async for one in running]
        for _, one in finished:
            assert (one.error is None) == (not one.trajectory.stop_reason.is_failure)
            assert one.error is None or server.url in one.error
        trajectories = [one.trajectory for _, one in sorted(finished, key=lambda pair: pair[0])]
        rows = [tuple(trajectories[i * MEMBERS : (i + 1) * MEMBERS]) for i in range(len(QUESTIONS))]
        return [Group(question, row) for question, row in zip(QUESTIONS, rows, strict=True)]

    with faulty.FaultyServer() as server:
        check_that_no_reward_is_wrong(asyncio.run(roll_out(server)))
