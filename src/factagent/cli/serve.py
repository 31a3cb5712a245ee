"""`factagent serve`: give a retriever to others over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sized
from typing import TYPE_CHECKING

from factagent.errors import UsageError

if TYPE_CHECKING:
    from factagent.retrieval.base import Retriever


def retrieval(
    *,
    index: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    top_k: int = 3,
    token_env: str | None = None,
    threads: int = 1,
    device: str = "auto",
    encoder: str | None = None,
    max_queue: int = 4096,
    max_batch: int = 256,
    cache: int = 10_000,
    max_queries: int = 64,
    max_query_bytes: int = 2_048,
    max_top_k: int = 100,
    max_body_bytes: int = 262_144,
) -> None:
    """Serve searches in the forms of Search-R1, verl-agent, ReSearch and ZeroSearch.

    Args:
        index: What to search: a directory of any kind of index, several fused (A+B), or the URL of another server.
        host: Address to listen on; the default is reachable from this machine only.
        port: Port to listen on; 0 takes a free one.
        top_k: Passages for a query whose request does not say how many.
        token_env: Environment variable that holds a token which every request must bear.
        threads: Threads of one search.
        device: Where encoders and exact dense search run: auto, cpu or cuda.
        encoder: Where the query encoder of a dense index lies now, if it was moved.
        max_queue: Queries that may wait; beyond that requests get 503 at once.
        max_batch: Queries in one search.
        cache: Results kept in memory; 0 for none.
        max_queries: Queries in one request.
        max_query_bytes: Bytes (UTF-8) of one query.
        max_top_k: Passages that a request may ask for.
        max_body_bytes: Bytes of the body of one request.
    """
    from factagent.retrieval.opening import describe, open_retriever
    from factagent.retrieval.server.limits import Limits
    from factagent.retrieval.server.run import ServerSettings, serve

    limits = Limits(max_queries, max_query_bytes, max_top_k, max_body_bytes)
    settings = ServerSettings(host, port, top_k, _token(token_env), max_queue, max_batch, cache, limits)
    kind = describe(index)["kind"]
    serve(
        lambda: open_retriever(index, threads=threads, device=device, encoder=encoder),
        settings,
        lambda url, retriever: _announce(url, kind, retriever),
    )


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise UsageError(f"--token-env {variable}: this environment variable is not set or empty; put the token there")
    return token


def _announce(url: str, kind: object, retriever: Retriever) -> None:
    size = f", {len(retriever)} passages" if isinstance(retriever, Sized) else ""
    print(f"serving {url} ({kind}{size})", flush=True)
