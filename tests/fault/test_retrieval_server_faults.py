"""The retrieval server as a process: signals, a port in use, an index that cannot be read, clients that misbehave."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from factagent.cli import main
from factagent.retrieval.bm25 import write_index
from factagent.types import Passage

SLOW_SERVER = """
import time
from factagent.retrieval.server.run import ServerSettings, serve
from factagent.types import Passage

class Slow:
    def search(self, queries, top_k):
        print("searching", flush=True)
        time.sleep(float(queries[0]))
        return [(Passage("a", "b", "c"),) for _ in queries]

serve(Slow, ServerSettings(port=0), lambda url, _: print(f"serving {url} (Slow)", flush=True))
"""


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its URL, once it answers searches."""
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            word, url, _ = server.stdout.readline().split(" ", 2)
            assert word == "serving"
            yield server, url
        finally:
            server.kill()


def ask(url: str, seconds: float) -> httpx.Response:
    return httpx.post(f"{url}/retrieve", json={"query": str(seconds)}, timeout=600, trust_env=False)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served") / "index"
    write_index([Passage("p1", "Lisbon", "Lisbon is the capital of Portugal.")], directory)
    return directory


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_search_under_way_end_and_exits_0(number: signal.Signals) -> None:
    with running("-c", SLOW_SERVER) as (server, url), ThreadPoolExecutor(1) as pool:
        reply = pool.submit(ask, url, 1.0)
        assert server.stdout is not None
        assert server.stdout.readline() == "searching\n"
        server.send_signal(number)
        assert reply.result().status_code == 200
        assert server.wait(600) == 0
        with pytest.raises(httpx.ConnectError):
            ask(url, 0)


def test_a_search_that_hangs_does_not_keep_the_server_from_stopping() -> None:
    with running("-c", SLOW_SERVER) as (server, url), ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(ask, url, 3600)
        assert server.stdout is not None
        assert server.stdout.readline() == "searching\n"
        server.send_signal(signal.SIGTERM)
        reply = hanging.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stopping")
        assert server.wait(600) == 0


def test_the_command_serves_an_index_until_it_is_told_to_stop(index: Path) -> None:
    with running("-m", "factagent.cli", "serve", "retrieval", "--index", str(index), "--port", "0") as (server, url):
        (found,) = httpx.post(f"{url}/retrieve", json={"queries": ["capital"]}, timeout=600, trust_env=False).json()[
            "result"
        ]
        assert [document["id"] for document in found] == ["p1"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(600) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""


def test_a_port_in_use_is_said_before_the_index_is_read(capsys: pytest.CaptureFixture[str], index: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "retrieval", "--index", str(index), "--port", str(port)]) == 69
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another" in capsys.readouterr().err


def test_an_index_that_cannot_be_read_ends_the_server_with_its_error(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, index: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(index, broken)
    (broken / "scores.npy").write_bytes(b"")
    assert main(["serve", "retrieval", "--index", str(broken), "--port", "0", "--host", "0.0.0.0"]) == 65
    assert str(broken) in capsys.readouterr().err
    assert "open to the network and asks for no token" in caplog.text


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--token-env", "FACTAGENT_TEST_UNSET"], "FACTAGENT_TEST_UNSET"),
        (["--max-queue", "10"], "queue 10"),
        (["--top-k", "1000"], "top-k 1000"),
        (["--max-top-k", "0"], "top_k=0"),
        (["--port", "99999"], "port 99999"),
    ],
)
def test_options_that_cannot_work_are_usage_errors(
    options: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "retrieval", "--index", "x", *options]) == 2
    assert part in capsys.readouterr().err


def test_clients_that_misbehave_do_not_disturb_the_others() -> None:
    half = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    garbage = (b"\x16\x03\x01\x02\x00", b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"FOO BAR\r\n\r\n", b"\0" * 5000)
    with running("-c", SLOW_SERVER) as (server, url):
        address = (httpx.URL(url).host, httpx.URL(url).port or 0)
        with socket.create_connection(address) as hanging:
            hanging.sendall(half)
            for data in garbage:
                with socket.create_connection(address, timeout=600) as client:
                    client.sendall(data)
                    assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
            with socket.create_connection(address) as gone:
                gone.sendall(half)
            assert ask(url, 0).status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(600) == 0
