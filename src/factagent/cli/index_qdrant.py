"""`factagent index upload`: a dense index into a Qdrant collection."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def upload(
    directory: Path,
    *,
    qdrant: str,
    collection: str,
    timeout_s: int = 60,
    quantise: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Load a dense index into a Qdrant collection. The same command goes on where it was interrupted.

    Args:
        directory: A dense index.
        qdrant: URL of the server, such as http://127.0.0.1:6333; its key is read from FACTAGENT_QDRANT_API_KEY.
        collection: Collection to create or to go on with.
        timeout_s: Seconds for connecting and for each read and write of a request.
        quantise: Keep an int8 copy of the vectors in the server's memory and scan that first.
    """
    from factagent.cli.stages import stages_shown
    from factagent.retrieval.dense.index import open_vectors
    from factagent.retrieval.dense.manifest import read_dense_manifest
    from factagent.retrieval.passages import PassageStore
    from factagent.retrieval.qdrant import CollectionRecord, connect
    from factagent.retrieval.qdrant import upload as load

    manifest = read_dense_manifest(directory)
    record = CollectionRecord(
        encoder=manifest.encoder,
        dimension=manifest.dimension,
        passages=manifest.passages,
        vectors=manifest.vectors_sha256,
    )
    vectors, passages = open_vectors(directory, manifest), PassageStore(directory)
    client = connect(qdrant, timeout_s=timeout_s)
    try:
        with stages_shown() as report:
            count = load(client, collection, record, vectors, passages, quantise=quantise, report=report)
    finally:
        client.close()
    print(f"{qdrant}, collection {collection}: {count} passages of {manifest.dimension} dimensions")
