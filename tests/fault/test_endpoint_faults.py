"""The fault matrix of the endpoint policy: whatever a server does, a reply or a `PolicyError` within the budget."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("openai")

from factagent.episode import OVERLONG, Episode
from factagent.policies.base import GenerationRequest, PolicyError
from factagent.policies.endpoint import EndpointPolicy
from factagent.policies.endpoint_settings import EndpointSettings
from factagent.protocols.factagent import FactAgentProtocol
from factagent.protocols.state import State
from factagent.rollout_async import Finished, run_episode
from factagent.types import Generation, Message, Passage, Question, StopReason

CANARY = "sk-canary-0123456789abcdef"
BUDGET_S = 0.6
REQUEST = GenerationRequest((Message("user", "hi"),), State(Question("q", "?", ("a",)), 8), None, ("k",))
SILENT = {"hang", "drip_body", "drip_head"}
"""Faults that only a time limit ends; the others end by themselves, and are given time on a busy machine."""

WHOLE_ALL_THE_SAME = {
    False: {"none", "stale", "nan_scores"},
    True: {"none", "stale", "half_json", "length_too_short", "length_too_long"},
}
"""Faults that do not hurt a reply, by whether it is streamed: no score in it; complete before its last line."""


def ask(url: str, **others: object) -> Generation:
    asked = {"url": url, "model": "m", "tries": 2, "first_wait_s": 0.0, "total_timeout_s": 30, "stream": False}
    settings = EndpointSettings.model_validate({**asked, **others})

    async def one() -> Generation:
        async with EndpointPolicy(settings, environment={settings.api_key_env: CANARY}) as policy:
            return await policy.generate(REQUEST)

    return asyncio.run(one())


def sse(*chunks: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"] if done else lines).encode()


def chunk(text: str | None, finish: str | None = None, **delta: object) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": text, **delta}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def streamed_reply(path: str, body: bytes) -> bytes:
    return sse(chunk("hel"), chunk("lo"), chunk("", "stop"))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_every_fault_is_a_policy_error_within_the_budget(faulty: ModuleType, stream: bool) -> None:
    for fault in sorted(set(faulty.FAULTS) - ({"nan_scores"} if stream else set())):
        limits = {"total_timeout_s": BUDGET_S, "liveness_timeout_s": 0.2} if fault in SILENT else {}
        with faulty.FaultyServer(streamed_reply if stream else faulty.chat_reply, fault) as server:
            try:
                generation = ask(server.url, stream=stream, **limits)
            except PolicyError as error:
                assert str(error).startswith(f"endpoint {server.url}, model 'm': "), fault
                assert len(str(error)) < 700, fault
                assert fault not in WHOLE_ALL_THE_SAME[stream], (fault, str(error))
            else:
                assert fault in WHOLE_ALL_THE_SAME[stream], fault
                assert generation.text == "hello", fault


def test_a_budget_of_its_own_ends_each_silence(faulty: ModuleType) -> None:
    for fault, others, message in (
        ("hang", {"total_timeout_s": BUDGET_S}, f"the budget of {BUDGET_S} s ended"),
        ("drip_body", {"total_timeout_s": BUDGET_S}, f"the budget of {BUDGET_S} s ended"),
        ("hang", {"stream": True, "liveness_timeout_s": 0.1}, "no token for 0.1 s (after 2 tries"),
        ("drip_head", {"stream": True, "liveness_timeout_s": 0.1}, "no token for 0.1 s (after 2 tries"),
    ):
        with faulty.FaultyServer(faulty.chat_reply, fault) as server, pytest.raises(PolicyError) as caught:
            ask(server.url, **others)
        assert message in str(caught.value), fault


@pytest.mark.parametrize("status", ["status_500", "status_502", "status_503", "status_429", "reset", "reset_mid_body"])
def test_what_passes_is_tried_again(faulty: ModuleType, status: str) -> None:
    with faulty.FaultyServer(faulty.chat_reply, status, times=2) as server:
        assert ask(server.url, tries=3).text == "hello"
        assert len(server.requests) == 3


@pytest.mark.parametrize("status", ["status_400", "status_401", "status_404", "redirect_loop", "half_json", "html"])
def test_what_would_come_again_is_asked_once(faulty: ModuleType, status: str) -> None:
    with faulty.FaultyServer(faulty.chat_reply, status) as server, pytest.raises(PolicyError):
        ask(server.url, tries=5)
    assert len(server.requests) == 1


def test_retry_after_is_honoured_and_a_wait_beyond_the_budget_is_not_begun(faulty: ModuleType) -> None:
    with faulty.FaultyServer(faulty.chat_reply, "status_429_retry_after", times=1) as server:
        assert ask(server.url).text == "hello"
    with faulty.FaultyServer(faulty.chat_reply, "status_429_retry_after_hours") as server:
        with pytest.raises(PolicyError, match=r"wait of 60\.0 s; before that: HTTP 429"):
            ask(server.url, total_timeout_s=20)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (sse(), "no choices"),
        (sse({"id": "c", "choices": []}), "no choices"),
        (sse(chunk("half"), done=False), "broke off without a finish_reason (after 2 tries"),
        (sse(chunk("half"), chunk(None, "abort")), "finish_reason 'abort'"),
        (sse({"id": "c", "choices": "none"}), "no completion"),
        (sse([1, 2]), "no completion"),
        (sse({"choices": [{"index": 0, "delta": {"content": 7}, "finish_reason": "stop"}]}), "text or finish_reason"),
        (sse({"choices": [None]}), None),
        (sse({"error": {"message": "CUDA out of memory"}}), "it reports an error: CUDA out of memory"),
        (b"data: {nothing}\n\n", "cannot be read (JSONDecodeError)"),
        (b"data: " + b"[" * 50_000 + b"\n\n", "cannot be read"),
    ],
)
def test_streams_that_are_no_reply(faulty: ModuleType, reply: bytes, message: str | None) -> None:
    with faulty.FaultyServer(lambda path, body: reply) as server, pytest.raises(PolicyError) as caught:
        ask(server.url, stream=True)
    assert (message or "no choices") in str(caught.value) or message is None


def test_thoughts_that_a_server_keeps_apart_are_no_part_of_the_reply(faulty: ModuleType) -> None:
    reply = sse(chunk(None, reasoning_content="hm"), chunk("yes"), chunk(None, "stop"))
    with faulty.FaultyServer(lambda path, body: reply) as server:
        assert ask(server.url, stream=True) == Generation("yes")


def test_a_stream_without_an_end_is_cut_at_the_size_that_was_asked_for(faulty: ModuleType) -> None:
    endless = sse(*[chunk("x" * 10_000)] * 200, done=False)
    with faulty.FaultyServer(lambda path, body: endless) as server, pytest.raises(PolicyError, match="longer than"):
        ask(server.url, stream=True, max_tokens=1, total_timeout_s=20)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "x", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."},
        {"message": "The input (9000 tokens) is longer than the model's context length (4096 tokens)."},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
        {"message": "prompt is too long: 210000 tokens > 200000 maximum"},
    ],
)
def test_a_prompt_that_is_too_long_is_no_failure(faulty: ModuleType, error: dict[str, str]) -> None:
    body = json.dumps({"error": error}).encode()
    with faulty.FaultyServer(faulty.chat_reply, "status_400") as server:
        original = dict(faulty.FAULTS)
        faulty.FAULTS["status_400"] = faulty._sends(body, "400 Bad Request")
        try:
            assert ask(server.url).finish_reason == OVERLONG
        finally:
            faulty.FAULTS.update(original)


def test_the_key_appears_nowhere(faulty: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in messages, nor in tracebacks, nor in logs, nor in the settings; also where the server repeats it."""
    caplog.set_level(logging.DEBUG)
    told = json.dumps({"error": {"message": f"Incorrect API key provided: {CANARY}" + "x" * 400}}).encode()
    original = dict(faulty.FAULTS)
    faulty.FAULTS["status_401"] = faulty._sends(told, "401 Unauthorized")
    try:
        for fault in ("status_401", "reset", "half_json", "hang", "refused"):
            with faulty.FaultyServer(faulty.chat_reply, fault) as server:
                with pytest.raises(PolicyError) as caught:
                    ask(server.url, total_timeout_s=BUDGET_S if fault == "hang" else 30)
                if fault == "status_401":
                    assert server.requests[0].headers["authorization"] == f"Bearer {CANARY}"
                    assert "Incorrect API key provided: ***" in str(caught.value)
            assert CANARY not in "".join(traceback.format_exception(caught.value)), fault
    finally:
        faulty.FAULTS.update(original)
    assert CANARY not in caplog.text
    settings = EndpointSettings(url="http://127.0.0.1:1/v1")
    policy = EndpointPolicy(settings, environment={"OPENAI_API_KEY": CANARY})
    assert CANARY not in repr(policy) + repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "http://", "http://user:pw@x/v1", "http://x/v1?key=1"])
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must"):
        EndpointSettings(url=url)


