"""What an index of N passages needs in memory and on disk, and which kind fits a machine. Pure functions over numbers.

Sizes are computed from the formats. Constants that are not sizes carry where they come from: `measured` (this
project's benchmarks, 2 cores), or `extrapolated` from a smaller measurement.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from factagent.errors import ServiceError, UsageError
from factagent.retrieval.dense.approximate_manifest import PRESETS, list_count
from factagent.retrieval.free_memory import GIB, free_gpu_memory, free_memory

logger = logging.getLogger(__name__)

Kind = Literal["bm25", "exact-fp32", "exact-bf16", "ivf-sq8", "ivf-rabitq"]
KINDS: tuple[Kind, ...] = ("exact-fp32", "exact-bf16", "ivf-sq8", "ivf-rabitq", "bm25")

PROCESS_BYTES = 3 * GIB // 2
"""Interpreter, torch and an encoder of E5-base's size in fp32 (0.44 GB of weights), with room for its batches."""
TEXT_BYTES = 690
"""Disk bytes of a passage's text and offset: Wiki-18 has 14 GB for 21M passages. Read as needed, not kept in memory."""
BM25_BYTES = 533
"""Index bytes of a passage: measured at 1M passages of about 100 words."""
BM25_QUERY_SECONDS = 1.66e-3 / 1e6
"""Seconds of a BM25 query for each passage: measured at 1M (one thread), grows linearly."""
EXACT_ROWS_PER_SECOND = {"exact-fp32": 32e6, "exact-bf16": 35e6}
"""Passages times queries a second at 768 dimensions in batches of 32 (two threads), measured at 100k passages."""
IVF_ROWS_PER_SECOND = {"ivf-sq8": 3.6e6, "ivf-rabitq": 9.7e6}
"""Codes compared a second at 768 dimensions (two threads), measured at 100k passages."""
SCANNED_SHARE = 64 / 4096
"""Share of the lists that a query looks into at recall@3 of about .95 over E5 vectors of Wikipedia, as others report
for 4,096 lists. The build measures the share for the vectors at hand: harder vectors need up to ten times as much."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one kind of index needs, and what it gives.

    `memory`: bytes that should stay in memory (for mapped indexes: in the page cache) beside `PROCESS_BYTES`.
    `disk`: bytes of its files, the passages included. `recall`: of the best 3 against exact search, None for BM25,
    which is another ranking. `queries_per_second`: on 2 cores. `source`: where recall and speed come from.
    """

    kind: Kind
    memory: int
    disk: int
    recall: float | None
    queries_per_second: float
    source: str

    def fits(self, memory: int, disk: int | None = None) -> bool:
        """True where it fits bytes of memory (the process included) and of disk."""
        return self.memory + PROCESS_BYTES <= memory and (disk is None or self.disk <= disk)


def need(kind: Kind, passages: int, dimension: int) -> Need:
    """What `kind` needs for so many passages.

    Raises:
        UsageError: a number below 1.
    """
    if passages < 1 or dimension < 1:
        raise UsageError(f"passages={passages}, dimension={dimension}: both must be at least 1")
    text = TEXT_BYTES * passages
    stored = 2 * dimension * passages
    if kind == "bm25":
        speed = 1 / (BM25_QUERY_SECONDS * passages)
        return Need(kind, BM25_BYTES * passages, BM25_BYTES * passages + text, None, speed, _source(passages, 1e6))
    if kind == "exact-fp32" or kind == "exact-bf16":
        held = stored * (2 if kind == "exact-fp32" else 1)
        speed = EXACT_ROWS_PER_SECOND[kind] * 768 / dimension / passages
        return Need(kind, held, stored + text, 1.0, speed, _source(passages, 1e5))
    lists = list_count(passages)
    codes = math.ceil(PRESETS[kind].bytes_per_vector(dimension)) * passages + 4 * dimension * lists
    speed = 1 / ((lists + SCANNED_SHARE * passages) * dimension / 768 / IVF_ROWS_PER_SECOND[kind])
    return Need(kind, codes, codes + stored + text, 0.95, speed, _source(passages, 1e5))


