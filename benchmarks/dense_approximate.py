"""Approximate search over real-text vectors (issue 3, bar 2): recall@3, speed against the bare faiss call, sizes.

For both presets: recall@3 against exact search (half of the questions choose `nprobe`, the other half measures it),
queries a second of ours and of faiss alone, interleaved, at the same nprobe and with the same candidates (`IndexRefine`
over fp16 vectors where candidates are scored again), bytes a vector, build seconds, and the plan for 21M in 24 GiB.

    python benchmarks/dense_approximate.py [--rows 200000] [--quick] [--threads 1] [--out FILE]

The vectors are those of `dense_vectors.py`: real text, not a trained encoder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dense_vectors import DenseVectors, dense_vectors
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from factagent.retrieval.dense.approximate import ApproximateIndex, load_faiss
from factagent.retrieval.dense.approximate_build import ApproximateSettings, build_approximate
from factagent.retrieval.dense.approximate_manifest import PRESETS
from factagent.retrieval.dense.calibration import recall, sample_of
from factagent.retrieval.dense.vectors import VectorShards
from factagent.retrieval.free_memory import GIB
from factagent.retrieval.plan import PROCESS_BYTES, need


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each call, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def bare_faiss(index: ApproximateIndex, shards: VectorShards, queries: NDArray[np.float32], threads: int) -> Any:
    """faiss alone at the same setting: the same lists and candidates, re-ranked by `IndexRefine` over fp16 vectors."""
    faiss = load_faiss()
    inner, settings = index._index, index.settings
    parameters = index._parameters(settings.nprobe)
    if not settings.rerank:
        return lambda: inner.search(queries, 3, params=parameters)
    stored = faiss.IndexScalarQuantizer(shards.dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(shards), 16_384):
        stored.add(shards.read(start, min(start + 16_384, len(shards))).astype(np.float32))
    refined = faiss.IndexRefine(inner, stored)
    both = faiss.IndexRefineSearchParameters(k_factor=settings.rerank / 3, base_index_params=parameters)

    def call() -> object:
        faiss.omp_set_num_threads(threads)
        return refined.search(queries, 3, params=both)

    return call


def measure(
    preset: Any, vectors: DenseVectors, shards: VectorShards, threads: int, repeats: int, directory: Path
) -> dict[str, object]:
    """Build one preset and measure it."""
    choosing, asked = np.array_split(vectors.queries, 2)
    settings = ApproximateSettings(preset, threads=threads, queries=len(choosing))
    manifest = build_approximate(shards, "benchmark", directory / preset, settings, queries=choosing)
    index = ApproximateIndex.load(directory / preset, shards, "benchmark", threads=threads)
    queries = asked[:128]
    calls = {"ours": lambda: index.top(queries, 3), "faiss": bare_faiss(index, shards, queries, threads)}
    seconds = interleaved(calls, repeats)
    planned = need(preset, 21_000_000, 768)
    return {
        "preset": preset,
        "nlist": manifest.nlist,
        "nprobe": manifest.nprobe,
        "rerank": manifest.rerank,
        "recall of the half that chose": manifest.recall.measured,
        "recall of the other half": recall(index, sample_of(shards, asked, lambda done: None), manifest.nprobe),
        "queries a second": len(queries) / seconds["ours"],
        "queries a second, faiss": len(queries) / seconds["faiss"],
        "ratio to faiss": seconds["faiss"] / seconds["ours"],
        "bytes a vector": manifest.bytes_per_vector,
        "build seconds": manifest.build_seconds,
        "GiB at 21M": (planned.memory + PROCESS_BYTES) / GIB,
        "21M fits 24 GiB": planned.fits(24 * GIB),
    }


def main() -> None:
    """Measure both presets and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--data", type=Path, default=root.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=root / "runs" / "dense-vectors")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="20,000 rows and 3 repeats: does it run?")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows, repeats = (20_000, 3) if options.quick else (options.rows, options.repeats)
    vectors = dense_vectors(options.data, options.cache, rows)
    shards = VectorShards([vectors.rows])
    with tempfile.TemporaryDirectory(prefix="factagent-approximate-") as work:
        found = [measure(name, vectors, shards, options.threads, repeats, Path(work)) for name in PRESETS]
    table = Table("figure", *(str(one["preset"]) for one in found), title=f"{rows:,} x {shards.dimension}")
    for name in list(found[0])[1:]:
        table.add_row(name, *(f"{one[name]:,.3f}" if isinstance(one[name], float) else str(one[name]) for one in found))
    Console().print(table)
    if options.out:
        options.out.write_text(json.dumps({"rows": rows, "threads": options.threads, "presets": found}, indent=2))


if __name__ == "__main__":
    main()
