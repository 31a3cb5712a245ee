"""Bar: BM25 on real text. Speed against bm25s, memory and time of a build, recall of gold passages.

    python benchmarks/bm25.py [--quick] [--million] [--out FILE]

*Speed*: the six Wikipedia corpora of the shared data, passages of more than 500 characters cut in two at the end of a
sentence (so that there are more than 100,000), and questions of HotpotQA, 2WikiMultiHopQA and MuSiQue. In each round,
interleaved, one thread, processor time: ours from words (`BM25Index.top`), ours whole (`BM25Index.search`: tokenises
and reads the passages), bm25s's numba and numpy backends from the same words as numbers. Before that, all scores of
ours are compared with bm25s's, bit for bit. *Recall*: each set's questions with all gold passages in its corpus, over
that corpus as it is. *Build*: a process of its own; `VmHWM` is its peak of resident memory, files it maps included, and
the texts, which it streams, are not in it. `--million` adds a build of 1,000,000 passages of some 100 words that
recombine real sentences under real titles.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import numpy.typing as npt

from factagent.data.corpus import iter_passages, write_passages
from factagent.evaluation.intervals import wilson_interval
from factagent.retrieval.bm25 import BM25Index
from factagent.retrieval.bm25_build import SHARD_WORDS
from factagent.retrieval.bm25_words import tokenise
from factagent.retrieval.manifest import BM25Settings
from factagent.types import Passage

SETS = ("hotpotqa", "2wikimultihopqa", "musique")
CORPORA = (*SETS, "wiki18_sample", "nq_wiki", "popqa_wiki")
TOP_K = 3
LONG = 500
MIB = 1 << 20
BUILD = """
import json, sys, time
from pathlib import Path
from factagent.data.corpus import iter_passages
from factagent.retrieval.bm25_build import write_index

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

