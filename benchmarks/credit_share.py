"""What credit costs a worker of a cluster: the paper's batch (128 questions x 6), credited group by group on one core.

Trajectories are sampled by the packaged tiny policy (or played by the scripted expert) in the built-in world, then
replayed through what a worker does when a group is complete: `distributed.play`'s credit, MiniLM embeddings included,
and the samples. The first batch starts with empty caches; later ones meet strings that were seen before, as the steps
of a run do. `--fresh` empties the encoder's memory before every batch: the cost if no string ever came again.

    python benchmarks/credit_share.py [--batches 3] [--questions 128] [--source policy|expert] [--fresh] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from factagent.configuration import load_config
from factagent.credit.encoders import Encoder
from factagent.credit.rule_choice import assign
from factagent.evaluation.local import protocol_of
from factagent.rollout import sample_groups
from factagent.train.config import RunConfig
from factagent.train.loop import questions_of_step, samples_of
from factagent.train.setup import expert_of, load_data, load_policy
from factagent.types import Group

STEP_S = 200.0
"""Seconds of a step to hold the cost against (the paper's take 231 s on 8 A100)."""
PAPER_S = 2.75
MEMBERS = 6


@dataclass
class Timed:
    """An encoder that notes how long it takes and what it is asked."""

    encoder: Encoder
    seconds: float = 0.0
    texts: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.encoder.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        began = time.perf_counter()
        try:
            return self.encoder.encode(texts)
        finally:
            self.seconds += time.perf_counter() - began
            self.texts += len(texts)


def generate(config: RunConfig, source: str, batches: int, questions: int) -> list[list[Group]]:
    """The groups of the first training steps."""
    data, protocol = load_data(config.data), protocol_of(config.rollout)
    policy = expert_of(config, protocol, data) if source == "expert" else load_policy(config)
    settings = config.rollout.settings(group_size=MEMBERS)
    found = []
    for step in range(1, batches + 1):
        chosen = questions_of_step(data.train, step, questions, config.seed)
        found.append(sample_groups(chosen, protocol, policy, data.retriever, settings, (config.seed, "train", step)))
    return found


def credit(groups: Sequence[Group], config: RunConfig, encoder: Timed) -> dict[str, float]:
    """Credit a batch as a worker does, group by group; seconds of this core."""
    encoder.seconds, encoder.texts = 0.0, 0
    each, samples = [], 0
    began = time.process_time()
    for group in groups:
        start = time.perf_counter()
        ledger = assign([group], config.credit, encoder)
        trainable = group.trajectories[0].steps and group.trajectories[0].steps[0].generation.response_ids
        samples += len(samples_of([group], ledger, append=False)) if trainable else 0
        each.append(time.perf_counter() - start)
    seconds = time.process_time() - began
    triples = sum(len(trajectory.facts) for group in groups for trajectory in group.trajectories)
    return {
        "groups": len(groups),
        "triples": triples,
        "samples": samples,
        "texts": encoder.texts,
        "seconds": seconds,
        "encoding_s": encoder.seconds,
        "slowest_group_s": max(each),
        "median_group_s": statistics.median(each),
        "share": seconds / STEP_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--source", choices=("policy", "expert"), default="policy")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--config", type=Path, default=Path("configs/tiny.toml"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    paper = ("credit.prior=symmetric", "credit.counting=group", "credit.encoder=minilm")
    config = load_config(RunConfig, options.config, paper)
    if options.source == "expert":
        config = config.model_copy(update={"sft": config.sft.model_copy(update={"noise": 0.3, "haste": 0.1})})
    batches = generate(config, options.source, options.batches, options.questions)
    import torch

    torch.set_num_threads(1)
    with threadpool_limits(1):
        encoder = Timed(config.credit.load_encoder())
        encoder.encode(["loaded before the clock starts"])
        rows = []
        for groups in batches:
            if options.fresh:
                encoder = Timed(config.credit.load_encoder())
                encoder.encode(["loaded before the clock starts"])
            rows.append(credit(groups, config, encoder))
    show(rows, options.source)
    if options.out is not None:
        options.out.write_text(json.dumps({"source": options.source, "fresh": options.fresh, "rows": rows}, indent=2))


def show(rows: Sequence[dict[str, float]], source: str) -> None:
    table = Table(title=f"credit of {MEMBERS} trajectories a question ({source}), one core, MiniLM")
    for name in (
        "batch",
        "groups",
        "triples",
        "texts asked",
        "seconds",
        "encoding s",
        "slowest group s",
        "share of 200 s",
    ):
        table.add_column(name, justify="right")
    for number, row in enumerate(rows, start=1):
        table.add_row(
            str(number),
            f"{row['groups']:.0f}",
            f"{row['triples']:.0f}",
            f"{row['texts']:.0f}",
            f"{row['seconds']:.2f}",
            f"{row['encoding_s']:.2f}",
            f"{row['slowest_group_s']:.3f}",
            f"{row['share']:.2%}",
        )
    console = Console()
    console.print(table)
    console.print(f"the paper: {PAPER_S} s a step, {PAPER_S / 231.1:.1%} of 231 s")


if __name__ == "__main__":
    main()
