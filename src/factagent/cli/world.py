"""`factagent world`: the built-in fictional encyclopaedia."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def build(
    *,
    out: Path,
    seed: int = 0,
    entities: int = 2400,
    train: int = 6000,
    dev: int = 600,
    test: int = 600,
    hops: str = "1,2,3,4",
    types: str = "",
    namesakes: float = 0.05,
    distractors: int = 1,
    negated: float = 0.05,
    candidates: int = 4,
    closed_share: float = 0.15,
    year_gap: int = 3,
    canonical_share: float = 0.4,
    keep_joint: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Build a world: corpus.jsonl, facts.jsonl, qa.{train,dev,test}.jsonl and world.json.

    Args:
        out: Directory to write. It must be absent, empty, or hold the same world (then nothing is done).
        seed: The same seed and settings give the same bytes.
        entities: Pages of the encyclopaedia.
        train: Questions for training.
        dev: Questions for development.
        test: Questions for testing.
        hops: Numbers of evidences that questions need, comma-separated, from 1 to 4.
        types: Relative shares of question types, e.g. "chain=0.4,shared=0.6"; a type left out gets none.
        namesakes: Share of people and books that bear another one's name.
        distractors: Statements per page in relations that no question asks for, 0 to 3.
        negated: Share of pages with a negated sentence.
        candidates: Names that a selection question offers.
        closed_share: Share of bridge comparisons between two named answers (a guess wins half of them).
        year_gap: Smallest difference between compared years.
        canonical_share: Share of sentences forced to the canonical wording.
        keep_joint: Keep questions that one joint BM25 query would answer.
        force: Replace the world of other settings that the directory holds.
    """
    from factagent.data.world.build import build_world
    from factagent.data.world.config import parse_config

    config = parse_config(
        hops=hops, types=types, seed=seed, entities=entities, train=train, dev=dev, test=test, namesakes=namesakes,
        distractors=distractors, negated=negated, candidates=candidates, closed_share=closed_share, year_gap=year_gap,
        canonical_share=canonical_share, reject_joint=not keep_joint,
    )  # fmt: skip
    fresh = build_world(config, out, force=force, report=lambda line: print(line, file=sys.stderr))
    print(f"{out}: world built" if fresh else f"{out}: holds this world already, nothing to do")
