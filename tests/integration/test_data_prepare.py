"""`factagent data prepare` against a stand-in hub on loopback: the real client library, small files, real faults."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factagent.cli.app import main
from factagent.data import published
from factagent.data.corpus import row_of_passage
from factagent.data.dataset import read_questions
from factagent.data.prepare import Preparation, read_manifest
from factagent.data.published import CORPUS, INDEX, PUBLISHED, QUESTIONS, Item, Original, QuestionSet, originals_of
from factagent.data.sources import open_corpus
from factagent.errors import ServiceError
from factagent.types import Passage

pytest.importorskip("huggingface_hub")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

COMMIT = "1234567890" * 4
ROWS = {"nq": 3, "hotpotqa": 2}
"""Rows of a small original; the others hold one."""


def question_rows(name: str, split: str, count: int) -> bytes:
    rows = [
        {"id": f"{split}_{i}", "question": f"what is {name} {i}", "golden_answers": [f"{name} {i}"], "metadata": {}}
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def corpus_rows(count: int) -> bytes:
    rows = [{"id": str(i), "contents": f'"Title {i}"\nText of passage {i}.'} for i in range(count)]
    return gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), mtime=0)


class HubServer:
    """Speaks as the hub does: the listing, `resolve` with HEAD, ETag and commit, large files by redirect, ranges."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {QUESTIONS: {}, CORPUS: {}, INDEX: {}}
        self.sent: dict[str, bytes] = {}
        self.cut: dict[str, int] = {}
        """Path -> bytes after which the connection is cut, once."""
        self.hang: dict[str, int] = {}
        """Path -> bytes after which nothing comes any more."""
        self.requests: list[tuple[str, str, str]] = []
        self.authorized: list[str] = []
        self.agents: set[str] = set()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

        async def listing(request: Any) -> Response:
            self.note(request)
            repository = request.path_params["repository"]
            if repository not in self.files or request.path_params["revision"] not in ("main", COMMIT):
                return JSONResponse({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            siblings = [described(path, content) for path, content in self.files[repository].items()]
            return JSONResponse({"id": repository, "sha": COMMIT, "siblings": siblings})

        async def resolve(request: Any) -> Response:
            self.note(request)
            repository, path = request.path_params["repository"], request.path_params["path"]
            content = self.files.get(repository, {}).get(path)
            if content is None or request.path_params["revision"] != COMMIT:
                return Response("Entry not found", 404, {"X-Error-Code": "EntryNotFound"})
            digest = hashlib.sha256(content).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'}
            if is_large(path):
                storage = f"http://localhost:{self.port}/storage/{repository}/{path}"
                linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content)), "Location": storage}
                return Response("", 302, headers | linked)
            return self.body(request, path, content, headers)

        async def storage(request: Any) -> Response:
            self.note(request)
            path = request.path_params["path"]
            owner, name, file = path.split("/", 2)
            return self.body(request, file, self.files[f"{owner}/{name}"][file], {})

        return Starlette(
            routes=[
                Route("/api/datasets/{repository:path}/revision/{revision}", listing),
                Route("/datasets/{repository:path}/resolve/{revision}/{path:path}", resolve, methods=["GET", "HEAD"]),
                Route("/storage/{path:path}", storage),
            ]
        )

    def note(self, request: Any) -> None:
        self.requests.append((request.method, request.url.path, request.headers.get("range", "")))
        self.agents.add(request.headers["user-agent"])
        if "authorization" in request.headers:
            self.authorized.append(request.url.path)

    def body(self, request: Any, path: str, content: bytes, headers: dict[str, str]) -> Any:
        from starlette.responses import Response, StreamingResponse

        content, status = self.sent.get(path, content), 200
        wanted = request.headers.get("range")
        if wanted:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers = headers | {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            content, status = content[start:], 206
        if request.method == "HEAD":
            return Response("", status, headers | {"Content-Length": str(len(content))})
        cut, hang = self.cut.pop(path, None), self.hang.pop(path, None)

        async def pieces() -> Any:
            yield content[: next((n for n in (cut, hang) if n is not None), len(content))]
            if hang is not None:
                await asyncio.sleep(60)
            if cut is not None:
                raise ConnectionResetError("cut on purpose")

        return StreamingResponse(pieces(), status, headers | {"Content-Length": str(len(content))})

    def fetched(self, path: str) -> list[str]:
        """The range of each GET of a file's content."""
        return [r for method, at, r in self.requests if method == "GET" and at.endswith(path)]


def is_large(path: str) -> bool:
    return path.endswith(".gz") or path.startswith("part_")


def described(path: str, content: bytes) -> dict[str, object]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob}
    if is_large(path):
        entry["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
    return entry


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A running stand-in with small files; the published table asks for as many rows as they hold."""
    import logging

    from huggingface_hub import close_session, constants

    server = HubServer()
    monkeypatch.setattr(published, "PUBLISHED", tuple(map(shrunk, PUBLISHED)))
    for item in published.PUBLISHED:
        for original in originals_of(item):
            server.files[original.repository][original.path] = small_content(original)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    config = uvicorn.Config(server.app(), port=server.port, log_config=None, lifespan="off")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield server
    close_session()
    running.force_exit = running.should_exit = True
    thread.join()


def shrunk(item: Item) -> Item:
    if isinstance(item, QuestionSet):
        return replace(item, originals=tuple(replace(o, rows=rows_of(o)) for o in item.originals))
    rows = 5 if item.original.rows else None
    return replace(item, original=replace(item.original, rows=rows))


def rows_of(original: Original) -> int:
    return ROWS.get(original.path.partition("/")[0], 1)


def small_content(original: Original) -> bytes:
    if original.repository == QUESTIONS:
        name, _, split = original.path.removesuffix(".jsonl").partition("/")
        return question_rows(name, split, rows_of(original))
    return corpus_rows(5) if original.repository == CORPUS else original.path.encode() * 100


def prepare(hub: HubServer, out: Path, *arguments: str) -> int:
    return main(["data", "prepare", "--out", str(out), "--endpoint", hub.url, *arguments])


def test_everything_is_prepared_once(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data"
    assert prepare(hub, out, "--with-index") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["set"], row["state"], row["rows"]) for row in rows] == [
        ("train", "written", 5),
        ("nq", "written", 3),
        *((name, "written", 1) for name in ("triviaqa", "popqa")),
        ("hotpotqa", "written", 2),
        *((name, "written", 1) for name in ("2wikimultihopqa", "musique", "bamboogle")),
        ("wiki-18", "written", 5),
        ("wiki-18-index", "written", None),
        ("wiki-18-index", "written", None),
    ]
    train = read_questions(out / "nq_hotpotqa.train.jsonl")
    assert [q.id for q in train] == [*(f"nq:train_{i}" for i in range(3)), "hotpotqa:train_0", "hotpotqa:train_1"]
    test = read_questions(out / "nq.test.jsonl")
    assert (test[1].id, test[1].text, test[1].answers) == ("test_1", "what is nq 1", ("nq 1",))
    passages = list(open_corpus(out / "wiki-18" / "wiki-18.jsonl"))
    assert row_of_passage(passages[4]) == row_of_passage(Passage("4", "Title 4", "Text of passage 4."))
    assert (out / "wiki-18" / "part_ab").read_bytes() == b"part_ab" * 100
    manifest = read_manifest(out)
    assert manifest.revisions == dict.fromkeys((QUESTIONS, CORPUS, INDEX), COMMIT)
    for name, record in manifest.files.items():
        content = (out / name).read_bytes()
        assert (record.bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    origin = manifest.files["nq.test.jsonl"].originals[0]
    assert (origin.path, origin.revision) == ("nq/test.jsonl", COMMIT)
    # Nothing but these is left: no caches, no beginnings, and the corpus is there unpacked only.
    left = {path.name for path in out.rglob("*") if path.is_file()}
    splits = {"train.jsonl", "test.jsonl", "dev.jsonl"}
    assert left == {*(Path(name).name for name in manifest.files), *splits, "manifest.json", "lock"}
    # Nobody was told who calls.
    assert hub.authorized == []
    assert all("torch" not in agent and "; agent/" not in agent for agent in hub.agents)
    assert {path.split("/")[1] for _, path, _ in hub.requests} == {"api", "datasets", "storage"}

    before = len(hub.requests)
    assert prepare(hub, out, "--with-index") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["state"] for row in rows} == {"unchanged"}
    assert len(hub.requests) == before


def test_a_changed_file_is_made_again(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(hub, tmp_path, "--only", "nq", "bamboogle") == 0
    whole = (tmp_path / "nq.test.jsonl").read_bytes()
    (tmp_path / "nq.test.jsonl").write_bytes(whole.replace(b"nq 1", b"nq 9"))
    capsys.readouterr()
    assert prepare(hub, tmp_path, "--only", "nq", "bamboogle") == 0
    states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert states == ["unchanged", "written"]
    assert (tmp_path / "nq.test.jsonl").read_bytes() == whole
    assert hub.fetched("nq/test.jsonl") == [""]


def test_a_cut_connection_is_taken_up_behind_the_last_byte(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    # The client keeps whole chunks, of 10 MB where it is left alone.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 8)
    hub.cut["wiki-18.jsonl.gz"] = 40
    assert prepare(hub, tmp_path, "--only", "wiki-18") == 0
    assert hub.fetched("wiki-18.jsonl.gz") == ["", "bytes=40-"]
    assert len(list(open_corpus(tmp_path / "wiki-18" / "wiki-18.jsonl"))) == 5


def test_a_killed_download_goes_on_behind_its_last_byte(hub: HubServer, tmp_path: Path) -> None:
    chunk = 10 << 20
    hub.files[INDEX]["part_aa"] = bytes(range(256)) * (2 * chunk // 256) + b"the end"
    hub.hang["part_aa"] = chunk + 9
    command = [sys.executable, "-m", "factagent.cli", "data", "prepare", "--out", str(tmp_path / "out")]
    settings = {"HF_HUB_OFFLINE": "0", "HF_HUB_DOWNLOAD_TIMEOUT": "600", "HF_HOME": str(tmp_path / "home")}
    process = subprocess.Popen(
        [*command, "--only", "wiki-18-index", "--endpoint", hub.url],
        env=os.environ | settings,
        stderr=subprocess.PIPE,
    )
    try:
        while sum(path.stat().st_size for path in tmp_path.rglob("*.part")) < chunk:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "out" / "wiki-18" / "part_aa").exists()
    assert not (tmp_path / "home").exists()
    assert prepare(hub, tmp_path / "out", "--only", "wiki-18-index") == 0
    assert hub.fetched("part_aa") == ["", f"bytes={chunk}-"]
    assert (tmp_path / "out" / "wiki-18" / "part_aa").read_bytes() == hub.files[INDEX]["part_aa"]
    assert list(tmp_path.rglob("*.part")) == []


def test_a_killed_conversion_goes_on_with_what_was_fetched(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from factagent.data import prepare as preparing

    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "contents_passage", killed)
        assert prepare(hub, tmp_path, "--only", "nq", "wiki-18") == 130
    assert list(tmp_path.rglob("*.tmp")) == []
    assert prepare(hub, tmp_path, "--only", "nq", "wiki-18") == 0
    assert [hub.fetched(path) for path in ("nq/test.jsonl", "wiki-18.jsonl.gz")] == [[""], [""]]


def test_a_file_altered_on_its_way_is_refused(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = hub.files[QUESTIONS]["nq/test.jsonl"]
    hub.sent["nq/test.jsonl"] = content.replace(b"nq 1", b"nq 2")
    assert prepare(hub, tmp_path, "--only", "nq") == 65
    assert "nq/test.jsonl: what arrived does not have the hash" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.part")) == []
    assert not (tmp_path / "nq.test.jsonl").exists()
    hub.sent.clear()
    assert prepare(hub, tmp_path, "--only", "nq") == 0


def test_a_wrong_number_of_rows_is_named(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.files[QUESTIONS]["hotpotqa/train.jsonl"] = question_rows("hotpotqa", "train", 1)
    hub.files[CORPUS]["wiki-18.jsonl.gz"] = corpus_rows(1_004)
    assert prepare(hub, tmp_path, "--only", "train") == 65
    error = capsys.readouterr().err
    assert "hotpotqa/train.jsonl holds 1 rows, expected are 2; " in error
    assert not (tmp_path / "nq_hotpotqa.train.jsonl").exists()
    assert prepare(hub, tmp_path, "--only", "wiki-18") == 65
    assert "wiki-18 holds 1,004 rows, expected are 5; " in capsys.readouterr().err
    assert not (tmp_path / "wiki-18" / "wiki-18.jsonl").exists()
    assert prepare(hub, tmp_path, "--only", "train", "wiki-18", "--any-count") == 0
    # What was accepted once is not taken for the published file later.
    assert prepare(hub, tmp_path, "--only", "train") == 65
    assert "train holds 4 rows, expected are 5; " in capsys.readouterr().err


def test_a_malformed_row_is_named(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.files[QUESTIONS]["bamboogle/test.jsonl"] = b'{"id": "test_0", "question": "", "golden_answers": ["x"]}\n'
    assert prepare(hub, tmp_path, "--only", "bamboogle") == 65
    assert "bamboogle/test.jsonl:1: field 'question': must not be blank" in capsys.readouterr().err


def test_a_file_that_the_hub_lacks(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del hub.files[QUESTIONS]["musique/dev.jsonl"]
    assert prepare(hub, tmp_path, "--only", "musique") == 69
    assert f"{hub.url}/datasets/{QUESTIONS}: has no file musique/dev.jsonl" in capsys.readouterr().err
    del hub.files[QUESTIONS]
    assert prepare(hub, tmp_path, "--only", "nq") == 69
    assert "HTTP 404" in capsys.readouterr().err


def test_no_hub(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    assert main(["data", "prepare", "--out", str(tmp_path), "--endpoint", dead]) == 69
    error = capsys.readouterr().err
    assert f"{dead}/datasets/{QUESTIONS}: cannot be reached (ConnectError); check the network" in error
    assert "HF_ENDPOINT" in error


def test_offline(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert prepare(hub, tmp_path) == 69
    assert hub.requests == []


def test_a_dry_run_fetches_nothing(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new"
    assert prepare(hub, out, "--dry-run", "--no-corpus") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["set"] for row in rows] == [item.name for item in PUBLISHED if isinstance(item, QuestionSet)]
    assert rows[1]["from"] == [f"{hub.url}/datasets/{QUESTIONS}/resolve/{COMMIT}/nq/test.jsonl"]
    assert rows[1]["bytes"] == len(hub.files[QUESTIONS]["nq/test.jsonl"])
    assert not out.exists()
    assert {path.split("/")[1] for _, path, _ in hub.requests} == {"api"}


def test_a_small_disk_is_found_before_anything_is_fetched(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000))
    assert prepare(hub, tmp_path) == 69
    assert "the disk lacks 0.1 GB; make room" in capsys.readouterr().err
    assert {path.split("/")[1] for _, path, _ in hub.requests} == {"api"}


def test_a_second_process_is_told_to_wait(hub: HubServer, tmp_path: Path) -> None:
    from factagent.data.hub import Hub
    from factagent.retrieval.building import hold

    with hold(tmp_path):
        assert prepare(hub, tmp_path, "--only", "nq") == 75
    hub.files[QUESTIONS]["nq/test.jsonl"] += b""
    preparation = Preparation(tmp_path, [published.PUBLISHED[1]], Hub(hub.url))
    hub.files.clear()
    with pytest.raises(ServiceError, match=r"HTTP 404"):
        list(preparation.run())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nqq"], "no such set; choose among train, nq,"),
        (["--only", "nq", "--no-corpus"], "--only names all"),
        (["--endpoint", "huggingface.co"], "must begin with http"),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_broken_manifest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 2}')
    assert main(["data", "prepare", "--out", str(tmp_path)]) == 65
    assert "manifest.json: key 'format'" in capsys.readouterr().err


def test_the_published_numbers() -> None:
    rows = {item.file: sum(o.rows or 0 for o in originals_of(item)) for item in PUBLISHED}
    assert rows["nq_hotpotqa.train.jsonl"] == 169_615
    evaluated = [rows[item.file] for item in published.EVALUATION]
    assert evaluated == [3_610, 11_313, 14_267, 7_405, 12_576, 2_417, 125]
    assert sum(evaluated) == 51_713
