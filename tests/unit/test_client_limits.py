"""No network client in the package is made without time-outs (reliability.md, R8): read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CLIENTS = {
    "httpx": {"Client", "AsyncClient"},
    "httpx2": {"Client", "AsyncClient"},
    "openai": {"OpenAI", "AsyncOpenAI", "DefaultHttpxClient", "DefaultAsyncHttpxClient"},
    "qdrant_client": {"QdrantClient", "AsyncQdrantClient"},
}
"""Library -> constructors that take `timeout=`; httpx and openai have defaults, but ours must be chosen."""

ONE_SHOT = {"get", "post", "put", "patch", "delete", "head", "options", "request", "stream"}
"""Functions of the same libraries that open a connection for one call."""

FORBIDDEN = {"requests", "urllib3", "aiohttp", "urllib.request", "http.client"}
"""Libraries without a total of time-outs that could be checked here; the package uses httpx."""


def imported(tree: ast.AST) -> dict[str, str]:
    """Local name -> dotted name of everything that a module imports, wherever it does."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def problems(source: str) -> Iterator[str]:
    """Each call that opens connections without a time-out, and each forbidden library, with its line."""
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{node.lineno}: imports {m}" for m in modules if m in FORBIDDEN)
        if isinstance(node, ast.Call):
            library, _, name = dotted(node.func, names).rpartition(".")
            opens = name in CLIENTS.get(library, ()) or (library in CLIENTS and name in ONE_SHOT)
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            value = given.get("timeout", given.get("http_client"))  # a client inside is looked at where it is made
            if opens and (value is None or (isinstance(value, ast.Constant) and value.value is None)):
                yield f"{node.lineno}: {library}.{name} without timeout="


def test_no_client_in_the_package_lacks_time_outs(repository: Path) -> None:
    found = {
        f"{path.relative_to(repository)}:{problem}"
        for path in sorted((repository / "src").rglob("*.py"))
        for problem in problems(path.read_text("utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import httpx\nhttpx.AsyncClient(timeout=5)", 0),
        ("import httpx\nhttpx.AsyncClient()", 1),
        ("import httpx\nhttpx.AsyncClient(timeout=None)", 1),
        ("import httpx as h\nh.Client(base_url='x')", 1),
        ("from httpx import AsyncClient as Pool\nPool()", 1),
        ("def f():\n    import openai\n    return openai.AsyncOpenAI(max_retries=0)", 1),
        ("import openai\nopenai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient())", 1),
        ("from qdrant_client import QdrantClient\nQdrantClient(url='x')", 1),
        ("import httpx\nhttpx.get('x')", 1),
        ("import requests", 1),
        ("from urllib.request import urlopen", 1),
        ("from urllib.parse import urlsplit", 0),
        ("def post(): ...\npost()", 0),
    ],
)
def test_the_check_sees_what_it_should(source: str, count: int) -> None:
    assert len(list(problems(source))) == count


def test_the_package_has_clients_to_check(repository: Path) -> None:
    source = "\n".join(path.read_text("utf-8") for path in (repository / "src").rglob("*.py"))
    assert "httpx.AsyncClient(" in source
