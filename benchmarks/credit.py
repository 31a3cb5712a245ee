"""Clustering cost (issue bar 7.4): 128 groups x 72 triples, embeddings given, one BLAS thread.

Compares, interleaved, the vectorised clustering with (a) a naive double loop over triples with the same rules
and (b) the two
bare 72 x 72 matrix products per group that a clustering without deduplication needs at least. The clusters of (a) are
checked against the vectorised ones on every group. `cold` starts without any cache of rules; `warm` is a later
step of a
run, where strings seen before keep their signatures.

    python benchmarks/credit.py [--groups 128] [--repeats 5] [--encoder minilm|random] [--out FILE]
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from factagent.credit import entities, equivalence, matcher, negation, numbers, relations, rules
from factagent.credit.clustering import canonical_order, cluster_facts
from factagent.credit.encoders import load_encoder
from factagent.credit.equivalence import EquivalenceConfig, compare
from factagent.types import Triple

ROLLOUTS, ASSERTS, TRIPLES = 6, 4, 3
WORDINGS = (
    ("{s} directed {o}", "directed", "was directed by"),
    ("", "founded", "was founded by"),
    ("", "wrote", "was written by"),
    ("", "is the mayor of", "has mayor"),
    ("", "is a member of", "has member"),
    ("", "was born in", "is the birthplace of"),
)
SYLLABLES = ("ta", "ri", "mo", "sel", "vik", "dar", "lu", "no", "hal", "en", "bra", "ke")
Groups = list[list[list[Triple]]]


class TableEncoder:
    """Embeddings that were computed before: text -> row."""

    name = "table"

    def __init__(self, rows: dict[str, NDArray[np.float32]], similarity: float, relation: float, entity: float) -> None:
        self.rows = rows
        self.similarity_threshold, self.relation_threshold, self.entity_threshold = similarity, relation, entity
        self.asked = 0

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += len(texts)
        return np.stack([self.rows[text] for text in texts])


def generate(groups: int, seed: int = 0) -> Groups:
    """Groups of rollouts that repeat, paraphrase, invert, negate and renumber about a dozen facts of their own."""
    rng = random.Random(seed)
    return [_group(rng) for _ in range(groups)]


def _name(rng: random.Random) -> str:
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))).capitalize() for _ in range(2))


def _group(rng: random.Random) -> list[list[Triple]]:
    facts = [(_name(rng), rng.choice(WORDINGS), _name(rng)) for _ in range(9)]
    years = [(_name(rng), rng.randint(1900, 1999)) for _ in range(3)]
    return [[_mention(rng, facts, years) for _ in range(ASSERTS * TRIPLES)] for _ in range(ROLLOUTS)]


def _mention(
    rng: random.Random, facts: list[tuple[str, tuple[str, str, str], str]], years: list[tuple[str, int]]
) -> Triple:
    if rng.random() < 0.25:
        name, year = rng.choice(years)
        year += rng.random() < 0.15
        return Triple(name, rng.choice(("was released in", "came out in")), str(year))
    subject, (_, active, passive), obj = rng.choice(facts)
    kind = rng.random()
    if kind < 0.6:
        return Triple(subject, active, obj)
    if kind < 0.8:
        return Triple(obj, passive, subject)
    if kind < 0.9:
        return Triple(subject, f"never {active}", obj)
    return Triple(subject, active, f"the {obj}")


def embed(groups: Groups, encoder: str) -> TableEncoder:
    """Every text that a clustering may ask for, embedded once."""
    triples = {triple for group in groups for member in group for triple in member}
    texts = list(dict.fromkeys(text for t in triples for text in (t.text, rules.swapped(t).text, *t)))
    if encoder == "random":
        rows = np.random.default_rng(0).normal(size=(len(texts), 384)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return TableEncoder(dict(zip(texts, rows, strict=True)), 0.77, 0.9, 0.88)
    model = load_encoder(encoder)
    entity = getattr(model, "entity_threshold", None) or 0.88
    rows = model.encode(texts)
    return TableEncoder(
        dict(zip(texts, rows, strict=True)), model.similarity_threshold, model.relation_threshold, entity
    )


def naive_labels(group: list[list[Triple]], encoder: TableEncoder, config: EquivalenceConfig) -> dict[Triple, Triple]:
    """The plain reading: every triple of every member against every representative, one `compare` at a time."""
    representatives: list[Triple] = []
    label: dict[Triple, Triple] = {}
    support = {triple: rank for rank, triple in enumerate(canonical_order(group))}
    for triple in sorted((triple for member in group for triple in member), key=support.__getitem__):
        for representative in representatives:
            if compare(triple, representative, encoder, config).equivalent:
                label[triple] = representative
                break
        else:
            representatives.append(triple)
            label[triple] = triple
    return label


def vectorised_labels(
    group: list[list[Triple]], encoder: TableEncoder, config: EquivalenceConfig
) -> dict[Triple, Triple]:
    """The same mapping from `cluster_facts`."""
    found = cluster_facts(group, encoder, config)
    return {t: found.triples[found.representatives[c]] for t, c in zip(found.triples, found.labels_U, strict=True)}


def matrix_products(group_rows: list[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> None:
    """Two 72 x 72 products per group, nothing else."""
    for original, flipped in group_rows:
        original @ original.T
        original @ flipped.T


def forget() -> None:
    """Drop every cache of rules and matchers, as in a new process."""
    for module in (entities, equivalence, matcher, negation, numbers, relations, rules):
        for value in vars(module).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(groups: Groups, encoder: TableEncoder, repeats: int, naive_repeats: int) -> dict[str, float | int | bool]:
    """Medians of interleaved repeats, and the checks."""
    config = EquivalenceConfig(orientation="strict")
    rows = []
    for group in groups:
        texts = [triple for member in group for triple in member]
        rows.append((encoder.encode([t.text for t in texts]), encoder.encode([rules.swapped(t).text for t in texts])))
    times: dict[str, list[float]] = {"cold": [], "matrix table cold": [], "warm": [], "naive": [], "matmuls": []}
    step = functools.partial(_cluster_all, groups, encoder, config)
    for repeat in range(repeats):
        forget()
        times["cold"].append(timed(step))
        matcher._kept_matcher.cache_clear()
        times["matrix table cold"].append(timed(step))
        times["warm"].append(timed(step))
        times["matmuls"].append(timed(lambda: matrix_products(rows)))
        if repeat < naive_repeats:
            times["naive"].append(timed(lambda: [naive_labels(group, encoder, config) for group in groups]))
    equal = sum(naive_labels(g, encoder, config) == vectorised_labels(g, encoder, config) for g in groups)
    matcher._kept_matcher.cache_clear()
    encoder.asked = 0
    step()
    median = {name: statistics.median(values) for name, values in times.items()}
    naive_texts = 3 * sum(len(member) for group in groups for member in group)
    return {
        "groups": len(groups),
        "triples_per_group": ROLLOUTS * ASSERTS * TRIPLES,
        "unique_triples_per_group": round(statistics.mean(len(canonical_order(g)) for g in groups), 1),
        "clusters": sum(len(cluster_facts(g, encoder, config).representatives) for g in groups),
        "groups_equal_to_naive": equal,
        "cold_s": median["cold"],
        "rules_known_s": median["matrix table cold"],
        "warm_s": median["warm"],
        "naive_s": median["naive"],
        "matmuls_s": median["matmuls"],
        "naive_over_rules_known": median["naive"] / median["matrix table cold"],
        "naive_over_warm": median["naive"] / median["warm"],
        "rules_known_over_matmuls": median["matrix table cold"] / median["matmuls"],
        "warm_over_matmuls": median["warm"] / median["matmuls"],
        "texts_undeduplicated": naive_texts,
        "texts_encoded": encoder.asked,
        "texts_saved_ratio": naive_texts / max(encoder.asked, 1),
    }


def _cluster_all(groups: Groups, encoder: TableEncoder, config: EquivalenceConfig) -> None:
    for group in groups:
        cluster_facts(group, encoder, config)


def main() -> None:
    """Run, print a table and one JSON line, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--naive-repeats", type=int, default=2)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    groups = generate(arguments.groups)
    encoder = embed(groups, arguments.encoder)
    with threadpool_limits(1):
        result = measure(groups, encoder, arguments.repeats, arguments.naive_repeats)
    table = Table("figure", "value", title="clustering a training step")
    for name, value in result.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console(stderr=True).print(table)
    text = json.dumps(result)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    if result["groups_equal_to_naive"] != len(groups):
        raise SystemExit("the vectorised clusters differ from the naive ones")


if __name__ == "__main__":
    main()
