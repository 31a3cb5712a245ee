"""The retrieval server under load (issue 3, bar 3; reliability.md R12).

Four measurements, all over loopback with keep-alive; servers and load generator are separate processes on this machine:

  stub    a search that costs nothing: ours against a FastAPI server of the Search-R1 kind (synchronous handler,
          pydantic models), 64 connections, one query a request, interleaved. Goal: >= 5x requests a second.
  dense   a search that is one matrix product over 60,000 x 768 (torch, 1 thread): batches against a search for each
          request (the same server with --max-batch 1), 64 connections, and the median at 1 connection.
          Goals: >= 6x requests a second, idle median <= 1.1x.
  bm25    BM25 over --passages passages, 64 connections, no cache. Goals: >= 300 queries/s, p99 <= 150 ms.
  soak    --soak seconds of mixed load on that index. Goals: 0 errors, resident memory grows < 2 % after the warm-up.

The load generator is raw asyncio (uvloop) with one prepared request a connection at a time and a reader that knows only
status line, Content-Length and body: about 15 us a request, so that the server is what is measured. With --quick the
sizes and times are small and the figures mean little.

    python benchmarks/server.py [--quick] [--only stub,dense,bm25,soak] [--soak 600] [--passages 100000] [--out FILE]
    python benchmarks/server.py --fuzz 500      # schemathesis, that many examples an operation, against a BM25 server
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from rich.console import Console

from factagent.types import Passage

CONNECTIONS = 64
DIMENSION = 768
WORDS = 60_000
console = Console(stderr=True)


# Servers: each is this script again, with --serve NAME.


class Stub:
    """Three passages for any query."""

    PASSAGES = tuple(Passage(str(i), f"Title {i}", "word " * 100, 3.0 - i) for i in range(3))

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        return [self.PASSAGES[:top_k]] * len(queries)


class Dense:
    """Exact search by one matrix product: the vector of a query is drawn from its text, as an encoder would give it."""

    def __init__(self, rows: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._matrix = torch.from_numpy(np.random.default_rng(0).standard_normal((rows, DIMENSION), np.float32))

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        seeds = [int(query.rpartition(" ")[2]) for query in queries]
        vectors = np.stack([np.random.default_rng(seed).standard_normal(DIMENSION, np.float32) for seed in seeds])
        best = self._torch.topk(self._torch.from_numpy(vectors) @ self._matrix.T, top_k)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [
            tuple(Passage(str(i), "Title", "word " * 100, score) for i, score in zip(*row, strict=True)) for row in rows
        ]


def serve_ours(open_retriever: Callable[[], Any], max_batch: int, cache: int) -> None:
    from factagent.retrieval.server.limits import Limits
    from factagent.retrieval.server.run import ServerSettings, serve

    settings = ServerSettings(port=0, max_batch=max_batch, cache=cache, limits=Limits(queries=min(64, max_batch)))
    serve(open_retriever, settings, lambda url, _: print(f"serving {url}", flush=True))


def serve_fastapi(retriever: Any) -> None:
    """The shape of Search-R1's server: FastAPI, a synchronous handler (a thread pool), the search in the handler."""
    import socket

    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class QueryRequest(BaseModel):
        queries: list[str]
        topk: int | None = None
        return_scores: bool = False

    app = FastAPI()

    def retrieve(request: Any) -> Any:
        results = retriever.search(request.queries, request.topk or 3)
        return {
            "result": [
                [{"document": {"id": p.id, "contents": f'"{p.title}"\n{p.text}'}, "score": p.score} for p in passages]
                for passages in results
            ]
        }

    retrieve.__annotations__ = {"request": QueryRequest}
    app.post("/retrieve")(retrieve)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"serving http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run([listener])


