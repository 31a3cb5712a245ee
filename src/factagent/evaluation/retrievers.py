"""The retriever of an evaluation: an index, a corpus that is indexed first, or a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from factagent.errors import ConfigError
from factagent.evaluation.config import RetrieverConfig
from factagent.retrieval.base import AsyncRetriever, InThread, Retriever

if TYPE_CHECKING:
    from factagent.retrieval.remote import RemoteRetriever


@contextmanager
def open_blocking(config: RetrieverConfig) -> Iterator[Retriever]:
    """The retriever for lock-step batches."""
    if not config.is_server:
        yield _open_here(config)
        return
    from factagent.retrieval.remote import SyncRetriever

    with SyncRetriever(_client(config)) as retriever:
        yield retriever


@asynccontextmanager
async def open_async(config: RetrieverConfig) -> AsyncIterator[AsyncRetriever]:
    """The retriever for the event loop: a server is asked many things at once, an index by one thread."""
    if not config.is_server:
        yield InThread(_open_here(config))
        return
    async with _client(config) as retriever:
        yield retriever


def _open_here(config: RetrieverConfig) -> Retriever:
    """Open an index, or index a corpus for BM25.

    Raises:
        ConfigError: the corpus is not there.
        DataError: the index or the corpus cannot be read.
    """
    if config.corpus is None:
        from factagent.retrieval.opening import open_retriever

        return open_retriever(str(config.spec))
    from factagent.data.sources import open_corpus
    from factagent.retrieval.bm25 import BM25Index

    if not config.corpus.exists():
        raise ConfigError(f"retriever.corpus: {config.corpus} does not exist; correct the path")
    return BM25Index.build(open_corpus(config.corpus))


def _client(config: RetrieverConfig) -> RemoteRetriever:
    from factagent.retrieval.remote import RemoteRetriever

    return RemoteRetriever(str(config.spec), config.protocol, token_env=config.token_env)
