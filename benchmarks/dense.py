"""Bar: exact dense search in batches of 8 to 128 over 200,000 x 768 vectors of real text, against faiss `IndexFlatIP`.

Four searches over the same rows, in turn within each round, so that a busy machine slows all of them: ours with the
bf16 scan and with the fp32 scan, faiss as it comes, and faiss with its matrix-product path forced. Ratios are formed
within a round and given as the median with the range. The top 3 must be those of faiss for every query (places whose
scores differ by less than float32 resolves may be exchanged).

    python benchmarks/dense.py [--quick] [--rows 200000] [--rounds 7] [--threads 2] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dense_vectors import dense_vectors
from numpy.typing import NDArray

from factagent.retrieval.dense.exact import ExactIndex
from factagent.retrieval.dense.vectors import VectorShards

Search = Callable[[NDArray[np.float32], int], tuple[NDArray[np.int64], NDArray[np.float32]]]

TOP = 3
BAR = 4.0
TIE = 1e-6
OURS, FP32, FAISS, FAISS_BLAS = "factagent bf16", "factagent fp32", "faiss default", "faiss BLAS"


def main() -> None:
    """Measure every batch size and print one JSON line each; exit 1 where the bar is missed."""
    options = arguments()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    vectors = dense_vectors(options.data, options.cache, options.rows)
    searches = open_searches(vectors.rows, options)
    met = True
    for batch in options.batches:
        report = measure(searches, vectors.queries[:batch], options.rounds)
        met &= report["ratio to faiss default"]["median"] >= BAR and report["same top 3"]
        print(json.dumps({"batch": batch, "rows": len(vectors.rows), "threads": options.threads, **report}), flush=True)
    print(json.dumps({"bar": f">= {BAR} x faiss default, same top {TOP}", "met": met}))
    raise SystemExit(0 if met or options.quick else 1)


def open_searches(rows: NDArray[np.float16], options: argparse.Namespace) -> dict[str, Search]:
    """The four searches over the same rows."""
    import faiss

    faiss.omp_set_num_threads(options.threads)
    flat = faiss.IndexFlatIP(rows.shape[1])
    for start in range(0, len(rows), 50_000):
        flat.add(rows[start : start + 50_000].astype(np.float32))
    default = faiss.cvar.distance_compute_blas_threshold

    def faiss_search(threshold: int) -> Search:
        def search(queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            faiss.cvar.distance_compute_blas_threshold = threshold
            scores, positions = flat.search(queries, k)
            return positions, scores

        return search

    shards = VectorShards([rows])
    ours = {
        name: ExactIndex(shards, device=options.device, precision=precision, threads=options.threads).top
        for name, precision in ((OURS, "bf16"), (FP32, "fp32"))
    }
    return {**ours, FAISS: faiss_search(default), FAISS_BLAS: faiss_search(1)}


def measure(searches: dict[str, Search], queries: NDArray[np.float32], rounds: int) -> dict[str, Any]:
    """Queries a second of each search, ratios to faiss within rounds, and whether all find the same."""
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    found = {name: search(queries, TOP) for name, search in searches.items()}  # a warm-up too
    for _ in range(rounds):
        for name, search in searches.items():
            began = time.perf_counter()
            search(queries, TOP)
            seconds[name].append(time.perf_counter() - began)
    return {
        "queries a second": {name: round(len(queries) / statistics.median(s), 1) for name, s in seconds.items()},
        "ratio to faiss default": ratio(seconds[FAISS], seconds[OURS]),
        "ratio to faiss BLAS": ratio(seconds[FAISS_BLAS], seconds[OURS]),
        "fp32 ratio to faiss default": ratio(seconds[FAISS], seconds[FP32]),
        "same top 3": all(same(found[name], found[FAISS]) for name in (OURS, FP32)),
    }


def ratio(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Median and range of the ratios of neighbouring measurements."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return {
        "median": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
    }


def same(
    one: tuple[NDArray[np.int64], NDArray[np.float32]], other: tuple[NDArray[np.int64], NDArray[np.float32]]
) -> bool:
    """Equal positions, or equal scores where positions differ."""
    return bool(np.all((one[0] == other[0]) | (np.abs(one[1] - other[1]) < TIE)))


def arguments() -> argparse.Namespace:
    """The command line."""
    root = Path(__file__).resolve().parents[1]
    shared = Path(os.environ.get("FACTAGENT_SHARED") or root.parent / "shared")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=shared / "data")
    parser.add_argument("--cache", type=Path, default=root / "runs" / "dense-vectors")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--quick", action="store_true", help="20,000 rows and 3 rounds; the bar is shown, not enforced")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = min(options.rows, 20_000), min(options.rounds, 3)
    return options


if __name__ == "__main__":
    main()
