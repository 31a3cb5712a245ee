"""Search servers of a cluster run: found or started, answering before anything else begins, stopped at the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from factagent.data.sources import open_corpus
from factagent.errors import ConfigError, ServiceError
from factagent.retrieval.base import AsyncRetriever
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.remote import ReplicatedRetriever, ShardedRetriever, check_ready
from factagent.train.cluster import ServersConfig

_STOP_S = 10.0
_ANNOUNCED = "serving "


def open_servers(config: ServersConfig, urls: Sequence[str]) -> AsyncRetriever:
    """The servers as one retriever, for the event loop that will search with it.

    At most `searches_at_once` requests are under way in it; what comes on top waits here and not at the servers, whose
    queues answer 503 when they are full.
    """
    token, most = config.token_env, config.searches_at_once
    if config.layout == "shards":
        return ShardedRetriever.of(urls, config.protocol, token_env=token, connections=most)
    return ReplicatedRetriever.of(urls, config.protocol, token_env=token, connections=most)


@contextmanager
def search_servers(config: ServersConfig, corpus: Path | None, run: Path) -> Iterator[tuple[str, ...]]:
    """The URLs of servers that answer searches; those that were started here end with the block.

    Args:
        config: servers that are there, or what to start.
        corpus: of the run; indexed for BM25 into `run/index` where no index is named. None where it names another one.
        run: the run directory; each started server writes to `run/servers/server-N.log`.

    Raises:
        RetrievalError: a server does not answer within `ready_s`.
        ServiceError: a server could not be started.
    """
    with ExitStack() as stack:
        urls = config.urls
        if not urls:
            index = config.index or str(_index_of(corpus, run))
            logs = run / "servers"
            logs.mkdir(parents=True, exist_ok=True)
            servers = [_Server(index, config, logs / f"server-{number}.log") for number in range(config.count)]
            for server in servers:
                stack.callback(server.stop)
            urls = tuple(server.url for server in servers)
        asyncio.run(_ready(config, urls))
        yield urls


async def _ready(config: ServersConfig, urls: Sequence[str]) -> None:
    checks = (check_ready(url, config.ready_s, protocol=config.protocol, token_env=config.token_env) for url in urls)
    await asyncio.gather(*checks)


def _index_of(corpus: Path | None, run: Path) -> Path:
    """The BM25 index of the corpus; made once a run."""
    index = run / "index"
    if corpus is None:
        raise ConfigError("no corpus and no index: set data.corpus, data.retriever.spec or cluster.servers.index")
    if not index.exists():
        BM25Index.build(open_corpus(corpus)).save(index)
    return index


class _Server:
    """One `factagent serve retrieval` as a process of its own; it has its port when this returns."""

    def __init__(self, index: str, config: ServersConfig, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "factagent.cli", "serve", "retrieval"]
        command += ["--index", index, "--host", config.host, "--port", "0"]
        command += ["--device", config.device, "--threads", str(config.threads)]
        command += [] if config.token_env is None else ["--token-env", config.token_env]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 (our own command, no shell)
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.url = self._announced(config.ready_s)

    def stop(self) -> None:
        """Ask the process to end, and make it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _announced(self, within_s: float) -> str:
        """The URL from the line that the server prints when it listens."""
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.append(self._process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(within_s)
        line = found[0] if found else ""
        if not line.startswith(_ANNOUNCED):
            self.stop()
            raise ServiceError(f"a search server did not start within {within_s} s; see {self._log}")
        return line.removeprefix(_ANNOUNCED).split()[0]
