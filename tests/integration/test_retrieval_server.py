"""The retrieval server over loopback: real sockets, a real BM25 index, and retrievers that block or fail on request."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from factagent.errors import UsageError
from factagent.retrieval.base import RetrievalError, Retriever
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.server.app import build_app
from factagent.retrieval.server.batching import SearchQueue
from factagent.retrieval.server.limits import Limits
from factagent.retrieval.server.metrics import Metrics
from factagent.retrieval.server.run import RetrievalServer, ServerSettings
from factagent.retrieval.wire import Call, Form, decode_reply, encode_request
from factagent.types import Passage

PASSAGES = [
    Passage("p0", "Anna Keller", "Anna Keller was born in Lisbon in 1931."),
    Passage("p1", "Lisbon", "Lisbon is the capital of Portugal."),
    Passage("p2", "Porto", "Porto is a city in Portugal."),
    *(Passage(f"x{i}", f"Tram {i}", f"Tram {i} runs in Lisbon, line w{i % 7} and w{i % 5}.") for i in range(60)),
]


class Gate:
    """A retriever that waits at a gate, and remembers what was searched together."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.batches: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        self.batches.append((list(queries), top_k))
        self.entered.release()
        assert self.open.wait(600)
        return [(Passage(query, query, f"about {query}", 1.0),) for query in queries]


class Failing:
    """A retriever that raises on some queries."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        if any("bad" in query for query in queries):
            raise self._error
        return [(PASSAGES[1],) for _ in queries]


@contextmanager
def serving(retriever: Retriever | None, *, token: str | None = None, **queue: int) -> Iterator[httpx.Client]:
    """A server in a thread, and a client of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    metrics = Metrics()
    searches = SearchQueue(metrics, **queue)
    server = RetrievalServer(build_app(searches, metrics, token=token), searches)

    async def run() -> None:
        if retriever is not None:
            await searches.load(lambda: retriever)
        await server.serve([listener])

    def work() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with httpx.Client(
            base_url=url, timeout=600, trust_env=False, limits=httpx.Limits(max_connections=200)
        ) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def index() -> BM25Index:
    return BM25Index.build(PASSAGES)


@pytest.fixture(scope="module")
def client(index: BM25Index) -> Iterator[httpx.Client]:
    with serving(index) as client:
        yield client


def post(client: httpx.Client, body: Any, path: str = "/retrieve") -> httpx.Response:
    return client.post(path, json=body)


