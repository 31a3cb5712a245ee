"""`factagent data prepare`: fetch the published question sets and Wiki-18, checked and resumable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from factagent.data.prepare import OutputRecord, Preparation
    from factagent.data.published import Item


def prepare(
    *,
    out: Path,
    only: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    no_corpus: Annotated[bool, Parameter(negative=())] = False,
    with_index: Annotated[bool, Parameter(negative=())] = False,
    endpoint: str | None = None,
    any_count: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Fetch the training set, the seven evaluation sets and Wiki-18, and write our rows beside a manifest.

    Prints one JSON object a file. Call it again to go on after an interruption; what is done is not fetched again.

    Args:
        out: Directory to fill.
        only: Sets to prepare: train, nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa, musique, bamboogle, wiki-18,
            wiki-18-index (default: all but the last).
        no_corpus: Leave out Wiki-18 (about 20 GB).
        with_index: Fetch Search-R1's E5 vectors of Wiki-18, too (about 65 GB).
        endpoint: Address of the hub or of a mirror (default: HF_ENDPOINT, else the public hub).
        any_count: Accept other numbers of rows than the published ones.
        dry_run: Say what would be fetched and how much room it takes, and stop.
    """
    from factagent.data.hub import Hub
    from factagent.data.prepare import Preparation
    from factagent.data.published import PUBLISHED, choose
    from factagent.errors import UsageError

    if only and (no_corpus or with_index):
        raise UsageError("--only names all that is prepared; leave out --no-corpus and --with-index")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--endpoint {endpoint}: must begin with http:// or https://")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is a file; name a directory")
    items = choose(PUBLISHED, only, corpus=not no_corpus, index=with_index)
    preparation = Preparation(out, items, Hub(endpoint), any_count=any_count, tell=_tell)
    for item in preparation.done:
        _print(preparation, item, preparation.manifest.files[item.file], "unchanged")
    if dry_run:
        _print_needs(preparation)
        return
    for item, record in preparation.run():
        _print(preparation, item, record, "written")


def _print(preparation: Preparation, item: Item, record: OutputRecord, state: str) -> None:
    from factagent.rows import write_row

    path = str(preparation.out / item.file)
    write_row({"file": path, "set": item.name, "state": state, "rows": record.rows, "bytes": record.bytes})


def _print_needs(preparation: Preparation) -> None:
    from factagent.rows import write_row

    for need in preparation.needs:
        path, urls = str(preparation.out / need.item.file), [file.url for file in need.files]
        write_row({"file": path, "set": need.item.name, "state": "needed", "bytes": need.bytes, "from": urls})
    if missing := preparation.missing_bytes:
        _tell(f"the disk lacks {missing / 1e9:,.1f} GB")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