# --- the driver ----------------------------------------------------------------------------------------------------


class Never:
    """Waits for ever, and remembers that it was told to stop."""

    def __init__(self) -> None:
        self.cancelled = False

    async def generate(self, request: GenerationRequest) -> Generation:
        return await self._wait()

    async def search(self, queries: Any, top_k: int) -> list[tuple[Passage, ...]]:
        return await self._wait()

    async def _wait(self) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class Says:
    def __init__(self, reply: str) -> None:
        self.reply = reply

    async def generate(self, request: GenerationRequest) -> Generation:
        return Generation(self.reply)


SEARCH = '{"action": "search", "parameters": {"query": "anna"}}'


def episode() -> Episode:
    return Episode(Question("q", "?", ("a",)), FactAgentProtocol())


def play(policy: Any, retriever: Any, timeout_s: float | None) -> Finished:
    return asyncio.run(run_episode(episode(), ("k",), policy, retriever, timeout_s=timeout_s))


def test_the_time_out_ends_the_episode_and_what_it_waited_for() -> None:
    never = Never()
    finished = play(never, never, 0.05)
    assert finished.trajectory.stop_reason is StopReason.TIMEOUT
    assert finished.error == "the episode did not end within 0.05 s; it waited for the policy last"
    assert never.cancelled
    finished = play(Says(SEARCH), Never(), 0.05)
    assert finished.error == "the episode did not end within 0.05 s; it waited for the retriever last"
    assert [step.observation for step in finished.trajectory.steps] == [None]


