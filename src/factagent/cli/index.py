"""`factagent index`: retrieval indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from factagent.errors import UsageError

if TYPE_CHECKING:
    from factagent.retrieval.manifest import BM25Settings


def build(
    *,
    corpus: Path,
    out: Path,
    kind: Literal["bm25", "dense"] = "bm25",
    k1: float = 0.9,
    b: float = 0.4,
    method: Literal["lucene", "robertson", "atire"] = "lucene",
    stop_words: Literal["none", "en"] = "none",
    shard_words: int = 8_000_000,
    encoder: str | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    threads: int = 1,
    shard_size: int = 65_536,
    batch_size: int = 64,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Index a corpus. The same command goes on where it was interrupted.

    Args:
        corpus: Passages in any format that `factagent data show` knows, or a folder of documents.
        out: Directory to write; it must not exist, unless --force is given and it holds an index.
        kind: What kind of index.
        k1: BM25: term-frequency saturation, above 0.
        b: BM25: length normalisation, 0 to 1.
        method: BM25: variant of the formula.
        stop_words: BM25: words to leave out of passages and queries: none, or Lucene's English list.
        shard_words: BM25: words counted before the work is saved; memory is about 30 bytes for each. The index is the
            same for every value.
        encoder: Dense, needed: minilm, e5-base-v2, or any sentence-transformers model or directory.
        device: Dense: auto, cpu, cuda or cuda:N.
        precision: Dense: what passages are embedded in; bf16 is several times faster where the hardware has it.
        threads: Dense: of torch.
        shard_size: Dense: passages embedded before the work is saved.
        batch_size: Dense: texts encoded at once.
        query_prefix: Dense: before each query, instead of what the encoder's family or its files say.
        passage_prefix: Dense: before each passage, likewise.
        force: Replace the index in the output directory; start again where corpus or settings are no longer those of
            an interrupted build.
    """
    if kind == "dense":
        from factagent.cli.index_dense import build_dense_index

        build_dense_index(
            corpus,
            out,
            encoder,
            device=device,
            precision=precision,
            threads=threads,
            shard_size=shard_size,
            batch_size=batch_size,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            force=force,
        )
        return
    if encoder is not None:
        raise UsageError(f"--encoder {encoder} belongs to dense indexes; add --kind dense")
    _build_bm25(corpus, out, _bm25_settings(k1, b, method, stop_words), shard_words, force)


def verify(directory: Path) -> None:
    """Read a whole index and compare it with its manifest.

    Args:
        directory: The index.
    """
    from factagent.retrieval.bm25 import BM25Index
    from factagent.retrieval.opening import index_format

    if index_format(directory) == "factagent-dense":
        from factagent.cli.index_dense import verify_dense_index

        verify_dense_index(directory)
        return
    index = BM25Index.load(directory, verify=False)
    index.verify()
    print(f"{directory}: {len(index)} passages; every file is as it was written")


def _build_bm25(corpus: Path, out: Path, settings: BM25Settings, shard_words: int, force: bool) -> None:
    from factagent.data.sources import open_corpus
    from factagent.retrieval.bm25_build import write_index
    from factagent.retrieval.building import ChangedBuildError
    from factagent.rows import STDIN

    once = str(corpus) in STDIN  # what has been read to compare it cannot be read again to start again
    with _progress() as report:
        write = partial(write_index, settings=settings, overwrite=force, shard_words=shard_words, report=report)
        try:
            manifest = write(open_corpus(corpus), out, restart=force and once)
        except ChangedBuildError:
            if not force:
                raise
            manifest = write(open_corpus(corpus), out, restart=True)
    print(f"{out}: {manifest.passages} passages, {manifest.terms} words, corpus {manifest.corpus_sha256[:12]}")


def _bm25_settings(k1: float, b: float, method: str, stop_words: str) -> BM25Settings:
    from pydantic import ValidationError

    from factagent.retrieval.manifest import BM25Settings

    try:
        return BM25Settings.model_validate({"k1": k1, "b": b, "method": method, "stop_words": stop_words})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--{first['loc'][0]} {first['input']}: {first['msg']}") from error


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar a stage on standard error, with what is done a second."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} {task.fields[unit]}, {task.fields[rate]:,.0f} a second"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                unit = "postings" if stage == "scoring" else "passages"
                tasks[stage] = bars.add_task(stage, total=total, unit=unit, rate=0)
            task = bars.tasks[bars.task_ids.index(tasks[stage])]
            bars.update(task.id, completed=done, rate=task.speed or 0)

        yield report
