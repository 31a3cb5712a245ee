"""Bar: the fault matrix. Each cell must end within its budget with a typed error; no failure may become a score.

- `retrieval`: every fault of `tests/fault/faulty_server.py` against `RemoteRetriever`.
- `endpoint`: the same against `EndpointPolicy`, streamed and not.
- `eval`: the faults of the bar against a whole `factagent eval` (a process of its own) with a server for retrieval;
  every question must be marked `retrieval_failed` and none be scored.
- `outage`: a retrieval server is killed in mid-evaluation and started again after `--outage` seconds. Each finished
  question must score as it does without the outage, and after `--resume` all of them must.

    python benchmarks/faults.py [--quick] [retrieval endpoint eval outage]

Exit code 1 where a cell is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from factagent.episode import Episode
from factagent.http import RetryRule, TimeLimits
from factagent.policies.base import GenerationRequest, PolicyError
from factagent.protocols import build_protocol
from factagent.retrieval.remote import RemoteRetrievalError, RemoteRetriever
from factagent.types import Question

BUDGET_S = 3.0
SLACK_S = 2.0
"""What a busy machine may add to a budget."""

EVAL_BUDGET_S = 600.0
EVAL_FAULTS = ("refused", "hang", "reset_mid_body", "drip_body", "status_500", "status_429", "half_json",
               "wrong_schema", "nan_scores", "huge_body", "redirect_loop")  # fmt: skip
QUICK_FAULTS = ("status_500", "half_json", "wrong_schema", "nan_scores", "huge_body")
FACTAGENT = (sys.executable, "-m", "factagent.cli")


class Cell(NamedTuple):
    """One cell: how it ended, whether that is as it must be."""

    ended: str
    seconds: float
    good: bool


def load_faulty() -> Any:
    """The misbehaving server of the tests."""
    path = Path(__file__).resolve().parents[1] / "tests" / "fault" / "faulty_server.py"
    spec = importlib.util.spec_from_file_location("faulty_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["faulty_server"] = module
    spec.loader.exec_module(module)
    return module


# Clients


async def search(url: str) -> str:
    """One search; the kind of its failure, or what it found."""
    limits = TimeLimits(connect_s=0.5, read_s=0.5, write_s=0.5, pool_s=0.5, total_s=BUDGET_S)
    rule = RetryRule(tries=3, first_wait_s=0.05)
    async with RemoteRetriever(url, limits=limits, retries=rule, max_reply_bytes=4 << 20) as retriever:
        try:
            found = await retriever.search(["a", "b"], 3)
        except RemoteRetrievalError as error:
            return f"error: {error.kind}"
        return "ok" if [len(passages) for passages in found] == [3, 3] else "WRONG RESULT"


def generate(stream: bool) -> Callable[[str], Any]:
    """One generation; `error` where it failed as it must, or what came back."""
    request = Episode(Question("q", "Where?", ("x",)), build_protocol("factagent", "factagent-terse")).request

    async def call(url: str) -> str:
        from factagent.policies.endpoint import EndpointPolicy
        from factagent.policies.endpoint_settings import EndpointSettings

        settings = EndpointSettings(
            url=f"{url}/v1", model="m", stream=stream, connect_timeout_s=0.5, write_timeout_s=0.5, pool_timeout_s=0.5,
            liveness_timeout_s=0.5, total_timeout_s=BUDGET_S, tries=3, first_wait_s=0.05, max_tokens=16,
        )  # fmt: skip
        async with EndpointPolicy(settings) as policy:
            try:
                reply = await policy.generate(GenerationRequest(request.messages, request.state, None, ()))
            except PolicyError:
                return "error"
            return "ok" if reply.text == "hello" else "WRONG REPLY"

    return call


def client_matrix(faulty: Any, reply: Any, call: Callable[[str], Any], harmless: tuple[str, ...]) -> dict[str, Cell]:
    """Every fault against a client; `harmless` faults may also end well."""
    cells = {}
    for fault in faulty.FAULTS:
        with faulty.FaultyServer(reply, fault) as server:
            began = time.monotonic()
            try:
                ended = asyncio.run(call(server.url))
            except Exception as error:  # noqa: BLE001 - what escapes is what the bar is about
                ended = f"UNTYPED {type(error).__name__}: {error}"
            seconds = time.monotonic() - began
        typed = ended.startswith("error") or (ended == "ok" and fault in harmless)
        cells[fault] = Cell(ended, seconds, typed and seconds <= BUDGET_S + SLACK_S)
    return cells


# Evaluation


def build_world(place: Path, questions: int) -> list[str]:
    """A small world with its index; the flags that every evaluation here shares."""
    from factagent.data.corpus import read_passages
    from factagent.data.world.build import build_world
    from factagent.data.world.config import WorldConfig
    from factagent.retrieval.bm25 import BM25Index

    world = place / "world"
    build_world(WorldConfig(entities=600, train=0, dev=questions, test=0, hops=(1, 2)), world)
    BM25Index.build(read_passages(world / "corpus.jsonl")).save(place / "index")
    flags = ["--model", "expert", "--questions", f"dev={world / 'qa.dev.jsonl'}"]
    return [*flags, "--set", f'model.facts="{world / "facts.jsonl"}"', "--set", "batch_size=1"]


def evaluate(url: str, out: Path, flags: list[str]) -> list[str]:
    """The command line of an evaluation with a server for retrieval."""
    return [*FACTAGENT, "eval", "--retriever", url, "--out", str(out), *flags]


def rows_of(run: Path) -> dict[str, dict[str, Any]]:
    """Question -> its last whole row."""
    path = run / "results.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return {row["id"]: row for row in map(json.loads, lines)}


def eval_cell(faulty: Any, fault: str, place: Path, flags: list[str]) -> Cell:
    """One evaluation against a server that only ever misbehaves."""
    out = place / f"eval-{fault}"
    with faulty.FaultyServer(fault=fault) as server:
        began = time.monotonic()
        command = [*evaluate(server.url, out, flags), "--limit", "2", "--set", "failures.patience_s=0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=EVAL_BUDGET_S, check=False)
        seconds = time.monotonic() - began
    rows = rows_of(out).values()
    failed = [row for row in rows if row["stop_reason"] == "retrieval_failed" and row["error"]]
    means = json.loads((out / "summary.json").read_text("utf-8")) if (out / "summary.json").exists() else {}
    good = done.returncode == 75 and len(failed) == len(rows) == 2 and means.get("failed") == 2
    said = "" if good else " " + done.stderr.strip()[-300:]
    return Cell(f"exit {done.returncode}, {len(failed)} of {len(rows)} marked{said}", seconds, good)


def eval_matrix(faulty: Any, faults: tuple[str, ...], place: Path) -> dict[str, Cell]:
    """Evaluations wait more than they work, so four run at a time."""
    flags = build_world(place, 8)
    with ThreadPoolExecutor(4) as threads:
        cells = threads.map(lambda fault: eval_cell(faulty, fault, place, flags), faults)
        return dict(zip(faults, cells, strict=True))


# Outage


@contextmanager
def serving(index: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """`factagent serve retrieval` in a process; killed at the end, if not before."""
    command = [*FACTAGENT, "serve", "retrieval", "--index", str(index), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def scores(rows: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """What a question was answered and how it scored, for those that were not failed by a server."""
    kept = {key: row for key, row in rows.items() if row["stop_reason"] != "retrieval_failed"}
    return {key: (row["answer"], row["em"], row["f1"], row["searches"]) for key, row in kept.items()}


def outage(place: Path, questions: int, down_s: float) -> dict[str, Cell]:
    """A server that is killed in mid-evaluation and comes back."""
    flags, port = build_world(place, questions), free_port()
    url, calm, run = f"http://127.0.0.1:{port}", place / "calm", place / "outage"
    began = time.monotonic()
    with serving(place / "index", port):
        subprocess.run(evaluate(url, calm, flags), check=True, capture_output=True)
    expected = scores(rows_of(calm))
    with serving(place / "index", port) as server:
        # The share of failures is left to the comparison below; the pause of the command is another bar's matter.
        running = subprocess.Popen(
            [*evaluate(url, run, flags), "--set", "failures.share=0.9"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        while len(rows_of(run)) < questions // 10 and running.poll() is None:
            time.sleep(0.02)
        server.kill()
        answered = len(rows_of(run))
        time.sleep(down_s)
    with serving(place / "index", port):
        _, said = running.communicate()
        after = rows_of(run)
        wrong = sum(expected[key] != score for key, score in scores(after).items())
        failed = len(after) - len(scores(after))
        first = running.returncode == 0 and wrong == 0 and len(after) == questions and answered < questions
        text = f"killed after {answered} of {questions} rows; exit {running.returncode}, {failed} failed, {wrong} wrong"
        cells = {"killed": Cell(text if first else f"{text} {said.decode()[-300:]}", time.monotonic() - began, first)}
        began = time.monotonic()
        resumed = subprocess.run([*FACTAGENT, "eval", "--resume", str(run)], capture_output=True, check=False)
    final = scores(rows_of(run))
    same = [(calm / name).read_bytes() == (run / name).read_bytes() for name in ("summary.json",)]
    good = resumed.returncode == 0 and final == expected and all(same)
    text = f"exit {resumed.returncode}, {len(final)} of {questions} rows as without outage, summary equal: {all(same)}"
    return {**cells, "resumed": Cell(text, time.monotonic() - began, good)}


def show(title: str, cells: dict[str, Cell]) -> bool:
    """Print a part; true where every cell is good."""
    bad = [name for name, cell in cells.items() if not cell.good]
    print(f"\n{title}: {len(cells) - len(bad)} of {len(cells)} as they must be")
    for name, cell in cells.items():
        print(f"  {'  ' if cell.good else '! '}{name:30} {cell.seconds:6.2f} s  {cell.ended}", flush=True)
    return not bad


def main() -> int:
    """Run the parts that were asked for."""
    parts = ("retrieval", "endpoint", "eval", "outage")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (all)")
    parser.add_argument("--quick", action="store_true", help="few evaluations, a short outage")
    parser.add_argument("--outage", type=float, default=30.0, help="seconds that the server is down")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(parts):
        parser.error(f"unknown part {sorted(unknown)[0]}; choose of {', '.join(parts)}")
    chosen = options.parts or parts
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    faulty, good = load_faulty(), True
    whole = ("none", "stale")
    if "retrieval" in chosen:
        good &= show("retrieval client", client_matrix(faulty, faulty.retrieval_reply, search, whole))
    if "endpoint" in chosen:
        # A reply without fractions has no NaN; a stream that breaks after its last event was whole.
        after_its_end = ("half_json", "length_too_long", "length_too_short")
        for stream in (False, True):
            harmless = (*whole, "nan_scores", *(after_its_end if stream else ()))
            cells = client_matrix(faulty, faulty.chat_reply, generate(stream), harmless)
            good &= show(f"endpoint policy, {'streamed' if stream else 'whole replies'}", cells)
    with tempfile.TemporaryDirectory() as folder:
        if "eval" in chosen:
            (place := Path(folder) / "eval").mkdir()
            good &= show("evaluation", eval_matrix(faulty, QUICK_FAULTS if options.quick else EVAL_FAULTS, place))
        if "outage" in chosen:
            (place := Path(folder) / "outage").mkdir()
            sizes = (40, 3.0) if options.quick else (400, options.outage)
            good &= show("outage", outage(place, *sizes))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