def serve(name: str, index: Path, rows: int) -> None:
    from factagent.retrieval.bm25 import BM25Index

    servers: dict[str, Callable[[], None]] = {
        "stub": lambda: serve_ours(Stub, 256, 0),
        "fastapi": lambda: serve_fastapi(Stub()),
        "batched": lambda: serve_ours(lambda: Dense(rows), 256, 0),
        "single": lambda: serve_ours(lambda: Dense(rows), 1, 0),
        "bm25": lambda: serve_ours(lambda: BM25Index.load(index), 256, 0),
        "cached": lambda: serve_ours(lambda: BM25Index.load(index), 256, 2_000),
    }
    servers[name]()


@contextmanager
def running(name: str, index: Path, rows: int) -> Iterator[tuple[int, int]]:
    """Port and process id of a server, once it answers searches."""
    command = [sys.executable, __file__, "--serve", name, "--index", str(index), "--rows", str(rows)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("serving "), f"the server {name} did not start"
            yield int(line.rpartition(":")[2]), server.pid
        finally:
            server.terminate()


# Load.


@dataclass(frozen=True)
class Load:
    """What a load met: replies, errors by status (0: a broken connection), seconds, latencies in seconds."""

    replies: int
    errors: dict[int, int]
    seconds: float
    latencies: list[float]

    @property
    def per_second(self) -> float:
        return self.replies / self.seconds

    def quantile_ms(self, share: float) -> float:
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))] * 1000


