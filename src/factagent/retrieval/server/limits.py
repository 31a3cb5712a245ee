"""What a request may ask for: bounds on its body, queries, their length and the number of passages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields

from starlette.requests import ClientDisconnect, Request

from factagent.errors import UsageError
from factagent.retrieval.wire import Call, RequestError

BODY_TIMEOUT_S = 30.0
"""How long a client may take to send its body."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one request may hold.

    Search-R1's trainer posts the queries of a whole batch at once; a server for it needs larger bounds than these.

    Raises:
        UsageError: a bound below 1.
    """

    queries: int = 64
    query_bytes: int = 2_048
    """UTF-8 bytes of one query."""
    top_k: int = 100
    body_bytes: int = 262_144

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise UsageError(f"the limit {field.name}={value} must be at least 1")

    def check(self, call: Call) -> None:
        """Raise RequestError (422) where the call exceeds a bound; the message says by how much."""
        text_field, count_field, *_ = call.form.fields
        if len(call.queries) > self.queries:
            problem = f"holds {len(call.queries)} queries; at most {self.queries} are allowed in one request"
            raise RequestError(422, "too_many_queries", problem, text_field)
        if call.top_k is not None and call.top_k > self.top_k:
            problem = f"asks for {call.top_k} passages; at most {self.top_k} are allowed"
            raise RequestError(422, "top_k_too_large", problem, count_field)
        for i, query in enumerate(call.queries):
            # A character has at most four bytes; most queries need no count.
            if len(query) * 4 > self.query_bytes and (size := len(query.encode())) > self.query_bytes:
                field = f"{text_field}[{i}]" if call.form.takes_many else text_field
                problem = f"has {size} bytes; at most {self.query_bytes} are allowed in one query"
                raise RequestError(422, "query_too_long", problem, field)


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request, refused as soon as it is known to exceed `limit` bytes.

    Raises:
        RequestError: too long (413), or not here within `BODY_TIMEOUT_S` (408).
        ClientDisconnect: the client went away.
    """
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    # Nearly every body is whole in the first message; one that never begins is an idle connection.
    body, more = await _part(request)
    if len(body) > limit:
        raise _too_large(limit)
    if not more:
        return body
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _rest(request, body, limit)
    except TimeoutError:
        raise RequestError(408, "body_too_slow", f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None


async def _rest(request: Request, body: bytes, limit: int) -> bytes:
    more = True
    while more:
        part, more = await _part(request)
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    return body


async def _part(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> RequestError:
    return RequestError(413, "body_too_large", f"the body exceeds {limit} bytes; send fewer queries at once")
