"""A loopback HTTP server that misbehaves on request, for tests and benchmarks of every client.

    with FaultyServer(reply, fault="hang") as server:
        ...  # ask server.url

`reply(path, body)` makes the healthy answer, so one server plays a retriever, a chat endpoint, or anything else.
`fault` may be changed while it runs; with `times=n` only the next n requests meet the fault, the others are answered.
`stop()` and `start()` take it down and bring it back on the same port. Run as a program it serves until it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import BinaryIO, NamedTuple

Reply = Callable[[str, bytes], bytes]
"""Path and body of a request -> JSON of the healthy answer."""

HUGE = 100 << 20
"""Bytes of a body that nobody should read to its end."""

DRIP_S = 0.05
"""Seconds between two bytes of a slow drip: no read time-out sees it, only a total budget does."""

RETRY_AFTER_S = 1


class Request(NamedTuple):
    """One request as it came over the wire; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def retrieval_reply(path: str, body: bytes) -> bytes:
    """A Search-R1 answer: `topk` passages a query, each with the query in its text; other paths answer `{}`."""
    if not path.startswith("/retrieve"):
        return b"{}"
    asked = json.loads(body)
    queries = asked["queries"] if "queries" in asked else [asked["query"]]

    def item(query: str, rank: int) -> dict[str, object]:
        document = {"id": f"{query}/{rank}", "contents": f'"Title {rank}"\nabout {query}'}
        return {"document": document, "score": 1.0 / (rank + 1)}

    return json.dumps({"result": [[item(q, i) for i in range(asked.get("topk") or 3)] for q in queries]}).encode()


