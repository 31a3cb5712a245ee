"""The client against `factagent serve retrieval`: every protocol finds what the index finds in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from factagent.http import RetryRule
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.remote import PROTOCOLS, RemoteRetrievalError, RemoteRetriever, ShardedRetriever, SyncRetriever
from factagent.types import Passage

PASSAGES = [Passage(f"p{i}", f"Tram {i}", f"Tram {i} runs in Lisbon on line w{i % 7} and w{i % 5}.") for i in range(80)]
QUERIES = [f"tram {i} on line w{i % 3}" for i in range(70)]
VARIABLE, TOKEN = "TEST_SEARCH_TOKEN", "canary-41d7"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("remote") / "index"
    BM25Index.build(PASSAGES).save(place)
    return place


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "factagent.cli", "serve", "retrieval", "--index", str(index), "--port", "0"]
    environment = {**os.environ, VARIABLE: TOKEN}
    with subprocess.Popen(
        [*command, "--token-env", VARIABLE], stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[1]
        finally:
            server.terminate()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_search_over_the_network_finds_what_a_local_one_finds(protocol: str, url: str, index: Path) -> None:
    local = BM25Index.load(index).search(QUERIES, 4)
    with SyncRetriever(RemoteRetriever(url, protocol, token_env=VARIABLE)) as retriever:
        retriever.ready()
        found = retriever.search(QUERIES, 4)
    for there, here in zip(found, local, strict=True):
        assert [(p.title, p.text) for p in there] == [(p.title, p.text) for p in here]
        if protocol != "zerosearch":
            assert [(p.id, p.score) for p in there] == [(p.id, pytest.approx(p.score)) for p in here]


def test_two_shards_of_one_server_give_each_passage_twice(url: str) -> None:
    with SyncRetriever(ShardedRetriever.of([url, url], token_env=VARIABLE)) as retriever:
        (passages,) = retriever.search(["tram 7"], 4)
    assert passages[0] == passages[1]


def test_a_wrong_token_is_known_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "another")
    refused = pytest.raises(RemoteRetrievalError, match="answered 401 Unauthorized: unauthorised: send the")
    with SyncRetriever(RemoteRetriever(url, token_env=VARIABLE)) as retriever, refused as caught:
        retriever.ready(3600)
    assert "another" not in str(caught.value)


def test_a_refusal_says_which_limit_was_exceeded(url: str) -> None:
    refused = pytest.raises(RemoteRetrievalError, match=r"422 .*query_too_long: has 3000 bytes; at most 2048")
    with SyncRetriever(RemoteRetriever(url, token_env=VARIABLE)) as retriever, refused:
        retriever.search(["x" * 3000], 3)


def test_tls_where_none_is_spoken_is_a_refused_connection(url: str) -> None:
    secure = url.replace("http:", "https:")
    client = RemoteRetriever(secure, token_env=VARIABLE, retries=RetryRule(tries=1))
    with SyncRetriever(client) as retriever, pytest.raises(RemoteRetrievalError) as caught:
        retriever.search(["tram"], 3)
    assert caught.value.kind == "refused"
