"""`factagent index plan` and `factagent index approximate`: which index fits a machine, and the one that does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    from factagent.retrieval.plan import Need


def plan(
    *,
    passages: int,
    dimension: int = 768,
    ram: str | None = None,
    vram: str | None = None,
    disk: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Say what each kind of index needs in memory and on disk, and suggest one that fits.

    Args:
        passages: How many passages; Wiki-18 has 21,015,324.
        dimension: Length of a vector: 768 for E5-base, 384 for MiniLM.
        ram: Memory, such as 24GiB; what is free here by default.
        vram: Memory of one GPU, such as 80GiB; what is free here by default.
        disk: Disk space, such as 100GB; unlimited by default.
        as_json: Print JSON.
    """
    import json

    from factagent.retrieval.free_memory import free_gpu_memory, free_memory
    from factagent.retrieval.plan import as_row, commands, suggest
    from factagent.retrieval.plan import plan as plan_kinds

    memory = free_memory() if ram is None else _bytes("ram", ram)
    room = None if disk is None else _bytes("disk", disk)
    gpus = list(free_gpu_memory().values()) if vram is None else [_bytes("vram", vram)]
    needs = plan_kinds(passages, dimension)
    chosen = suggest(passages, dimension, memory, disk=room, gpu_memory=gpus)
    if not as_json:
        _print_plan(needs, chosen, passages, dimension, memory, room, gpus)
        return
    rows = [as_row(one, memory, room) for one in needs]
    suggestion = None if chosen is None else {"kind": chosen.kind, "commands": commands(chosen.kind)}
    print(json.dumps({"memory": memory, "gpu_memory": gpus, "disk": room, "kinds": rows, "suggestion": suggestion}))


def approximate(
    directory: Path,
    *,
    preset: Literal["ivf-sq8", "ivf-rabitq"],
    target: float = 0.97,
    nlist: int | None = None,
    nprobe: int | None = None,
    rerank: int | None = None,
    queries: Path | None = None,
    sample: int = 256,
    part_rows: int = 500_000,
    threads: int = 1,
    seed: int = 0,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Build an approximate index beside the vectors of a dense index, and measure its recall against exact search.

    The same command goes on where it was interrupted.

    Args:
        directory: A dense index, or a directory with Search-R1's e5_Flat.index and wiki-18.jsonl.
        preset: ivf-sq8 keeps 8 bits of each dimension, ivf-rabitq one bit.
        target: Recall among the best 3 that nprobe is chosen for.
        nlist: Inverted lists; by default the power of two nearest to 2 sqrt(passages).
        nprobe: Lists that a query looks into; by default as few as reach the target.
        rerank: Candidates scored again with the stored vectors, 0 for none; by default 10 and 50.
        queries: Vectors of real queries (.npy, a row each) to measure recall with; by default passages with noise.
        sample: How many queries measure recall.
        part_rows: Vectors that are added before the work is saved.
        threads: Threads of faiss.
        seed: Decides the training sample and the queries.
        force: Replace an approximate index that is there.
    """
    from factagent.cli.stages import stages_shown
    from factagent.retrieval.dense.approximate_build import ApproximateSettings, build_approximate
    from factagent.retrieval.dense.approximate_manifest import APPROXIMATE_DIRECTORY
    from factagent.retrieval.dense.stored import open_stored_vectors

    settings = ApproximateSettings(preset, nlist, nprobe, rerank, target, sample, seed, threads, part_rows)
    out = directory / APPROXIMATE_DIRECTORY
    vectors, identity = open_stored_vectors(directory)
    given = None if queries is None else _query_vectors(queries, vectors.dimension)
    with stages_shown() as report:
        manifest = build_approximate(
            vectors,
            identity,
            directory / APPROXIMATE_DIRECTORY,
            settings,
            queries=given,
            overwrite=force,
            report=report,
        )
    recall = manifest.recall
    print(
        f"{out}: {manifest.passages} vectors, {manifest.bytes_per_vector:.0f} bytes each, "
        f"recall@{recall.at} {recall.measured:.3f} ({recall.queries} {recall.source} queries) at nprobe "
        f"{manifest.nprobe} of {manifest.nlist}, rerank {manifest.rerank}"
    )


def _bytes(option: str, text: str) -> int:
    """A size such as 24GiB.

    Raises:
        UsageError: it is none.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    from factagent.errors import UsageError

    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError as error:
        raise UsageError(f"--{option} {text}: is no size; write it like 24GiB or 500MB") from error


def _query_vectors(path: Path, dimension: int) -> NDArray[float32]:
    import numpy as np

    from factagent.errors import DataError
    from factagent.retrieval.passages import map_array

    if not path.is_file():
        raise DataError(f"{path}: there is no such file; give a .npy file with a vector a row")
    rows = map_array(path)
    if rows.ndim != 2 or rows.shape[1] != dimension or not np.issubdtype(rows.dtype, np.floating):
        raise DataError(f"{path}: {rows.dtype} of shape {rows.shape}; expected vectors, (n, {dimension})")
    if not np.isfinite(rows).all():
        raise DataError(f"{path}: holds NaN or infinity; encode the queries again")
    return np.array(rows, np.float32)


def _print_plan(
    needs: list[Need],
    chosen: Need | None,
    passages: int,
    dimension: int,
    memory: int,
    disk: int | None,
    gpus: list[int],
) -> None:
    from rich.console import Console
    from rich.table import Table

    from factagent.retrieval.plan import PROCESS_BYTES, commands, gib

    table = Table("kind", title=f"{passages:,} passages, {dimension} dimensions")
    for name in ("memory", "disk", "recall@3", "queries/s, 2 cores", "figures", "fits"):
        table.add_column(name, justify="left" if name == "figures" else "right")
    for one in needs:
        recall = "other ranking" if one.recall is None else f"{one.recall:.2f}"
        fits = "yes" if one.fits(memory, disk) else "no"
        speed = f"{one.queries_per_second:,.3g}"
        table.add_row(one.kind, gib(one.memory), gib(one.disk), recall, speed, one.source, fits)
    console = Console()
    console.print(table)
    rooms = [f"memory {gib(memory)}", *(f"GPU {gib(room)}" for room in gpus)] + ([f"disk {gib(disk)}"] if disk else [])
    console.print(f"available: {', '.join(rooms)}; beside the index {gib(PROCESS_BYTES)} for the process")
    if chosen is None:
        console.print("no dense kind fits: use bm25, a larger machine, or several servers that hold a part each")
        return
    console.print(f"suggested: {chosen.kind}")
    for command in commands(chosen.kind):
        console.print(f"  {command}", highlight=False)
