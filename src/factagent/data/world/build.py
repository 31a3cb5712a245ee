"""Building a world directory: corpus, statements, questions in three disjoint splits, and a manifest.

Files: `corpus.jsonl`, `facts.jsonl`, `qa.train.jsonl`, `qa.dev.jsonl`, `qa.test.jsonl`, `world.json` (settings, counts,
SHA-256 of every file). The directory appears in one step, complete.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factagent.data.corpus import write_facts, write_passages
from factagent.data.dataset import row_of
from factagent.data.formats import sha256_of, write_bytes, write_rows
from factagent.data.world.config import SKIPPED, QuestionType, WorldConfig
from factagent.data.world.drafts import Draft, Evidence, Reader
from factagent.data.world.generate import generate, random_of
from factagent.data.world.joint import JointQuery
from factagent.data.world.passages import Page, write_pages
from factagent.data.world.questions import DRAWERS
from factagent.data.world.solver import chance_of
from factagent.errors import ConfigError, UsageError
from factagent.types import Question

MANIFEST = "world.json"
FORMAT_VERSION = 1
Report = Callable[[str], None]
"""Receives a line on what is being done."""


@dataclass(frozen=True, slots=True)
class BuiltWorld:
    """A world in memory. `programs` leads from question ids to the program that re-derives the answer."""

    config: WorldConfig
    pages: list[Page]
    questions: dict[str, list[Question]]
    programs: dict[str, list[Any]]


def make_world(config: WorldConfig, report: Report = lambda line: None) -> BuiltWorld:
    """Generate pages and questions.

    Raises:
        ConfigError: the settings allow no question, or the world is too small for the number of questions.
    """
    report(f"drawing {config.entities} entities and their facts")
    world = generate(config)
    pages = write_pages(world)
    reader = Reader(world, [triple for page in pages for triple in page.triples])
    drafts = _draw_all(config, reader, pages, report)
    questions: dict[str, list[Question]] = {}
    programs: dict[str, list[Any]] = {}
    for split, chosen in drafts.items():
        if split == SKIPPED:
            continue
        ids = [f"{split}-{index:06d}" for index in range(len(chosen))]
        questions[split] = [draft.question(id_, reader.titles) for id_, draft in zip(ids, chosen, strict=True)]
        programs |= {id_: draft.program for id_, draft in zip(ids, chosen, strict=True)}
    return BuiltWorld(config, pages, questions, programs)


def build_world(
    config: WorldConfig, out: Path | str, *, force: bool = False, report: Report = lambda line: None
) -> bool:
    """Write a world to a directory; returns False where the same world stands there already.

    Raises:
        UsageError: the directory holds another world (without `force`), or anything that is no world.
        ConfigError: as `make_world`.
    """
    out = Path(out)
    if _holds(out, config) and not force:
        return False
    _refuse_foreign(out, force=force)
    built = make_world(config, report)
    out.parent.mkdir(parents=True, exist_ok=True)
    report(f"writing {out}")
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        write_world(built, staging)
        staging.chmod(0o755)
        _replace(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def write_world(built: BuiltWorld, directory: Path) -> None:
    """Write the files of a world into an existing directory, the manifest last."""
    write_passages(directory / "corpus.jsonl", (page.passage for page in built.pages))
    write_facts(directory / "facts.jsonl", {page.passage.id: page.triples for page in built.pages})
    for split, questions in built.questions.items():
        rows = (row_of(question) | {"program": built.programs[question.id]} for question in questions)
        write_rows(directory / f"qa.{split}.jsonl", rows)
    files = sorted(path.name for path in directory.glob("*.jsonl"))
    manifest = {
        "format_version": FORMAT_VERSION,
        "config": built.config.model_dump(mode="json"),
        "counts": counts_of(built),
        "sha256": {name: sha256_of(directory / name) for name in files},
    }
    write_bytes(directory / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


def counts_of(built: BuiltWorld) -> dict[str, Any]:
    """Sizes for the manifest: passages, statements, words, and questions by split and by type and hops."""
    words = {word for page in built.pages for word in words_of(f"{page.passage.title} {page.passage.text}")}
    questions = [question for split in built.questions.values() for question in split]
    words |= {word for question in questions for word in words_of(question.text)}
    guesses: dict[str, list[float]] = defaultdict(list)
    for question in questions:
        guesses[str(question.type)].append(chance_of(built.programs[question.id]))
    cells = Counter(f"{question.type}/{question.hops}" for question in questions)
    return {
        "entities": built.config.entities,
        "passages": len(built.pages),
        "statements": sum(len(page.triples) for page in built.pages),
        "distinct_words": len(words),
        "questions": {split: len(chosen) for split, chosen in built.questions.items()},
        "questions_by_type_and_hops": dict(sorted(cells.items())),
        "chance_by_type": {kind: round(sum(chances) / len(chances), 4) for kind, chances in sorted(guesses.items())},
    }


def words_of(text: str) -> Iterable[str]:
    """The words of a text, without punctuation."""
    return (word.strip("().,?") for word in text.split())


def _holds(out: Path, config: WorldConfig) -> bool:
    """True where `out` is a complete world of this config (files present with the manifest's hashes)."""
    path = out / MANIFEST
    if not path.is_file():
        return False
    try:
        manifest = json.loads(path.read_text())
        same = manifest["config"] == config.model_dump(mode="json") and manifest["format_version"] == FORMAT_VERSION
        hashes = dict(manifest["sha256"])
    except (ValueError, KeyError, TypeError):
        return False
    return same and all((out / name).is_file() and sha256_of(out / name) == value for name, value in hashes.items())


def _refuse_foreign(out: Path, *, force: bool) -> None:
    """Raise UsageError unless `out` is absent, empty, or (with `force`) a world, which alone may be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise UsageError(f"{out} exists and is no world; choose another --out")
    if not force:
        raise UsageError(f"{out} holds a world of other settings; choose another --out, or pass --force to replace it")


def _replace(staging: Path, out: Path) -> None:
    """Put the staged directory in place of `out`; the old one stays until the new one stands."""
    if not out.exists():
        staging.rename(out)
        return
    old = out.with_name(f".{out.name}.old")
    if old.exists():
        shutil.rmtree(old)
    out.rename(old)
    staging.rename(out)
    shutil.rmtree(old)


def _shares(total: int, cells: dict[tuple[QuestionType, int], float]) -> dict[tuple[QuestionType, int], int]:
    """Whole numbers that sum to `total`, by largest remainder."""
    exact = {cell: total * share for cell, share in cells.items()}
    counts = {cell: int(value) for cell, value in exact.items()}
    by_remainder = sorted(exact, key=lambda cell: (counts[cell] - exact[cell], cell))
    for cell in by_remainder[: total - sum(counts.values())]:
        counts[cell] += 1
    return counts


def _draw_all(config: WorldConfig, reader: Reader, pages: list[Page], report: Report) -> dict[str, list[Draft]]:
    """Drafts for each split, stratified by type and hops, no evidence set twice anywhere."""
    cells = config.cells()
    if not cells and any(config.splits.values()):
        raise ConfigError(f"hops {config.hops} with type_weights {config.type_weights} leave no kind of question")
    quotas = {split: _shares(size, cells) for split, size in config.splits.items()}
    joint = JointQuery(pages) if config.reject_joint else None
    taken: set[frozenset[Evidence]] = set()
    drafts: dict[str, list[Draft]] = {split: [] for split in quotas}
    for cell in cells:
        report(f"drawing questions: {cell[0]}, {cell[1]} hops")
        found = _draw(config, reader, joint, cell, sum(quota[cell] for quota in quotas.values()), taken)
        for split, quota in quotas.items():
            drafts[split] += [found.pop() for _ in range(quota[cell])]
    for split, chosen in drafts.items():
        random_of(config, "order", split).shuffle(chosen)
    return drafts


def _draw(
    config: WorldConfig,
    reader: Reader,
    joint: JointQuery | None,
    cell: tuple[QuestionType, int],
    wanted: int,
    taken: set[frozenset[Evidence]],
) -> list[Draft]:
    """`wanted` sound drafts of one type and number of hops with evidence sets of their own (added to `taken`)."""
    kind, hops = cell
    rng = random_of(config, "questions", kind, hops)
    found: list[Draft] = []
    for _ in range(60):
        batch: list[Draft] = []
        for _ in range(10 * wanted + 1000):
            if len(batch) >= (wanted - len(found)) * 3 // 2 + 20:
                break
            draft = DRAWERS[kind](reader, hops, rng)
            if draft is not None and draft.key not in taken and reader.sound(draft):
                taken.add(draft.key)
                batch.append(draft)
        kept = batch if joint is None or kind == "chain" else joint.unanswered(batch)
        found += kept[: wanted - len(found)]
        if len(found) == wanted:
            return found
        if not batch:
            break
    raise ConfigError(
        f"the world has only {len(found)} of {wanted} questions of type {kind} with {hops} hops; "
        "raise entities, or lower train, dev and test or the weight of this type"
    )