def code_of(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert sorted(error) == ["code", "field", "message"]
    return str(error["code"])


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def wait_for(condition: Any) -> None:
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come to pass")


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("scores", [False, True])
def test_every_form_gives_the_passages_of_the_index(
    client: httpx.Client, index: BM25Index, form: Form, scores: bool
) -> None:
    queries = ("born in Lisbon", "nothing known", "capital of Portugal") if form.takes_many else ("born in Lisbon",)
    call = Call(form, queries, 4, scores and form is not Form.ZEROSEARCH)
    reply = client.post(form.path, content=encode_request(call))
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    found = decode_reply(call, reply.content, "test")
    wanted = index.search(queries, 4)
    assert [[p.text for p in result] for result in found] == [[p.text for p in result] for result in wanted]
    if call.scores:
        assert found == wanted


def test_the_client_of_search_r1_reads_its_passages(client: httpx.Client) -> None:
    """The request of Search-R1's rollouts and what they read out of the reply, key by key."""
    payload = {"queries": ["Lisbon capital", "trams of Lisbon"], "topk": 3, "return_scores": True}
    results = post(client, payload).json()["result"]
    assert len(results) == 2
    for result in results:
        assert len(result) == 3
        for item in result:
            title, *text = item["document"]["contents"].split("\n")
            assert title.startswith('"')
            assert text
            assert item["score"] > 0
    assert results[0][0]["document"] == {"id": "p1", "contents": '"Lisbon"\nLisbon is the capital of Portugal.'}


def test_the_default_number_of_passages_is_the_servers(client: httpx.Client) -> None:
    for body in ({"queries": ["Lisbon"]}, {"queries": ["Lisbon"], "topk": None}, {"queries": ["Lisbon"], "topk": 0}):
        assert len(post(client, body).json()["result"][0]) == 3
    assert len(post(client, {"query": "Lisbon"}, "/search").json()) == 10
    assert len(post(client, {"query": "Lisbon", "top_k": None}).json()) == 3


def test_no_scores_still_gives_documents(client: httpx.Client) -> None:
    (documents,) = post(client, {"queries": ["Lisbon"], "topk": 2, "return_scores": False}).json()["result"]
    assert [sorted(document) for document in documents] == [["contents", "id"]] * 2


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"queries": ["a"] * 65}, 422, "too_many_queries"),
        ({"queries": ["a" * 2049]}, 422, "query_too_long"),
        ({"queries": ["é" * 1025]}, 422, "query_too_long"),
        ({"query": "a" * 2049, "top_k": 1}, 422, "query_too_long"),
        ({"queries": ["a"], "topk": 101}, 422, "top_k_too_large"),
        ({"queries": ["a"], "topk": 10**30}, 422, "top_k_too_large"),
        ({"queries": ["a" * 262_144]}, 413, "body_too_large"),
        ({"queries": [1]}, 422, "wrong_type"),
    ],
)
def test_limits_are_4xx_with_a_code(client: httpx.Client, body: Any, status: int, code: str) -> None:
    response = post(client, body)
    assert (response.status_code, code_of(response)) == (status, code)


def test_what_just_fits_the_limits_is_answered(client: httpx.Client) -> None:
    body = {"queries": ["é" * 1024, *(["Lisbon"] * 63)], "topk": 100}
    assert len(post(client, body).json()["result"]) == 64


def test_a_body_without_a_length_is_cut_off_at_the_limit(client: httpx.Client) -> None:
    response = client.post("/retrieve", content=(b"x" * 65_536 for _ in range(20)))
    assert (response.status_code, code_of(response)) == (413, "body_too_large")


def test_wrong_paths_and_methods_are_json_errors(client: httpx.Client) -> None:
    assert code_of(client.get("/nothing")) == "no_such_path"
    assert code_of(client.post("/retrieve/", json={})) == "no_such_path"
    refused = client.request("PURGE", "/retrieve")
    assert (refused.status_code, code_of(refused), refused.headers["allow"]) == (405, "method_not_allowed", "POST")
    assert client.post("/retrieve", content=b"\xff\xfe").status_code == 400
    assert not [name for name in client.get("/health").headers if name.startswith(("access-control", "server"))]


@pytest.mark.parametrize("bound", ["queries", "query_bytes", "top_k", "body_bytes"])
def test_limits_below_one_are_refused(bound: str) -> None:
    with pytest.raises(UsageError, match=bound):
        Limits(**{bound: 0})


