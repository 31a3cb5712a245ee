"""Dense retrieval from a Qdrant server, and loading it with the vectors of a dense index.

A collection holds a point a passage: its number is the passage's position, its payload `id`, `title` and `text`. The
collection's metadata says which encoder made the vectors and which vectors they are. The key of a server that wants one
is read from the environment variable `FACTAGENT_QDRANT_API_KEY` and from nowhere else.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from factagent.errors import MissingExtraError, UsageError
from factagent.retrieval.base import RetrievalError
from factagent.retrieval.dense.manifest import EncoderRecord, EncoderSettings
from factagent.types import Passage

if TYPE_CHECKING:
    from factagent.retrieval.dense.vectors import VectorShards

API_KEY_VARIABLE = "FACTAGENT_QDRANT_API_KEY"
PREFIX = "qdrant+"
DEFAULT_TIMEOUT_S = 30
BATCH = 256
"""Points in one request: about 2 MB of JSON at 768 dimensions."""
TIE_MARGIN = 8
"""Passages asked for beyond `top_k`, so that those with equal scores at its border come by position."""
_METADATA_KEY = "factagent"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class CollectionRecord(BaseModel):
    """What a collection's metadata says about the index it was loaded from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: EncoderRecord
    dimension: int = Field(ge=1)
    passages: int = Field(ge=1)
    vectors: str
    """Identity of the vectors."""


class QueryEncoder(Protocol):
    """What turns queries into vectors; `TextEncoder` is one."""

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


class PassageSource(Protocol):
    """Passages by position."""

    def passage(self, position: int) -> Passage: ...


class QdrantRetriever:
    """A dense retriever (`base.Retriever`) over a collection.

    Args:
        client: a `QdrantClient`, local or of a server.
        collection: its name.
        encoder: of the queries.
        exact: compare the query with every vector instead of using the server's graph.
    """

    def __init__(self, client: Any, collection: str, encoder: QueryEncoder, *, exact: bool = False) -> None:
        self._client, self._collection, self._encoder, self._exact = client, collection, encoder, exact
        # Local mode keeps its points in Python objects, which searches and uploads share.
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """The passages whose vectors have the largest inner product with the query's.

        Raises:
            RetrievalError: the server is not there, refused, took too long, or sent what is no result.
            ValueError: `top_k` is below 1.
        """
        from qdrant_client import models

        if top_k < 1:
            raise ValueError(f"top_k={top_k}: must be at least 1")
        if not queries:
            return []
        params = models.SearchParams(exact=self._exact)
        asked = [
            models.QueryRequest(query=row, limit=top_k + TIE_MARGIN, with_payload=True, params=params)
            for row in self._encoder.queries(queries).tolist()
        ]
        with _typed_errors(self._collection), _held(self._client, self._lock):
            answers = self._client.query_batch_points(self._collection, asked)
        if len(answers) != len(queries):
            raise RetrievalError(f"Qdrant sent {len(answers)} results for {len(queries)} queries")
        return [self._best(answer.points, top_k) for answer in answers]

    def _best(self, points: Sequence[Any], top_k: int) -> tuple[Passage, ...]:
        for point in points:
            if not isinstance(point.id, int) or not math.isfinite(point.score):
                raise RetrievalError(f"collection '{self._collection}': point {point.id!r} with score {point.score!r} "
                                     "is none of ours; load it with: factagent index upload")  # fmt: skip
        ordered = sorted(points, key=lambda point: (-point.score, point.id))[:top_k]
        return tuple(self._passage(point) for point in ordered)

    def _passage(self, point: Any) -> Passage:
        identifier, title, text = ((point.payload or {}).get(name) for name in ("id", "title", "text"))
        if not (isinstance(identifier, str) and isinstance(title, str) and isinstance(text, str)):
            raise RetrievalError(f"collection '{self._collection}': point {point.id} lacks id, title or text; load it "
                                 "with: factagent index upload")  # fmt: skip
        return Passage(identifier, title, text, float(point.score))