before, began, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
manifest = write_index(iter_passages(sys.argv[1]), Path(sys.argv[2]), shard_words=int(sys.argv[3]))
print(json.dumps({
    "passages": manifest.passages, "words": manifest.terms, "seconds": time.perf_counter() - began,
    "cpu_seconds": time.process_time() - cpu, "rss_before": before, "rss_peak": memory("VmHWM"),
    "index_bytes": sum(record.bytes for record in manifest.files.values()),
}))
"""


def main() -> None:
    """Run the parts and print Markdown, then one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = os.environ.get("FACTAGENT_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    parser.add_argument("--data", type=Path, default=Path(shared) / "data")
    parser.add_argument("--questions", type=int, default=600, help="for the comparison of speed, from each set")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shard-words", type=int, default=SHARD_WORDS)
    parser.add_argument("--million", action="store_true", help="add the build of 1,000,000 passages")
    parser.add_argument("--quick", action="store_true", help="one corpus, few questions, 20,000 instead of 1,000,000")
    parser.add_argument("--out", type=Path, help="write the JSON there too")
    options = parser.parse_args()
    if options.quick:
        options.questions, options.rounds = 30, 3
    names = ("musique",) if options.quick else CORPORA
    with tempfile.TemporaryDirectory(prefix="factagent-bench-") as folder:
        figures = measure(options, names, Path(folder))
    print(markdown(figures))
    print(json.dumps(figures))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


def measure(options: argparse.Namespace, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """All figures as plain values."""
    corpus = folder / "corpus.jsonl"
    write_passages(corpus, halves(p for name in names for p in read_corpus(options.data, name)))
    figures: dict[str, Any] = {"corpora": names, "build": build(corpus, folder / "index", options.shard_words)}
    index = BM25Index.load(folder / "index")
    figures["speed"] = compare_speed(index, questions_for_speed(options, names), options.rounds)
    sets = [name for name in SETS if name in names]
    figures["recall"] = [recall(options.data, name, words) for name in sets for words in ("none", "en")]
    if options.million:
        count = 20_000 if options.quick else 1_000_000
        million = folder / "million.jsonl"
        write_passages(million, recombined(list(iter_passages(corpus)), count))
        figures["million"] = build(million, folder / "million", options.shard_words)
    return figures


def read_corpus(data: Path, name: str) -> Iterator[Passage]:
    return iter_passages(data / "corpora" / f"{name}.jsonl.gz")


def read_questions(data: Path, name: str) -> list[dict[str, Any]]:
    with gzip.open(data / "qa" / f"{name}.dev.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def halves(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Long passages in two, at the first end of a sentence after the middle; the others as they are."""
    for passage in passages:
        end = passage.text.find(". ", len(passage.text) // 2) + 1
        if len(passage.text) <= LONG or end == 0:
            yield passage
        else:
            yield Passage(f"{passage.id}/1", passage.title, passage.text[:end])
            yield Passage(f"{passage.id}/2", passage.title, passage.text[end + 1 :])


def recombined(passages: Sequence[Passage], count: int) -> Iterator[Passage]:
    """Passages of real sentences, drawn until there are 100 words, under a real title."""
    draw = random.Random(0)
    sentences = [s for p in passages for s in re.split(r"(?<=[.!?]) ", p.text) if s]
    for number in range(count):
        text, words = [], 0
        while words < 100:
            text.append(draw.choice(sentences))
            words += text[-1].count(" ") + 1
        yield Passage(str(number), draw.choice(passages).title, " ".join(text))


def build(corpus: Path, directory: Path, shard_words: int) -> dict[str, Any]:
    """Build in a process of its own; bytes of memory and seconds."""
    command = [sys.executable, "-c", BUILD, str(corpus), str(directory), str(shard_words)]
    figures: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {**figures, "corpus_bytes": corpus.stat().st_size, "shard_words": shard_words}


def questions_for_speed(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    draw = random.Random(0)
    chosen = [name for name in SETS if name in names]
    return [
        row["question"] for name in chosen for row in draw.sample(read_questions(options.data, name), options.questions)
    ]


def raw_bm25s(index: BM25Index, documents: list[list[int]], terms: dict[str, int], backend: str) -> Any:
    chosen = index.manifest.settings
    raw = bm25s.BM25(k1=chosen.k1, b=chosen.b, method=chosen.method, backend=backend, csc_backend="numpy")
    raw.index((documents, terms), create_empty_token=False, show_progress=False)
    return raw


def compare_speed(index: BM25Index, questions: list[str], rounds: int) -> dict[str, Any]:
    """Processor seconds of each way, interleaved, as ratios; medians and ranges over the rounds."""
    chosen, terms = index.manifest.settings, {}
    passages = (index.passages.passage(position) for position in range(len(index)))
    texts = (tokenise(f"{p.title} {p.text}", chosen) for p in passages)
    documents = [[terms.setdefault(word, len(terms)) for word in text] for text in texts]
    numba, numpy = (raw_bm25s(index, documents, terms, backend) for backend in ("numba", "numpy"))
    words = [[word for word in tokenise(question, chosen) if word in terms] for question in questions]
    words = [query for query in words if query]
    few = words[:: max(1, len(words) // 150)]
    for name, key in (("scores", "data"), ("positions", "indices"), ("starts", "indptr")):
        if not np.array_equal(np.load(index.directory / f"{name}.npy"), numba.scores[key]):
            raise SystemExit(f"{name} differ from bm25s's")
    check_results(index, words, numba, terms)
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: index.top(words, TOP_K),
        "search": lambda: index.search(questions, TOP_K),
        "numba": lambda: retrieve(numba, words, terms, "numba"),
        "ours, few": lambda: index.top(few, TOP_K),
        "numpy, few": lambda: retrieve(numpy, few, terms, "numpy"),
    }
    seconds = interleave(ways, rounds)
    return {
        "passages": len(index),
        "queries": len(words),
        "rounds": rounds,
        "top_k": TOP_K,
        "ours_queries_per_second": len(words) / float(np.median(seconds["ours"])),
        "ours_to_numba": spread(seconds["numba"] / seconds["ours"]),
        "search_to_numba": spread(seconds["numba"] / seconds["search"]),
        "ours_to_numpy": spread(seconds["numpy, few"] / seconds["ours, few"]),
    }


def retrieve(raw: Any, words: list[list[str]], terms: dict[str, int], backend: str) -> Any:
    numbers = [[terms[word] for word in query] for query in words]
    return raw.retrieve(numbers, k=TOP_K, show_progress=False, n_threads=0, backend_selection=backend)


def check_results(index: BM25Index, words: list[list[str]], raw: Any, terms: dict[str, int]) -> None:
    """Our best scores are bm25s's (which passages of equal score come first is ours to say)."""
    theirs = -np.sort(-retrieve(raw, words, terms, "numba").scores, axis=1)
    if not np.array_equal(index.top(words, TOP_K)[1], theirs):
        raise SystemExit("the best scores differ from bm25s's")


def interleave(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, npt.NDArray[np.float64]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            if turn:  # the first turn compiles and warms up
                seconds[name].append(time.process_time() - began)
    return {name: np.array(values) for name, values in seconds.items()}


def spread(values: npt.NDArray[np.float64]) -> list[float]:
    """Median, least, greatest."""
    return [round(float(value), 3) for value in np.quantile(values, [0.5, 0, 1])]


def recall(data: Path, name: str, stop_words: str) -> dict[str, Any]:
    """Share of questions with any, and with all, of their gold passages among the first three."""
    settings = BM25Settings.model_validate({"stop_words": stop_words})
    index = BM25Index.build(read_corpus(data, name), settings)
    rows = [row for row in read_questions(data, name) if row.get("gold_in_corpus")]
    found = index.search([row["question"] for row in rows], TOP_K)
    kept = [{p.id for p in passages} for passages in found]
    golds = [set(row["supporting_passage_ids"]) for row in rows]
    hits = {"any": sum(bool(g & k) for g, k in zip(golds, kept, strict=True))}
    hits["all"] = sum(g <= k for g, k in zip(golds, kept, strict=True))
    share = float(np.mean([len(g & k) / len(g) for g, k in zip(golds, kept, strict=True)]))
    intervals = {key: [count / len(rows), *wilson_interval(count, len(rows))] for key, count in hits.items()}
    return {
        "set": name,
        "stop_words": stop_words,
        "questions": len(rows),
        "passages": len(index),
        "share_of_gold": share,
        "more_than_three_gold": sum(len(g) > TOP_K for g in golds),
        **intervals,
    }


def markdown(figures: dict[str, Any]) -> str:
    speed = figures["speed"]
    lines = [
        f"BM25, {speed['passages']:,} passages (corpora {', '.join(figures['corpora'])}; passages of more than {LONG} "
        f"characters cut in two), {speed['queries']:,} questions, k = {TOP_K}, one thread, processor time, "
        f"{speed['rounds']} interleaved rounds. Scores equal bm25s's bit for bit.",
        "",
        "| ours | to | times as fast: median (range) |",
        "|---|---|---|",
    ]
    for key, ours, other in (
        ("ours_to_numba", "search from words", "bm25s numba"),
        ("search_to_numba", "whole search, passages read", "bm25s numba, positions only"),
        ("ours_to_numpy", "search from words", "bm25s numpy"),
    ):
        median, low, high = speed[key]
        lines.append(f"| {ours} | {other} | {median:.2f} ({low:.2f}-{high:.2f}) |")
    lines += ["", "| build | words | seconds (processor) | passages/s | peak MiB | corpus MiB | index MiB |"]
    lines.append("|---|---|---|---|---|---|---|")
    lines += [build_row(figures[key]) for key in ("build", "million") if key in figures]
    lines += [
        "",
        "| set | stop words | questions | passages | any gold | all gold | share of gold | of 4 gold |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [recall_row(row) for row in figures["recall"]]
    return "\n".join(lines)


def build_row(row: dict[str, Any]) -> str:
    rate = row["passages"] / row["seconds"]
    peak, corpus, size = (row[key] / MIB for key in ("rss_peak", "corpus_bytes", "index_bytes"))
    seconds = f"{row['seconds']:.0f} ({row['cpu_seconds']:.0f})"
    counts = f"{row['passages']:,} passages | {row['words']:,}"
    return f"| {counts} | {seconds} | {rate:,.0f} | {peak:.0f} | {corpus:.0f} | {size:.0f} |"


def recall_row(row: dict[str, Any]) -> str:
    shares = " | ".join(f"{mean:.3f} ({low:.3f}-{high:.3f})" for mean, low, high in (row["any"], row["all"]))
    counts = f"{row['questions']:,} | {row['passages']:,}"
    rest = f"{row['share_of_gold']:.3f} | {row['more_than_three_gold']}"
    return f"| {row['set']} | {row['stop_words']} | {counts} | {shares} | {rest} |"


if __name__ == "__main__":
    main()