def chat_reply(path: str, body: bytes) -> bytes:
    """A chat completion that says "hello", as a stream of events where it is asked for one."""
    names = {"id": "chat-1", "created": 0, "model": "stand-in"}
    if body and json.loads(body).get("stream"):
        first = {"index": 0, "delta": {"role": "assistant", "content": "hello"}, "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        chunks = [{**names, "object": "chat.completion.chunk", "choices": [choice]} for choice in (first, last)]
        return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return json.dumps({**names, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def _head(status: str, length: int | None, *headers: str) -> bytes:
    sized = () if length is None else (f"Content-Length: {length}",)
    lines = (f"HTTP/1.1 {status}", "Content-Type: application/json", *sized, "Connection: close", *headers)
    return "\r\n".join((*lines, "", "")).encode()


def _send(connection: socket.socket, body: bytes, status: str = "200 OK", *headers: str) -> None:
    connection.sendall(_head(status, len(body), *headers) + body)


def _reset(connection: socket.socket) -> None:
    """Close with a TCP reset instead of a farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class FaultyServer:
    """The server. `requests` is what it was asked, `connections` how many were made, `url` where it listens.

    Args:
        reply: the healthy answer.
        fault: a name of `FAULTS`.
        times: how many requests meet the fault before the server recovers; None for all.
        port: 0 takes a free one.
    """

    def __init__(
        self, reply: Reply = retrieval_reply, fault: str = "none", *, times: int | None = None, port: int = 0
    ) -> None:
        self.reply = reply
        self.fault = fault
        self.times = times
        self.requests: list[Request] = []
        self.connections = 0
        self.port = port
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> FaultyServer:
        """Listen. The fault `refused` takes a port and then listens to nobody."""
        if self.fault not in FAULTS:
            raise ValueError(f"unknown fault {self.fault!r}; known are {', '.join(FAULTS)}")
        if self.fault == "gzip_bomb":
            _bomb()  # made before anybody waits for it
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        if self.fault == "refused":
            listener.close()
            return self
        listener.listen(128)
        self._stopping.clear()
        self._listener = listener
        self._spawn(self._accept, listener)
        return self

    def stop(self) -> None:
        """Stop listening and cut every open connection, as a killed process does."""
        self._stopping.set()
        if self._listener is not None:
            # shutdown wakes the thread in accept(); close alone would leave it there.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            open_now, self._connections = self._connections, set()
        for connection in open_now:
            with contextlib.suppress(OSError):  # closed by its own thread in this moment
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=5)
        self._threads = []

    def __enter__(self) -> FaultyServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _spawn(self, target: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
                self.connections += 1
            self._spawn(self._converse, connection)

    def _converse(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(30)
            self._answer(connection)
        except OSError:
            pass  # the client went away, or stop() cut the connection: both are what tests are about
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while (request := _read(stream)) is not None:
                with self._lock:
                    self.requests.append(request)
                    fault = self.fault if self.times is None or self.times > 0 else "none"
                    if self.times is not None:
                        self.times -= 1
                if not FAULTS[fault](self, connection, request):
                    return
        finally:
            stream.close()

    # One method a fault; True keeps the connection open for another request.

    def _healthy(self, connection: socket.socket, request: Request) -> bool:
        body = self.reply(request.path, request.body)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return True

    def _stale(self, connection: socket.socket, request: Request) -> bool:
        """Promises to keep the connection and closes it: what an idle time-out of a server looks like."""
        self._healthy(connection, request)
        return False

    def _hang(self, connection: socket.socket, request: Request) -> bool:
        self._stopping.wait()
        return False

    def _reset_now(self, connection: socket.socket, request: Request) -> bool:
        _reset(connection)
        return False

    def _no_reply(self, connection: socket.socket, request: Request) -> bool:
        return False

    def _reset_mid_body(self, connection: socket.socket, request: Request) -> bool:
        body = self.reply(request.path, request.body)
        connection.sendall(_head("200 OK", len(body)) + body[: len(body) // 2])
        time.sleep(0.05)  # let the first half arrive: a reset discards what is still in the buffers
        _reset(connection)
        return False

    def _drip(self, connection: socket.socket, data: bytes) -> bool:
        for index in range(len(data)):
            connection.sendall(data[index : index + 1])
            if self._stopping.wait(DRIP_S):
                break
        return False

    def _drip_body(self, connection: socket.socket, request: Request) -> bool:
        body = self.reply(request.path, request.body) + b" " * 100_000
        connection.sendall(_head("200 OK", len(body)))
        return self._drip(connection, body)

    def _drip_head(self, connection: socket.socket, request: Request) -> bool:
        return self._drip(connection, _head("200 OK", 2, "X-Pad: " + "x" * 100_000) + b"{}")

    def _half_json(self, connection: socket.socket, request: Request) -> bool:
        _send(connection, self.reply(request.path, request.body)[:-5])
        return False

    def _nan(self, connection: socket.socket, request: Request) -> bool:
        """The healthy answer with `NaN` in place of every number with a decimal point, as Python's json writes it."""
        _send(connection, re.sub(rb"\d+\.\d+", b"NaN", self.reply(request.path, request.body)))
        return False

    def _huge(self, connection: socket.socket, request: Request) -> bool:
        connection.sendall(_head("200 OK", HUGE) + b'{"result": "')
        self._pour(connection, HUGE)
        return False

    def _endless(self, connection: socket.socket, request: Request) -> bool:
        """A body in chunks that announces no length and never ends."""
        connection.sendall(_head("200 OK", None, "Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        while not self._stopping.is_set():
            connection.sendall(chunk)
        return False

    def _pour(self, connection: socket.socket, size: int) -> None:
        piece = b"x" * (1 << 20)
        for _ in range(size >> 20):
            if self._stopping.is_set():
                return
            connection.sendall(piece)

    def _gzip_bomb(self, connection: socket.socket, request: Request) -> bool:
        _send(connection, _bomb(), "200 OK", "Content-Encoding: gzip")
        return False

    def _redirect(self, connection: socket.socket, request: Request) -> bool:
        hop = len(self.requests)
        _send(connection, b"", "307 Temporary Redirect", f"Location: {self.url}{request.path.split('?')[0]}?hop={hop}")
        return False

    def _cut_chunks(self, connection: socket.socket, request: Request) -> bool:
        body = self.reply(request.path, request.body)
        half = body[: len(body) // 2]
        connection.sendall(_head("200 OK", None, "Transfer-Encoding: chunked") + b"%x\r\n%b\r\n" % (len(half), half))
        return False

    def _length_too_long(self, connection: socket.socket, request: Request) -> bool:
        body = self.reply(request.path, request.body)
        connection.sendall(_head("200 OK", len(body) + 10) + body)
        return False

    def _length_too_short(self, connection: socket.socket, request: Request) -> bool:
        body = self.reply(request.path, request.body)
        connection.sendall(_head("200 OK", len(body) - 10) + body)
        return False

    def _echo_error(self, connection: socket.socket, request: Request) -> bool:
        """An error that shows the request's secrets, as debug pages do."""
        _send(connection, request.headers.get("authorization", "").encode(), "500 Internal Server Error")
        return False

    def _echo_garbage(self, connection: socket.socket, request: Request) -> bool:
        """No HTTP, but the request's secrets."""
        connection.sendall(b"you sent " + request.headers.get("authorization", "").encode() + b"\r\n\r\n")
        return False

    def _many_headers(self, connection: socket.socket, request: Request) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not self._stopping.is_set():
            connection.sendall(b"X-Pad: " + b"x" * 8000 + b"\r\n")
        return False


def _read(stream: BinaryIO) -> Request | None:
    """The next request of a connection; None at its end."""
    lines: list[bytes] = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        lines.append(line.rstrip(b"\r\n"))
    if not lines or len(parts := lines[0].decode("latin-1").split()) != 3:
        return None
    pairs = (line.decode("latin-1").partition(":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = stream.read(int(headers.get("content-length", 0)))
    return Request(parts[0], parts[1], headers, body)


@cache
def _bomb() -> bytes:
    """100 MB of blanks in less than 1 MB."""
    return gzip.compress(b" " * HUGE, compresslevel=1)


Fault = Callable[[FaultyServer, socket.socket, Request], bool]


def _sends(body: bytes, status: str = "200 OK", *headers: str) -> Fault:
    """A fault that answers every request with these bytes as the body of a well-formed response."""

    def send(server: FaultyServer, connection: socket.socket, request: Request) -> bool:
        _send(connection, body, status, *headers)
        return False

    return send


def _blurts(data: bytes) -> Fault:
    """A fault that answers with these bytes, which are no HTTP."""

    def blurt(server: FaultyServer, connection: socket.socket, request: Request) -> bool:
        connection.sendall(data)
        return False

    return blurt


_OOPS = b'{"detail": "something went wrong"}'

FAULTS: dict[str, Fault] = {
    "none": FaultyServer._healthy,
    "refused": FaultyServer._no_reply,  # never reached: start() does not listen
    "hang": FaultyServer._hang,
    "reset": FaultyServer._reset_now,
    "no_reply": FaultyServer._no_reply,
    "stale": FaultyServer._stale,
    "reset_mid_body": FaultyServer._reset_mid_body,
    "drip_body": FaultyServer._drip_body,
    "drip_head": FaultyServer._drip_head,
    "status_400": _sends(_OOPS, "400 Bad Request"),
    "status_401": _sends(_OOPS, "401 Unauthorized"),
    "status_404": _sends(_OOPS, "404 Not Found"),
    "status_500": _sends(_OOPS, "500 Internal Server Error"),
    "status_502": _sends(b"<html>bad gateway</html>", "502 Bad Gateway"),
    "status_503": _sends(_OOPS, "503 Service Unavailable"),
    "status_504": _sends(_OOPS, "504 Gateway Timeout"),
    "status_429": _sends(_OOPS, "429 Too Many Requests"),
    "status_429_retry_after": _sends(_OOPS, "429 Too Many Requests", f"Retry-After: {RETRY_AFTER_S}"),
    "status_429_retry_after_hours": _sends(_OOPS, "429 Too Many Requests", "Retry-After: 7200"),
    "status_204": _sends(b"", "204 No Content"),
    "huge_error": _sends(b"x" * (8 << 20), "500 Internal Server Error"),
    "empty_body": _sends(b""),
    "html": _sends(b"<html><body>Welcome to the proxy</body></html>"),
    "half_json": FaultyServer._half_json,
    "deep_json": _sends(b"[" * 200_000 + b"]" * 200_000),
    "not_utf8": _sends(b'{"result": "\xff\xfe"}'),
    "wrong_schema": _sends(b'{"unexpected": [1, 2, 3]}'),
    "wrong_type": _sends(b'"just a string"'),
    "nan_scores": FaultyServer._nan,
    "huge_body": FaultyServer._huge,
    "endless_body": FaultyServer._endless,
    "gzip_bomb": FaultyServer._gzip_bomb,
    "bad_gzip": _sends(b"this is not gzip", "200 OK", "Content-Encoding: gzip"),
    "redirect_loop": FaultyServer._redirect,
    "cut_chunks": FaultyServer._cut_chunks,
    "length_too_long": FaultyServer._length_too_long,
    "length_too_short": FaultyServer._length_too_short,
    "many_headers": FaultyServer._many_headers,
    "echo_error": FaultyServer._echo_error,
    "echo_garbage": FaultyServer._echo_garbage,
    "garbage": _blurts(b"\x00\x01\x02 this is not HTTP \xff\xfe\r\n\r\n"),
    "tls": _blurts(b"\x15\x03\x01\x00\x02\x02\x46"),  # a TLS alert: "unexpected message, protocol version"
    "http2": _blurts(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
}
"""Fault -> what the server does. `none` is the healthy server."""


def main(arguments: list[str]) -> None:
    """Serve a fault until killed; the first line of standard output is the URL."""
    parser = argparse.ArgumentParser(description="A loopback HTTP server that misbehaves on request.")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--times", type=int, default=None, help="requests that meet the fault before it recovers")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--reply", choices=["retrieval", "chat"], default="retrieval")
    options = parser.parse_args(arguments)
    reply = chat_reply if options.reply == "chat" else retrieval_reply
    with FaultyServer(reply, options.fault, times=options.times, port=options.port) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
