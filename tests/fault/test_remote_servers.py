"""The retrieval client over one server and several: batches, shards, replicas, readiness, the synchronous wrapper."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, TypeVar

import pytest

from factagent.errors import UsageError
from factagent.http import RetryRule, TimeLimits
from factagent.retrieval.remote import (
    PROTOCOLS,
    NetworkRetriever,
    RemoteRetrievalError,
    RemoteRetriever,
    ReplicatedRetriever,
    ShardedRetriever,
    SyncRetriever,
    check_ready,
    several,
)

AMPLE = TimeLimits(total_s=60)
ONCE = RetryRule(tries=1)
QUICK = RetryRule(tries=3, first_wait_s=0.01)
Result = TypeVar("Result")


def use(retriever: NetworkRetriever, work: Callable[[Any], Awaitable[Result]]) -> Result:
    """Run `work(retriever)` on a loop, then close."""

    async def run() -> Result:
        try:
            return await work(retriever)
        finally:
            await retriever.aclose()

    return asyncio.run(run())


def asked(server: Any) -> list[Any]:
    """The bodies of the searches that a server saw."""
    return [json.loads(request.body) for request in server.requests if request.method == "POST"]


# One server


@pytest.mark.parametrize(("protocol", "sizes"), [("search-r1", [64, 64, 2]), ("verl-agent", [1] * 130)])
def test_batches_are_split_and_results_stand_in_the_order_of_the_queries(
    protocol: str, sizes: list[int], faulty: ModuleType
) -> None:
    queries = [f"q{i}" for i in range(130)]
    with faulty.FaultyServer() as server:
        retriever = RemoteRetriever(server.url, protocol, limits=AMPLE, connections=4)
        found = use(retriever, lambda r: r.search(queries, 2))
        bodies = asked(server)
    assert [[passage.id for passage in passages] for passages in found] == [[f"{q}/0", f"{q}/1"] for q in queries]
    assert sorted((len(body.get("queries", [0])) for body in bodies), reverse=True) == sizes
    assert all(body["topk"] == 2 and body["return_scores"] is True for body in bodies)


def test_many_searches_share_few_connections(faulty: ModuleType) -> None:
    async def search_all(retriever: RemoteRetriever) -> int:
        found = await asyncio.gather(*(retriever.search([f"q{i}"], 1) for i in range(200)))
        return len({one[0][0].id for one in found})

    with faulty.FaultyServer() as server:
        assert use(RemoteRetriever(server.url, limits=AMPLE, retries=ONCE, connections=5), search_all) == 200
        assert server.connections <= 5


def test_no_queries_ask_nobody() -> None:
    assert use(RemoteRetriever("http://127.0.0.1:9"), lambda r: r.search([], 3)) == []


def test_fewer_than_one_passage_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="top_k=0 must be at least 1"):
        use(RemoteRetriever("http://127.0.0.1:9"), lambda r: r.search(["a"], 0))


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000/retrieve", "http://host:8000"),
        ("https://host/wiki/retrieve/", "https://host/wiki"),
        ("http://[::1]:8000/search", "http://[::1]:8000/search"),
    ],
)
def test_the_url_may_hold_the_path_of_the_protocol(url: str, base: str) -> None:
    assert RemoteRetriever(url).url == base


@pytest.mark.parametrize(
    "url",
    ["", "host:8000", "ftp://host", "http://", "http://host:99999", "http://host:0", "http://h/?q=1", "http://h/#a",
     "http://[::1", "http://ho st", "http://h\n.example", "http://пример"],
)  # fmt: skip
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="must look like http://host:8000"):
        RemoteRetriever(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="use token_env") as caught:
        RemoteRetriever("http://me:hunter2@host")
    assert "hunter2" not in str(caught.value)


def test_options_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unknown retrieval protocol 'grpc'; choose one of search-r1, verl-agent"):
        RemoteRetriever("http://host", "grpc")
    with pytest.raises(UsageError, match="connections=0"):
        RemoteRetriever("http://host", connections=0)
    monkeypatch.delenv("NO_TOKEN", raising=False)
    with pytest.raises(UsageError, match="environment variable NO_TOKEN is not set"):
        RemoteRetriever("http://host", token_env="NO_TOKEN")
    monkeypatch.setenv("NO_TOKEN", "two\nlines")
    with pytest.raises(UsageError, match="NO_TOKEN holds characters that no token has") as caught:
        RemoteRetriever("http://host", token_env="NO_TOKEN")
    assert "two" not in str(caught.value)


def test_proxies_of_the_environment_do_not_apply_to_this_machine(
    faulty: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with faulty.FaultyServer() as server:
        assert use(RemoteRetriever(server.url, limits=AMPLE, retries=ONCE), lambda r: r.search(["a"], 1))


def test_a_client_belongs_to_one_event_loop(faulty: ModuleType) -> None:
    with faulty.FaultyServer() as server:
        retriever = RemoteRetriever(server.url, limits=AMPLE)
        with asyncio.Runner() as first:
            first.run(retriever.search(["a"], 1))
            with asyncio.Runner() as second, pytest.raises(RuntimeError, match="belongs to another event loop"):
                second.run(retriever.search(["a"], 1))
            asyncio.set_event_loop(first.get_loop())
            first.run(retriever.aclose())
            with pytest.raises(RuntimeError, match="closed"):
                first.run(retriever.search(["a"], 1))
    assert "127.0.0.1" in repr(retriever)


# Readiness


def test_ready_waits_for_a_server_that_starts_late(faulty: ModuleType) -> None:
    server = faulty.FaultyServer().start()
    server.stop()
    late = threading.Timer(0.3, server.start)
    late.start()
    try:
        asyncio.run(check_ready(server.url, 30))
        assert [request.path for request in server.requests] == ["/ready", "/retrieve"]
    finally:
        late.join()
        server.stop()


@pytest.mark.parametrize("fault", ["status_503", "status_500", "reset"])
def test_ready_waits_for_a_server_that_still_loads(fault: str, faulty: ModuleType) -> None:
    with faulty.FaultyServer(fault=fault, times=3) as server:
        asyncio.run(check_ready(server.url, 30))
        assert len(server.requests) == 5


def test_a_foreign_server_without_a_ready_route_is_asked_a_search(faulty: ModuleType) -> None:
    with faulty.FaultyServer(fault="status_404", times=1) as server:
        asyncio.run(check_ready(server.url, 30))
        assert asked(server) == [{"queries": ["ready"], "topk": 1, "return_scores": True}]


@pytest.mark.parametrize("fault", ["status_401", "wrong_schema", "html", "garbage"])
def test_ready_does_not_wait_for_what_waiting_cannot_change(fault: str, faulty: ModuleType) -> None:
    with faulty.FaultyServer(fault=fault) as server, pytest.raises(RemoteRetrievalError) as caught:
        asyncio.run(check_ready(server.url, 3600))
    assert caught.value.failure.tries == 1


@pytest.mark.parametrize("fault", ["refused", "hang", "status_503"])
def test_ready_gives_up_at_its_deadline(fault: str, faulty: ModuleType) -> None:
    with (
        faulty.FaultyServer(fault=fault) as server,
        pytest.raises(RemoteRetrievalError, match=r"budget of 0\.4 s") as it,
    ):
        asyncio.run(check_ready(server.url, 0.4))
    assert it.value.kind == "budget"


# Shards


def shelf(name: str, *scores: float) -> Callable[[str, bytes], bytes]:
    """The reply of a shard that finds passages of these scores for any query."""

    def reply(path: str, body: bytes) -> bytes:
        items = [{"document": {"id": f"{name}{i}", "contents": "t\nx"}, "score": s} for i, s in enumerate(scores)]
        return json.dumps({"result": [items for _ in json.loads(body)["queries"]]}).encode()

    return reply


def test_shards_are_merged_by_score_and_ties_keep_the_order_of_shards(faulty: ModuleType) -> None:
    servers = [faulty.FaultyServer(shelf(name, *s)) for name, s in (("a", (3, 1)), ("b", (3, 2)), ("c", (4, 1)))]
    with servers[0] as a, servers[1] as b, servers[2] as c:
        retriever = ShardedRetriever.of([a.url, b.url, c.url], limits=AMPLE)
        assert retriever.url == f"{a.url} {b.url} {c.url}"
        results = use(retriever, lambda r: r.search(["x", "y"], 5))
    for passages in results:
        assert [(passage.id, passage.score) for passage in passages] == [
            ("c0", 4),
            ("a0", 3),
            ("b0", 3),
            ("b1", 2),
            ("a1", 1),
        ]


@pytest.mark.parametrize("fault", ["refused", "status_500", "wrong_schema"])
def test_a_shard_that_fails_fails_the_search_by_name(fault: str, faulty: ModuleType) -> None:
    with faulty.FaultyServer() as good, faulty.FaultyServer(fault=fault) as bad:
        retriever = ShardedRetriever.of([good.url, bad.url], limits=AMPLE, retries=ONCE)
        with pytest.raises(RemoteRetrievalError) as caught:
            use(retriever, lambda r: r.search(["x"], 5))
    assert str(caught.value).startswith(f"{bad.url}: shard 2 of 2: ")


def test_shards_need_scores_and_servers() -> None:
    with pytest.raises(UsageError, match="gives no scores to merge by"):
        ShardedRetriever.of(["http://host"], "zerosearch")
    for kind in (ShardedRetriever, ReplicatedRetriever):
        with pytest.raises(UsageError, match="no retrieval server given"):
            kind([])


def test_a_shard_may_be_replicas(faulty: ModuleType) -> None:
    with faulty.FaultyServer(shelf("a", 2)) as a, faulty.FaultyServer(shelf("b", 3)) as b:
        spare = ReplicatedRetriever.of(["http://127.0.0.1:9", a.url], limits=AMPLE)
        retriever = ShardedRetriever([spare, RemoteRetriever(b.url, limits=AMPLE)])
        (passages,) = use(retriever, lambda r: r.search(["x"], 5))
    assert [passage.id for passage in passages] == ["b0", "a0"]


# Replicas


async def search_times(retriever: ReplicatedRetriever, times: int) -> None:
    for i in range(times):
        assert len(await retriever.search([f"q{i}"], 1)) == 1


def test_replicas_take_turns(faulty: ModuleType) -> None:
    with faulty.FaultyServer() as a, faulty.FaultyServer() as b, faulty.FaultyServer() as c:
        retriever = ReplicatedRetriever.of([a.url, b.url, c.url], limits=AMPLE)
        use(retriever, lambda r: search_times(r, 6))
        assert [len(server.requests) for server in (a, b, c)] == [2, 2, 2]


@pytest.mark.parametrize("fault", ["status_503", "status_500", "reset"])
def test_a_failing_replica_is_left_alone_for_a_while(
    fault: str, faulty: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "FIRST_REST_S", 3600)
    with faulty.FaultyServer(fault=fault) as bad, faulty.FaultyServer() as good:
        retriever = ReplicatedRetriever.of([bad.url, good.url], limits=AMPLE)
        use(retriever, lambda r: search_times(r, 20))
        assert (len(bad.requests), len(good.requests)) == (1, 20)


def test_a_replica_that_comes_back_is_asked_again(faulty: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "FIRST_REST_S", 0.0)
    with faulty.FaultyServer(fault="status_503", times=1) as back, faulty.FaultyServer() as good:
        retriever = ReplicatedRetriever.of([back.url, good.url], limits=AMPLE)
        use(retriever, lambda r: search_times(r, 9))
        assert len(back.requests) >= 4


def test_when_no_replica_answers_the_error_says_why_for_each(faulty: ModuleType) -> None:
    with faulty.FaultyServer(fault="reset") as a, faulty.FaultyServer(fault="status_503") as b:
        retriever = ReplicatedRetriever.of([a.url, b.url], limits=AMPLE, retries=QUICK)
        with pytest.raises(RemoteRetrievalError, match="no replica answered") as caught:
            use(retriever, lambda r: r.search(["x"], 1))
        assert (len(a.requests), len(b.requests)) == (3, 3)
    assert f"{a.url}: ReadError" in str(caught.value)
    assert f"{b.url}: answered 503" in str(caught.value)
    assert caught.value.failure.tries == 3


def test_a_replica_of_another_kind_is_an_error_and_no_reason_to_move_on(faulty: ModuleType) -> None:
    with faulty.FaultyServer(fault="wrong_schema") as odd, faulty.FaultyServer() as good:
        with pytest.raises(RemoteRetrievalError, match="reply field 'result' is missing"):
            use(ReplicatedRetriever.of([odd.url, good.url], limits=AMPLE), lambda r: r.search(["x"], 1))
        assert good.requests == []


# Without an event loop


def test_several_threads_search_at_once(faulty: ModuleType) -> None:
    found: dict[int, str] = {}
    with faulty.FaultyServer() as server, SyncRetriever(RemoteRetriever(server.url, limits=AMPLE)) as retriever:
        retriever.ready(30)

        def search(i: int) -> None:
            found[i] = retriever.search([f"q{i}"], 1)[0][0].id

        threads = [threading.Thread(target=search, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {i: f"q{i}/0" for i in range(16)}


def background_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "remote retrieval"]


def test_closing_ends_the_thread_and_later_searches_are_refused() -> None:
    retriever = SyncRetriever(RemoteRetriever("http://127.0.0.1:9"))
    assert len(background_threads()) == 1
    retriever.close()
    retriever.close()
    assert background_threads() == []
    with pytest.raises(RuntimeError, match=r"SyncRetriever\(RemoteRetriever\(.*\) is closed"):
        retriever.search(["a"], 1)


def test_a_search_under_way_ends_when_the_retriever_is_closed(faulty: ModuleType) -> None:
    ended: list[BaseException] = []
    with faulty.FaultyServer(fault="hang") as server:
        retriever = SyncRetriever(RemoteRetriever(server.url, limits=AMPLE, retries=ONCE))

        def search() -> None:
            try:
                retriever.search(["a"], 1)
            except RuntimeError as error:
                ended.append(error)

        thread = threading.Thread(target=search)
        thread.start()
        while not server.requests:
            thread.join(0.01)
        retriever.close()
        thread.join(30)
    assert "was closed during a search" in str(ended[0])


def test_a_forgotten_one_is_closed_when_it_is_collected(faulty: ModuleType) -> None:
    with faulty.FaultyServer() as server:
        retriever = SyncRetriever(RemoteRetriever(server.url, limits=AMPLE))
        retriever.search(["a"], 1)
        del retriever
        gc.collect()
        assert background_threads() == []


def test_every_protocol_has_a_form_of_its_own() -> None:
    assert len(set(PROTOCOLS.values())) == len(PROTOCOLS) == 4