def test_a_failed_generation_ends_the_episode_with_its_message(faulty: ModuleType) -> None:
    async def one(url: str) -> Finished:
        settings = EndpointSettings(url=url, model="m", stream=False, tries=1)
        async with EndpointPolicy(settings, environment={}) as policy:
            return await run_episode(episode(), ("k",), policy, Never())

    with faulty.FaultyServer(faulty.chat_reply, "status_500") as server:
        finished = asyncio.run(one(server.url))
    assert finished.trajectory.stop_reason is StopReason.POLICY_FAILED
    assert "HTTP 500: something went wrong" in str(finished.error)


def test_cancelling_leaves_nothing_running_and_the_episode_as_it_was() -> None:
    never, made = Never(), episode()

    async def cancel() -> None:
        task = asyncio.create_task(run_episode(made, ("k",), Says(SEARCH), never))
        while made.request is None or not made.state.steps and "waits for passages" not in made._status:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancel())
    assert never.cancelled
    assert made.stop_reason is None


def test_defects_and_foreign_time_outs_are_raised() -> None:
    class Raises:
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def generate(self, request: GenerationRequest) -> Generation:
            raise self.error

    for error in (KeyError("a defect"), TimeoutError("somebody else's")):
        with pytest.raises(type(error)):
            play(Raises(error), Never(), 5)
