"""`factagent index`: retrieval indexes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def build(
    *,
    corpus: Path,
    out: Path,
    k1: float = 0.9,
    b: float = 0.4,
    method: Literal["lucene", "robertson", "atire"] = "lucene",
    stop_words: Literal["none", "en"] = "none",
    force: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Index a corpus for BM25 search.

    Args:
        corpus: JSONL file of passages {"id", "title", "text"} (.gz and .zst too).
        out: Directory to write; it must not exist, unless --force is given and it holds an index.
        k1: Term-frequency saturation, above 0.
        b: Length normalisation, 0 to 1.
        method: Variant of the formula.
        stop_words: Words to leave out of passages and queries: none, or Lucene's English list.
        force: Replace the index in the output directory.
    """
    from pydantic import ValidationError
    from rich.console import Console
    from rich.progress import track

    from factagent.data.corpus import iter_passages
    from factagent.errors import UsageError
    from factagent.retrieval.bm25 import write_index
    from factagent.retrieval.manifest import BM25Settings

    try:
        settings = BM25Settings(k1=k1, b=b, method=method, stop_words=stop_words)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--{first['loc'][0]} {first['input']}: {first['msg']}") from error
    passages = track(iter_passages(corpus), "reading passages", console=Console(file=sys.stderr), transient=True)
    manifest = write_index(passages, out, settings, overwrite=force)
    print(f"{out}: {manifest.passages} passages, {manifest.terms} words, corpus {manifest.corpus_sha256[:12]}")