def connect(url: str, *, timeout_s: int = DEFAULT_TIMEOUT_S) -> Any:
    """A client of the server at `url`, of local mode in memory (":memory:"), or of local mode in a directory.

    Args:
        url: http:// or https:// with host and port, or the place of local mode.
        timeout_s: seconds for connecting and for each read and write of a request.

    Raises:
        MissingExtraError: qdrant-client is not installed.
        UsageError: the URL is malformed, or a key would travel unencrypted to another machine.
    """
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise MissingExtraError.of("qdrant_client", "qdrant") from error
    if url == ":memory:":
        return QdrantClient(":memory:", timeout=timeout_s)
    if "://" not in url:
        return QdrantClient(path=url, timeout=timeout_s, force_disable_check_same_thread=True)
    try:
        parts = urlsplit(url)
        port = parts.port or 6333
    except ValueError as error:
        raise UsageError(f"Qdrant URL {url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise UsageError(f"Qdrant URL {url}: must look like http://HOST:6333, with the key in {API_KEY_VARIABLE}")
    key = os.environ.get(API_KEY_VARIABLE) or None
    if key and parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS:
        raise UsageError(f"Qdrant URL {url}: a key goes over https only; use https:// or unset {API_KEY_VARIABLE}")
    # The key is a header, because the client's own parameter warns even about loopback.
    headers = {"api-key": key} if key else None
    return QdrantClient(
        host=parts.hostname, port=port, https=parts.scheme == "https", prefix=parts.path.strip("/") or None,
        timeout=timeout_s, headers=headers, check_compatibility=False,
    )  # fmt: skip


def open_qdrant(
    spec: str, *, encoder: str | None = None, device: str = "auto", threads: int = 1, timeout_s: int = DEFAULT_TIMEOUT_S
) -> QdrantRetriever:
    """The retriever that `qdrant+http://HOST:PORT/COLLECTION` names.

    Args:
        spec: the collection's address.
        encoder: where the query encoder lies, if not where the metadata says.
        device: of the encoder.
        threads: of torch.
        timeout_s: seconds for connecting and for each read and write of a request.

    Raises:
        UsageError: the address is malformed, or the encoder is not the one that made the vectors.
        RetrievalError: the server is not there, or the collection is none of ours, or was not loaded to its end.
    """
    from factagent.retrieval.dense.encode import TextEncoder
    from factagent.retrieval.dense.exact import open_device

    address, _, collection = spec.removeprefix(PREFIX).rpartition("/")
    if "://" not in address or not collection:
        raise UsageError(f"retriever '{spec}': must look like {PREFIX}http://HOST:6333/COLLECTION")
    client = connect(address, timeout_s=timeout_s)
    record = read_record(client, collection)
    stored = count_points(client, collection)
    if stored != record.passages:
        raise RetrievalError(f"collection '{collection}' holds {stored} of {record.passages} passages; go on with: "
                             f"factagent index upload DIR --qdrant {address} --collection {collection}")  # fmt: skip
    settings = EncoderSettings.model_validate(record.encoder.model_dump(include=set(EncoderSettings.model_fields)))
    settings = settings.model_copy(update={"name": encoder}) if encoder else settings
    loaded = TextEncoder(settings, device=str(open_device(device)), threads=threads)
    if loaded.weights_sha256() != record.encoder.weights_sha256:
        raise UsageError(f"collection '{collection}': its vectors were made by other weights than those of "
                         f"'{loaded.name}'; give the encoder it was built with ('{record.encoder.name}')")  # fmt: skip
    return QdrantRetriever(client, collection, loaded)


def upload(
    client: Any,
    collection: str,
    record: CollectionRecord,
    vectors: VectorShards,
    passages: PassageSource,
    *,
    quantise: bool = False,
    report: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> int:
    """Load an index into a collection, created where it is not there; run again to go on. Returns the points.

    Points are written in the order of positions and each batch is waited for, so the number of points that are there
    tells where to go on; writing one again changes nothing. Vectors stay fp16 and on the server's disk.

    Args:
        client: a `QdrantClient`.
        collection: its name.
        record: what the collection is to say about itself.
        vectors: a row a passage.
        passages: by position.
        quantise: keep an int8 copy of the vectors in the server's memory and scan that first.
        report: told of progress.

    Raises:
        UsageError: the collection is there with other vectors.
        RetrievalError: the server failed, or the collection holds another number of points at the end.
    """
    from qdrant_client import models

    with _typed_errors(collection):
        if not client.collection_exists(collection):
            _create(client, collection, record, quantise)
    if read_record(client, collection) != record:
        raise UsageError(f"collection '{collection}' holds other vectors than this index; choose another name")
    begin = min(count_points(client, collection), len(vectors)) // BATCH * BATCH
    for start in range(begin, len(vectors), BATCH):
        stop = min(start + BATCH, len(vectors))
        found = [passages.passage(position) for position in range(start, stop)]
        rows = vectors.read(start, stop).astype(np.float32)
        if not np.isfinite(rows).all():
            raise RetrievalError(f"vectors {start} to {stop} hold NaN or infinity; encode the corpus again")
        payloads = [{"id": one.id, "title": one.title, "text": one.text} for one in found]
        batch = models.Batch(ids=list(range(start, stop)), vectors=rows.tolist(), payloads=payloads)
        with _typed_errors(collection):
            client.upsert(collection, batch, wait=True)
        report("upload", stop, len(vectors))
    stored = count_points(client, collection)
    if stored != len(vectors):
        raise RetrievalError(f"collection '{collection}' holds {stored} points after {len(vectors)} were written; "
                             "somebody else writes to it: delete it and load it again")  # fmt: skip
    return stored


def read_record(client: Any, collection: str) -> CollectionRecord:
    """What the collection says about itself.

    Raises:
        RetrievalError: the server failed, or the collection is not there or none of ours.
    """
    with _typed_errors(collection):
        metadata = client.get_collection(collection).config.metadata or {}
    try:
        return CollectionRecord.model_validate(metadata.get(_METADATA_KEY))
    except ValidationError as error:
        raise RetrievalError(f"collection '{collection}' was not loaded by factagent (its metadata lacks "
                             f"'{_METADATA_KEY}'); load it with: factagent index upload") from error  # fmt: skip


def count_points(client: Any, collection: str) -> int:
    """How many points the collection holds."""
    with _typed_errors(collection):
        return int(client.count(collection, exact=True).count)


def _create(client: Any, collection: str, record: CollectionRecord, quantise: bool) -> None:
    from qdrant_client import models

    int8 = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
    client.create_collection(
        collection,
        vectors_config=models.VectorParams(
            size=record.dimension, distance=models.Distance.DOT, datatype=models.Datatype.FLOAT16, on_disk=True
        ),
        on_disk_payload=True,
        quantization_config=models.ScalarQuantization(scalar=int8) if quantise else None,
        metadata={_METADATA_KEY: record.model_dump(mode="json")},
    )


@contextmanager
def _held(client: Any, lock: threading.Lock) -> Iterator[None]:
    """Hold the lock where the client is in local mode; a server takes requests side by side."""
    if "url" in client.init_options and client.init_options["host"]:
        yield
        return
    with lock:
        yield


@contextmanager
def _typed_errors(collection: str) -> Iterator[None]:
    """Turn what qdrant-client raises into RetrievalError."""
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ApiException, ResponseHandlingException

    try:
        yield
    except (ApiException, QdrantException, ValueError, AttributeError) as error:
        source = error.source if isinstance(error, ResponseHandlingException) else error
        problem = " ".join(f"{type(source).__name__}: {source}".split())[:300]
        raise RetrievalError(f"Qdrant collection '{collection}': {problem}; is the server up, and the collection "
                             "loaded (factagent index upload)?") from error  # fmt: skip
