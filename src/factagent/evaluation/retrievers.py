"""The retriever of an evaluation: an index, a corpus that is indexed first, or a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from factagent.errors import ConfigError
from factagent.evaluation.config import RetrieverConfig
from factagent.retrieval.base import AsyncRetriever, InThread, Retriever


def open_blocking(config: RetrieverConfig) -> Retriever:
    """The retriever for lock-step batches.

    Raises:
        UsageError: `spec` names nothing that can be opened.
        DataError: the index or the corpus cannot be read.
    """
    if config.corpus is not None:
        from factagent.data.sources import open_corpus
        from factagent.retrieval.bm25 import BM25Index

        return BM25Index.build(open_corpus(config.corpus))
    from factagent.retrieval.opening import open_retriever

    options: dict[str, Any] = config.model_dump(include={"protocol", "token_env", "device", "encoder"})
    return open_retriever(str(config.spec), **options)


@asynccontextmanager
async def open_async(config: RetrieverConfig) -> AsyncIterator[AsyncRetriever]:
    """The retriever for the event loop: a server is asked many things at once, an index by one thread.

    Raises:
        UsageError, DataError: as `open_blocking`.
    """
    if not config.is_server:
        yield InThread(open_blocking(config))
        return
    from factagent.retrieval.remote import RemoteRetriever

    async with RemoteRetriever(str(config.spec), config.protocol, token_env=config.token_env) as retriever:
        yield retriever


def identify(config: RetrieverConfig) -> dict[str, object]:
    """What is searched, so that a resumed evaluation can tell whether it is still the same. Nothing is loaded.

    Raises:
        ConfigError: the corpus is not there.
        UsageError: `spec` names nothing that can be opened.
    """
    corpus = config.corpus
    if corpus is None:
        from factagent.retrieval.opening import describe

        found = describe(str(config.spec))
        # A server may move between sessions.
        return {key: value for key, value in found.items() if key != "url"}
    if not corpus.exists():
        raise ConfigError(f"retriever.corpus: {corpus} does not exist; correct the path")
    from factagent.data.formats import sha256_of

    return {"kind": "corpus", **({"sha256": sha256_of(corpus)} if corpus.is_file() else {})}