@pytest.mark.parametrize(
    "settings", [{"port": 70_000}, {"top_k": 101}, {"top_k": 0}, {"max_queue": 63}, {"max_batch": 10}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        ServerSettings(**settings)  # type: ignore[arg-type]


def test_health_and_ready_differ_while_the_index_loads() -> None:
    with serving(None) as client:
        assert client.get("/health").status_code == 200
        for response in (client.get("/ready"), post(client, {"queries": ["a"]})):
            assert (response.status_code, code_of(response)) == (503, "loading")
            assert int(response.headers["retry-after"]) >= 1


def test_what_queues_during_a_search_is_the_next_batch() -> None:
    gate = Gate()
    with serving(gate, cache=0) as client, ThreadPoolExecutor(9) as pool:
        first = pool.submit(post, client, {"query": "first", "topk": 1})
        assert gate.entered.acquire(timeout=600)
        others = [pool.submit(post, client, {"queries": [f"q{i}", "same"], "topk": 1}) for i in range(6)]
        wide = pool.submit(post, client, {"queries": ["wide"], "topk": 2})
        wait_for(lambda: metric(client, "factagent_queue_queries") == 13)
        gate.open.set()
        assert [other.result().status_code for other in (first, *others, wide)] == [200] * 8
        assert gate.batches[0] == (["first"], 1)
        together = next(queries for queries, top_k in gate.batches[1:] if top_k == 1)
        assert sorted(together) == ["q0", "q1", "q2", "q3", "q4", "q5", "same"]
        assert (["wide"], 2) in gate.batches
        assert metric(client, "factagent_batch_queries_count") == 3
        for i, other in enumerate(others):
            ids = [documents[0]["id"] for documents in other.result().json()["result"]]
            assert ids == [f"q{i}", "same"]


def test_a_batch_holds_no_more_than_its_maximum() -> None:
    gate = Gate()
    with serving(gate, max_batch=2, cache=0) as client, ThreadPoolExecutor(6) as pool:
        replies = [pool.submit(post, client, {"query": f"q{i}", "topk": 1}) for i in range(6)]
        wait_for(lambda: metric(client, "factagent_queue_queries") == 5)
        gate.open.set()
        assert [reply.result().status_code for reply in replies] == [200] * 6
    assert [len(queries) for queries, _ in gate.batches] == [1, 2, 2, 1]


def test_beyond_the_queue_the_answer_is_503_at_once() -> None:
    gate = Gate()
    gate.open.set()
    with serving(gate, max_waiting=4) as client, ThreadPoolExecutor(5) as pool:
        assert post(client, {"query": "known"}).status_code == 200
        gate.open.clear()
        waiting = [pool.submit(post, client, {"query": f"q{i}"}) for i in range(5)]
        wait_for(lambda: metric(client, "factagent_queue_queries") == 4)
        refused = post(client, {"query": "late"})
        assert (refused.status_code, code_of(refused)) == (503, "overloaded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (client.get("/ready").status_code, client.get("/health").status_code) == (503, 200)
        assert post(client, {"query": "known"}).status_code == 200  # what the cache holds needs no place in the queue
        gate.open.set()
        assert [reply.result().status_code for reply in waiting] == [200] * 5
        assert client.get("/ready").status_code == 200
        assert post(client, {"query": "late"}).status_code == 200


def test_the_work_of_a_client_that_went_away_is_dropped() -> None:
    gate = Gate()
    with serving(gate) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, client, {"query": "first"})
        assert gate.entered.acquire(timeout=600)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/retrieve", json={"query": "given up"}, timeout=0.2)
        wait_for(lambda: metric(client, "factagent_queue_queries") == 0)
        gate.open.set()
        assert first.result().status_code == 200
        assert post(client, {"query": "after"}).status_code == 200
    assert [queries for queries, _ in gate.batches] == [["first"], ["after"]]


@pytest.mark.parametrize("error", [ZeroDivisionError("secret of the inside"), RetrievalError("secret of the inside")])
def test_a_search_that_raises_is_500_without_its_inside(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with serving(Failing(error)) as client:
        response = post(client, {"queries": ["bad"]})
        assert (response.status_code, code_of(response)) == (500, "search_failed")
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        assert post(client, {"queries": ["good"]}).status_code == 200
        assert metric(client, "factagent_search_failures_total") == 1
    assert "secret of the inside" in caplog.text


def test_a_query_that_breaks_the_search_fails_its_own_request_only() -> None:
    class GatedFailing(Gate):
        def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
            found = super().search(queries, top_k)
            if "bad" in queries:
                raise ValueError("no such word")
            return found

    gate = GatedFailing()
    with serving(gate) as client, ThreadPoolExecutor(5) as pool:
        replies = [pool.submit(post, client, {"query": query}) for query in ("a", "b", "bad", "c")]
        wait_for(lambda: metric(client, "factagent_queue_queries") == 3)
        gate.open.set()
        assert sorted(reply.result().status_code for reply in replies) == [200, 200, 200, 500]
        assert replies[2].result().status_code == 500


def test_scores_that_json_cannot_hold_are_a_failed_search() -> None:
    class NotANumber:
        def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
            return [(Passage("a", "b", "c", float("nan")),) for _ in queries]

    with serving(NotANumber()) as client:
        assert code_of(post(client, {"queries": ["a"], "return_scores": True})) == "search_failed"


def test_a_repeated_query_comes_from_the_cache() -> None:
    gate = Gate()
    gate.open.set()
    with serving(gate, cache=2) as client:
        replies = [post(client, {"queries": ["a", "b"], "topk": 1}).json() for _ in range(2)]
        assert replies[0] == replies[1]
        assert gate.batches == [(["a", "b"], 1)]
        assert metric(client, "factagent_cache_hits_total") == 2
        post(client, {"queries": ["a"], "topk": 2})  # another number of passages is another result; "a" for 1 goes
        post(client, {"queries": ["b"], "topk": 1})
        post(client, {"queries": ["a"], "topk": 1})
    assert gate.batches[1:] == [(["a"], 2), (["a"], 1)]


def test_with_a_token_only_health_and_ready_are_open(index: BM25Index) -> None:
    with serving(index, token="pässword") as client:
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic cOsMQ=="}):
            refused = client.post("/retrieve", json={"queries": ["a"]}, headers=headers)
            assert (refused.status_code, code_of(refused)) == (401, "unauthorised")
            assert refused.headers["www-authenticate"] == "Bearer"
            assert client.get("/metrics", headers=headers).status_code == 401
        right = {"authorization": "bearer pässword".encode()}
        assert client.post("/retrieve", json={"queries": ["a"]}, headers=right).status_code == 200
        assert "factagent_requests_total" in client.get("/metrics", headers=right).text


def test_metrics_count_requests_by_path_and_code(index: BM25Index) -> None:
    with serving(index) as client:
        post(client, {"queries": ["Lisbon", "Porto"]})
        post(client, {})
        client.get("/secret/path")
        text = client.get("/metrics").text
        assert 'factagent_requests_total{code="200",path="/retrieve"} 1.0' in text
        assert 'factagent_requests_total{code="422",path="/retrieve"} 1.0' in text
        assert 'factagent_requests_total{code="404",path="other"} 1.0' in text
        assert "secret" not in text
        assert (
            metric(client, "factagent_search_seconds_count") == metric(client, "factagent_request_seconds_count") == 1
        )
        assert metric(client, "factagent_batch_queries_sum") == 2


def test_the_ranking_is_the_same_for_one_client_and_for_64(index: BM25Index) -> None:
    bodies = [
        {"queries": [f"Lisbon w{i % 7} w{i % 5}", f"Tram {i}"], "topk": 5, "return_scores": True} for i in range(96)
    ]
    with serving(index, cache=0) as client, ThreadPoolExecutor(64) as pool:
        alone = [post(client, body).content for body in bodies]
        crowd = [reply.content for reply in pool.map(lambda body: post(client, body), bodies)]
    assert crowd == alone


@pytest.mark.parametrize("token", [None, "t0ken"])
def test_schemathesis_finds_nothing(index: BM25Index, tmp_path: Path, token: str | None) -> None:
    """Requests made from the API document, right and wrong: none crashes the server or contradicts the document."""
    command = [Path(sys.executable).with_name("st"), "run", "--seed=7", "--no-color", "--generation-database=none"]
    command += [f"--header=Authorization: Bearer {token}", "--phases=coverage"] if token else ["--max-examples=15"]
    with serving(index, token=token) as client:
        command.append(f"{client.base_url}/openapi.json")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        document = client.get("/openapi.json", headers=headers).json()
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(document["paths"]) == 7
        assert ("security" in document["paths"]["/retrieve"]["post"]) is (token is not None)