def request_of(query: str) -> bytes:
    body = json.dumps({"queries": [query], "topk": 3, "return_scores": True}).encode()
    head = (
        f"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def drive(port: int, connections: int, seconds: float, queries: Callable[[], str]) -> Load:
    latencies: list[float] = []
    errors: dict[int, int] = {}
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while time.perf_counter() - began < seconds:
                sent = time.perf_counter()
                writer.write(request_of(queries()))
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                if head.startswith(b"HTTP/1.1 200"):
                    latencies.append(time.perf_counter() - sent)
                else:
                    status = int(head[9:12])
                    errors[status] = errors.get(status, 0) + 1
        except (OSError, asyncio.IncompleteReadError):
            errors[0] = errors.get(0, 0) + 1
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return Load(len(latencies), errors, time.perf_counter() - began, latencies)


def load(port: int, connections: int, seconds: float, queries: Callable[[], str]) -> Load:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(drive(port, connections, seconds, queries))
    assert not result.errors, f"errors by status: {result.errors}"
    return result


def counted() -> Callable[[], str]:
    numbers = iter(range(sys.maxsize))
    return lambda: f"query number {next(numbers)}"


def interleaved(
    names: Sequence[str], index: Path, rows: int, seconds: float, rounds: int
) -> dict[str, dict[str, float]]:
    """Medians over rounds; each round drives every server once, at 64 connections and at 1."""
    figures: dict[str, dict[str, list[float]]] = {
        name: {"per_second": [], "p50_ms": [], "idle_p50_ms": []} for name in names
    }
    for _ in range(rounds):
        for name in names:
            with running(name, index, rows) as (port, _pid):
                queries = counted()
                load(port, CONNECTIONS, min(1.0, seconds), queries)
                crowd = load(port, CONNECTIONS, seconds, queries)
                alone = load(port, 1, seconds, queries)
            for key, value in (
                ("per_second", crowd.per_second),
                ("p50_ms", crowd.quantile_ms(0.5)),
                ("idle_p50_ms", alone.quantile_ms(0.5)),
            ):
                figures[name][key].append(value)
        console.print({name: {key: round(values[-1], 2) for key, values in of.items()} for name, of in figures.items()})
    return {name: {key: statistics.median(values) for key, values in of.items()} for name, of in figures.items()}


# Measurements.


def stub(options: argparse.Namespace) -> dict[str, Any]:
    figures = interleaved(("fastapi", "stub"), Path(), 0, options.seconds, options.rounds)
    return {**figures, "ratio": figures["stub"]["per_second"] / figures["fastapi"]["per_second"], "goal": 5}


def dense(options: argparse.Namespace) -> dict[str, Any]:
    figures = interleaved(("single", "batched"), Path(), options.rows, options.seconds, options.rounds)
    ratio = figures["batched"]["per_second"] / figures["single"]["per_second"]
    idle = figures["batched"]["idle_p50_ms"] / figures["single"]["idle_p50_ms"]
    return {**figures, "ratio": ratio, "goal": 6, "idle_ratio": idle, "idle_goal": 1.1}


def words(draw: random.Random, count: int) -> str:
    """Words whose frequencies fall like those of a language (Zipf)."""
    return " ".join(f"w{int(WORDS ** draw.random())}" for _ in range(count))


def built_index(directory: Path, passages: int) -> Path:
    from factagent.retrieval.bm25 import write_index

    draw = random.Random(1)
    texts = (Passage(str(i), words(draw, 2), words(draw, 100)) for i in range(passages))
    with console.status(f"indexing {passages} passages of 100 words"):
        write_index(texts, directory / "index")
    return directory / "index"


def bm25(options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(2)
    with running("bm25", options.index, 0) as (port, _pid):
        load(port, CONNECTIONS, 1, lambda: words(draw, 7))
        found = load(port, CONNECTIONS, options.seconds * options.rounds, lambda: words(draw, 7))
    goal = {"per_second": 300, "p99_ms": 150}
    return {
        "per_second": found.per_second,
        "p99_ms": found.quantile_ms(0.99),
        "passages": options.passages,
        "goal": goal,
    }


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Half the queries come again (and hit the cache), half are new (and push others out of it)."""
    draw = random.Random(3)
    known = [words(draw, 7) for _ in range(1_000)]
    warm_up = max(2.0, options.soak * 0.1)
    with running("cached", options.index, 0) as (port, pid):
        queries: Callable[[], str] = lambda: draw.choice(known) if draw.random() < 0.5 else words(draw, 7)  # noqa: E731
        load(port, CONNECTIONS, warm_up, queries)
        before, replies, began = resident_kib(pid), 0, time.perf_counter()
        while time.perf_counter() - began < options.soak:
            replies += load(port, CONNECTIONS, min(10.0, options.soak), queries).replies
            console.print(f"{time.perf_counter() - began:.0f} s, {replies} replies, {resident_kib(pid)} KiB resident")
        after = resident_kib(pid)
    growth = after / before - 1
    return {"seconds": options.soak, "replies": replies, "errors": 0, "rss_kib": [before, after], "rss_growth": growth}


def fuzz(options: argparse.Namespace) -> int:
    with running("bm25", options.index, 0) as (port, _pid):
        command = [str(Path(sys.executable).with_name("st")), "run", f"http://127.0.0.1:{port}/openapi.json"]
        command += [f"--max-examples={options.fuzz}", "--generation-database=none"]
        return subprocess.run(command, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="stub,dense,bm25,soak")
    parser.add_argument("--soak", type=float)
    parser.add_argument("--passages", type=int)
    parser.add_argument("--fuzz", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--index", type=Path, help="a BM25 index to use instead of one built for the run")
    parser.add_argument("--rows", type=int, default=60_000, help="rows of the dense matrix")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.index, options.rows)
        return
    options.seconds, options.rounds = (1.0, 1) if options.quick else (5.0, 5)
    options.soak = options.soak or (5.0 if options.quick else 600.0)
    options.passages = options.passages or (5_000 if options.quick else 100_000)
    wanted = [] if options.fuzz else options.only.split(",")
    measurements = {"stub": stub, "dense": dense, "bm25": bm25, "soak": soak}
    with tempfile.TemporaryDirectory() as scratch:
        if options.index is None and (options.fuzz or {"bm25", "soak"} & set(wanted)):
            options.index = built_index(Path(scratch), options.passages)
        if options.fuzz:
            sys.exit(fuzz(options))
        report = {name: measurements[name](options) for name in wanted}
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