def plan(passages: int, dimension: int) -> list[Need]:
    """What every kind needs, the most memory first."""
    return sorted((need(kind, passages, dimension) for kind in KINDS), key=lambda one: -one.memory)


def suggest(
    passages: int, dimension: int, memory: int, *, disk: int | None = None, gpu_memory: Sequence[int] = ()
) -> Need | None:
    """The dense kind to use: exact in bf16 (on a GPU, else in memory), else the approximate kind with the largest codes
    that fits. None where none does.

    Exact in fp32 is never better: the bf16 scan is re-ranked to the same result.
    """
    exact = need("exact-bf16", passages, dimension)
    on_gpu = any(exact.memory + PROCESS_BYTES <= free for free in gpu_memory)
    if on_gpu and memory >= PROCESS_BYTES and (disk is None or exact.disk <= disk):
        return exact
    kinds: tuple[Kind, ...] = ("exact-bf16", "ivf-sq8", "ivf-rabitq")
    return next((one for one in (need(kind, passages, dimension) for kind in kinds) if one.fits(memory, disk)), None)


def commands(kind: Kind) -> list[str]:
    """The commands that build and serve an index of this kind."""
    if kind == "bm25":
        return ["factagent index build --kind bm25 --corpus FILE --out DIR", "factagent serve retrieval --index DIR"]
    made = ["factagent index build --kind dense --encoder e5-base-v2 --corpus FILE --out DIR"]
    made += [f"factagent index approximate DIR --preset {kind}"] if kind in PRESETS else []
    return [*made, "factagent serve retrieval --index DIR"]


def check_memory(kind: Kind, passages: int, dimension: int, *, gpu: int | None = None, free: int | None = None) -> None:
    """Say how much memory an index needs and how much is free, before it is loaded.

    Args:
        kind: of the index.
        passages: how many.
        dimension: of the vectors.
        gpu: number of the GPU that is to hold the vectors; None for the machine's memory.
        free: bytes; asked from the system by default.

    Raises:
        ServiceError: vectors that must be held do not fit; the message says what would. Mapped kinds (BM25, the
            approximate ones) work from the disk, slowly: there the advice is a warning.
    """
    wanted = need(kind, passages, dimension)
    if free is None:
        free = free_memory() if gpu is None else free_gpu_memory()[gpu]
    place = "memory" if gpu is None else "GPU memory"
    needed = f"{kind} index of {passages:,} passages: needs {gib(wanted.memory)} of {place}, {gib(free)} is free"
    if wanted.memory >= GIB:
        sys.stderr.write(f"factagent: {needed}\n")
    if wanted.memory <= free:
        logger.info("%s", needed)
        return
    advice = f"{needed}. {_advice(kind, passages, dimension, free if gpu is None else free_memory())}"
    if kind in ("exact-fp32", "exact-bf16"):
        raise ServiceError(advice)
    logger.warning("%s Searches will read from the disk.", advice)


def _advice(kind: Kind, passages: int, dimension: int, room: int) -> str:
    other = suggest(passages, dimension, room)
    if other is not None and other.kind in PRESETS and other.kind != kind:
        what = f"{other.kind} needs {gib(other.memory + PROCESS_BYTES)} in all: {commands(other.kind)[-2]}"
    else:
        what = "Nothing dense fits; use BM25, a larger machine, or several servers that hold a part each"
    return f"{what} (all kinds: factagent index plan --passages {passages} --dimension {dimension})."


def as_row(one: Need, memory: int, disk: int | None) -> dict[str, object]:
    """A need as plain data, with whether it fits."""
    return {**asdict(one), "process_memory": PROCESS_BYTES, "fits": one.fits(memory, disk)}


def gib(count: float) -> str:
    """Bytes in GiB, for people."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / (1 << 20):.0f} MiB"


def _source(passages: int, measured_at: float) -> str:
    return "measured" if passages <= 2 * measured_at else f"extrapolated from {measured_at:,.0f}"
