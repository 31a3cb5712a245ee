"""Dense indexes on the command line: what `factagent index build --kind dense` and `index verify` do."""

from __future__ import annotations

import sys
from pathlib import Path

from factagent.errors import UsageError
from factagent.retrieval.building import ChangedBuildError, refuse_target
from factagent.retrieval.dense.embed import build_dense
from factagent.retrieval.dense.encode import TextEncoder, settings_of
from factagent.retrieval.dense.exact import open_device
from factagent.retrieval.dense.manifest import DenseManifest, read_dense_manifest, verify_dense_files
from factagent.retrieval.manifest import MANIFEST_NAME
from factagent.rows import STDIN
from factagent.sentence_models import Precision


def build_dense_index(
    corpus: Path,
    out: Path,
    encoder: str | None,
    *,
    device: str,
    precision: Precision,
    threads: int,
    shard_size: int,
    batch_size: int,
    query_prefix: str | None,
    passage_prefix: str | None,
    force: bool,
) -> None:
    """Embed a corpus; the same command goes on where it was interrupted."""
    if encoder is None:
        raise UsageError("a dense index needs --encoder: minilm, e5-base-v2, or a sentence-transformers directory")
    for name, value in (("threads", threads), ("batch-size", batch_size), ("shard-size", shard_size)):
        if value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    if str(corpus) in STDIN:
        raise UsageError("a dense index is built from a file: a build that goes on reads the corpus again")
    refuse_target(out, MANIFEST_NAME, force)  # before the model loads, which takes seconds
    model = TextEncoder(
        settings_of(encoder, query_prefix=query_prefix, passage_prefix=passage_prefix),
        device=str(open_device(device)),
        precision=precision,
        threads=threads,
        batch_size=batch_size,
    )
    try:
        manifest = _build(corpus, out, model, shard_size, force, restart=False)
    except ChangedBuildError:
        if not force:
            raise
        manifest = _build(corpus, out, model, shard_size, force, restart=True)
    print(
        f"{out}: {manifest.passages} passages, {manifest.dimension} dimensions, "
        f"{len(manifest.shards)} shards, corpus {manifest.corpus_sha256[:12]}"
    )


def verify_dense_index(directory: Path) -> None:
    """Compare every file of a dense index with its manifest."""
    manifest = read_dense_manifest(directory)
    verify_dense_files(directory, manifest, verify=True)
    print(f"{directory}: {manifest.passages} passages; every file is as it was written")


def _build(corpus: Path, out: Path, model: TextEncoder, shard_size: int, force: bool, restart: bool) -> DenseManifest:
    from factagent.data.sources import open_corpus

    # Reading it once before takes seconds a million, finds malformed rows before the hours of embedding begin, and
    # tells how much time is left.
    print(f"{corpus}: checking and counting passages", file=sys.stderr)
    total = sum(1 for _ in open_corpus(corpus))
    return build_dense(
        open_corpus(corpus), out, model, shard_size=shard_size, total=total, overwrite=force, restart=restart
    )
