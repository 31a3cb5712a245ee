"""`factagent ask`: one question to an agent over documents of your own, or over an index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt

from factagent.errors import ServiceError, UsageError
from factagent.rows import write_row

if TYPE_CHECKING:
    from factagent.retrieval.base import Retriever


def ask(
    question: str,
    /,
    *,
    model: str,
    docs: Path | None = None,
    index: str | None = None,
    model_name: str | None = None,
    protocol: str = "factagent",
    prompt: str | None = None,
    top_k: PositiveInt = 3,
    max_rounds: PositiveInt = 8,
    max_tokens: PositiveInt | None = None,
    timeout_s: PositiveFloat = 1800.0,
    api_key_env: str = "OPENAI_API_KEY",
    json: Annotated[bool, Parameter(negative=())] = False,
    no_cache: Annotated[bool, Parameter(name="--no-cache", negative=())] = False,
) -> None:
    """Ask a question of your own documents; prints the answer, the facts behind it, and where they come from.

    On a terminal the rounds are shown on standard error while they are played. Without an answer the output says why,
    and the exit code is 0; a server that fails makes it 69.

    Args:
        question: The question.
        model: Base URL of an OpenAI-compatible API, a checkpoint directory, or "tiny" (the packaged policy).
        docs: Folder of .txt, .md, .html and .pdf files, or any corpus file; indexed for BM25, once.
        index: Instead of --docs: an index directory, several joined by +, or the URL of a search server.
        model_name: Name of the model at the API; without it the only one that the server lists.
        protocol: What the model reads and writes: factagent, react or search-r1.
        prompt: Prompt name or file; without it PROTOCOL-full, and PROTOCOL-terse for the tiny policy.
        top_k: Passages a search.
        max_rounds: Rounds, the answer included.
        max_tokens: Tokens a reply; without it 1024 at an API, 512 for a checkpoint, 128 for the tiny policy.
        timeout_s: Seconds for the whole question.
        api_key_env: Environment variable with the API's key.
        json: Print one JSON object instead.
        no_cache: Index --docs anew and keep nothing.
    """
    from factagent.cli.ask_session import AskSettings, record_of, run_ask
    from factagent.cli.ask_view import print_result, watch

    if not question.strip():
        raise UsageError("the question is empty")
    if (docs is None) == (index is None):
        raise UsageError("give either --docs DIR_OR_FILE or --index SPEC")
    settings = AskSettings(
        question.strip(), model, model_name, protocol, prompt, top_k, max_rounds, max_tokens, timeout_s, api_key_env
    )
    retriever = _documents(docs, no_cache) if docs is not None else _index(str(index))
    with watch(max_rounds, shown=sys.stderr.isatty()) as on_step:
        finished = run_ask(settings, retriever, on_step)
    if json:
        write_row(record_of(settings, finished))
    else:
        print_result(finished)
    if finished.error is not None:
        raise ServiceError(finished.error)


def _documents(docs: Path, no_cache: bool) -> Retriever:
    from factagent.cli.ask_view import indexing
    from factagent.data.sources import open_corpus
    from factagent.retrieval.bm25 import BM25Index
    from factagent.retrieval.document_cache import cache_directory, open_documents

    if not docs.exists():
        raise UsageError(f"--docs {docs}: does not exist")
    if no_cache:
        return BM25Index.build(open_corpus(docs))
    with indexing(shown=sys.stderr.isatty()) as report:
        return open_documents(docs, cache_directory(), report)


def _index(spec: str) -> Retriever:
    from factagent.retrieval.opening import open_retriever

    return open_retriever(spec)
