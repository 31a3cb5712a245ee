"""Builds an approximate index in bounded memory, resumable, and measures its recall.

A sample trains the lists' centres and codes; parts of `part_rows` vectors are added each to its own file; the parts are
merged on disk; then `nprobe` is chosen so that recall@3 against exact search reaches the target. What is finished is
recorded with its hash in `progress.json`, so a killed build loses at most one part.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factagent.errors import CorruptError, UsageError
from factagent.retrieval.building import building_path, hold, place, refuse_target, write_whole
from factagent.retrieval.dense.approximate import (
    ApproximateIndex,
    SearchSettings,
    load_faiss,
    open_index,
    read_index,
    shortfall,
)
from factagent.retrieval.dense.approximate_manifest import (
    FAISS_NAME,
    FILE_NAMES,
    LISTS_NAME,
    MANIFEST_NAME,
    PRESETS,
    SIZES_NAME,
    ApproximateManifest,
    Preset,
    Recall,
    check_file,
    list_count,
    write_approximate_manifest,
)
from factagent.retrieval.dense.calibration import Sample, blocks, choose_nprobe, finite, perturbed_sample, sample_of
from factagent.retrieval.dense.vectors import VectorShards
from factagent.retrieval.manifest import FileRecord, file_record

logger = logging.getLogger(__name__)

TRAINING_POINTS_PER_LIST = 64
TRAINED_NAME = "trained.faiss"
PROGRESS_NAME = "progress.json"
Report = Callable[[str, int, int], None]
"""Told the stage ("train", "add", "merge", "measure"), how much of it is done, and how much it is in all."""


@dataclass(frozen=True, slots=True)
class ApproximateSettings:
    """How to build; None takes the preset's or the measured value.

    `nlist`: inverted lists (`list_count`). `nprobe`: lists a query looks into. `rerank`: candidates scored again.
    `target`: recall@3 that `nprobe` is chosen for; other queries score up to .01 lower. `queries`: how many queries
    measure it. `threads`: of faiss.
    `part_rows`: vectors of a part, which bounds memory and what a kill loses.
    """

    preset: Preset
    nlist: int | None = None
    nprobe: int | None = None
    rerank: int | None = None
    target: float = 0.97
    queries: int = 256
    seed: int = 0
    threads: int = 1
    part_rows: int = 500_000

    def __post_init__(self) -> None:
        for name in ("nlist", "nprobe", "queries", "threads", "part_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: must be at least 1")
        if self.preset not in PRESETS:
            raise UsageError(f"preset={self.preset!r}: choose one of {', '.join(PRESETS)}")
        if not 0 < self.target <= 1:
            raise UsageError(f"target={self.target}: must be above 0 and at most 1")
        if self.rerank is not None and self.rerank < 0:
            raise UsageError(f"rerank={self.rerank}: must be 0 (none) or more")


def build_approximate(
    shards: VectorShards,
    vectors: str,
    directory: Path,
    settings: ApproximateSettings,
    *,
    queries: NDArray[np.float32] | None = None,
    overwrite: bool = False,
    report: Report = lambda stage, done, total: None,
) -> ApproximateManifest:
    """Build the index of `shards` into `directory`, which appears in one piece at the end; run again to resume.

    Args:
        shards: the vectors, normalised.
        vectors: their identity (a hash), kept in the manifest.
        directory: where the index is to lie.
        settings: preset and numbers.
        queries: (n, d) vectors of real queries to measure recall with; else perturbed passages are used.
        overwrite: replace an index that is there.
        report: told of progress.

    Raises:
        UsageError: `directory` exists and `overwrite` is false, or a setting does not fit the vectors.
        TryAgainError: another process builds here.
    """
    began = time.monotonic()
    refuse_target(directory, MANIFEST_NAME, overwrite)
    if queries is not None and (queries.ndim != 2 or queries.shape[1] != shards.dimension or not len(queries)):
        raise UsageError(f"queries of shape {queries.shape}: expected (n, {shards.dimension}) with n of 1 or more")
    load_faiss().omp_set_num_threads(settings.threads)
    work = building_path(directory)
    with hold(work):
        build = _Build(shards, settings, work, _key(shards, vectors, settings), report)
        build.train()
        build.add()
        new = work / "new"
        build.merge(new)
        chosen, recall = build.measure(new, queries)
        manifest = _manifest(build, new, vectors, chosen, recall, time.monotonic() - began)
        write_approximate_manifest(new, manifest)
        place(new, directory)
        build.remove()
    if not recall.met:
        logger.warning("%s", shortfall(manifest))
    return manifest


class _Build:
    """A build in its working directory; each stage passes over what is already done."""

    def __init__(
        self, shards: VectorShards, settings: ApproximateSettings, work: Path, key: dict[str, object], report: Report
    ) -> None:
        self.shards, self.settings, self.work, self.report = shards, settings, work, report
        self.nlist = settings.nlist or list_count(len(shards))
        self.sample_rows = min(len(shards), TRAINING_POINTS_PER_LIST * self.nlist)
        if self.nlist > len(shards):
            raise UsageError(f"nlist={self.nlist}: must be at most {len(shards)}, the number of vectors")
        self._key = key
        self._done = _finished(work, key)

    @property
    def parts(self) -> list[tuple[str, int, int]]:
        """Name, first and last row of each part."""
        rows, total = self.settings.part_rows, len(self.shards)
        return [(f"part-{n:05d}.faiss", a, min(a + rows, total)) for n, a in enumerate(range(0, total, rows))]

    def train(self) -> None:
        """Learn centres and codes from a sample."""
        self.report("train", 0, self.sample_rows)
        if TRAINED_NAME not in self._done:
            rng = np.random.default_rng(self.settings.seed)
            rows = np.sort(rng.choice(len(self.shards), self.sample_rows, replace=False))
            index = _empty(self.settings.preset, self.shards.dimension, self.nlist, self.settings.seed)
            index.train(finite(self.shards.gather(rows)))
            self._keep(TRAINED_NAME, index)
        self.report("train", self.sample_rows, self.sample_rows)

    def add(self) -> None:
        """Fill the lists, part by part."""
        for name, first, last in self.parts:
            if name not in self._done:
                index = read_index(self.work / TRAINED_NAME, mapped=False)
                for start, block in blocks(self.shards, first, last):
                    index.add_with_ids(block, np.arange(start, start + len(block)))
                    self.report("add", start + len(block), len(self.shards))
                self._keep(name, index)
            self.report("add", last, len(self.shards))

    def merge(self, new: Path) -> None:
        """Write the lists of all parts into one file, list by list, with the layout that `open_index` maps."""
        faiss = load_faiss()
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        parts = [read_index(self.work / name) for name, _, _ in self.parts]
        lists = [faiss.extract_index_ivf(part).invlists for part in parts]
        sizes = np.zeros(self.nlist, np.uint64)
        with (new / LISTS_NAME).open("wb") as stream:
            for number in range(self.nlist):
                filled = [one for one in lists if one.list_size(number)]
                sizes[number] = sum(one.list_size(number) for one in filled)
                for one in filled:
                    stream.write(faiss.rev_swig_ptr(one.get_codes(number), one.list_size(number) * one.code_size))
                for one in filled:
                    stream.write(faiss.rev_swig_ptr(one.get_ids(number), one.list_size(number)))
                self.report("merge", number + 1, self.nlist)
        np.save(new / SIZES_NAME, sizes, allow_pickle=False)
        shutil.copyfile(self.work / TRAINED_NAME, new / FAISS_NAME)

    def measure(self, new: Path, queries: NDArray[np.float32] | None) -> tuple[SearchSettings, Recall]:
        """Choose `nprobe` (unless it is set) and measure recall@3."""
        settings, rng = self.settings, np.random.default_rng(self.settings.seed + 1)
        rerank = PRESETS[settings.preset].rerank if settings.rerank is None else settings.rerank
        index = ApproximateIndex(open_index(new), self.shards, SearchSettings(1, rerank), threads=settings.threads)

        def told(done: int) -> None:
            self.report("measure", done, len(self.shards))

        sample: Sample = (
            perturbed_sample(self.shards, settings.queries, rng, told) if queries is None
            else sample_of(self.shards, queries[: settings.queries], told)
        )  # fmt: skip
        nprobe, measured = choose_nprobe(index, sample, self.nlist, settings.target, settings.nprobe)
        return SearchSettings(nprobe, rerank), Recall(
            measured=measured, target=settings.target, queries=len(sample.queries),
            source="perturbed" if queries is None else "given",
        )  # fmt: skip

    def remove(self) -> None:
        """Remove the working files; the lock goes last."""
        for path in self.work.iterdir():
            if path.name != "lock":
                path.unlink()
        (self.work / "lock").unlink()
        self.work.rmdir()

    def _keep(self, name: str, index: Any) -> None:
        load_faiss().write_index(index, str(self.work / name))
        self._done[name] = file_record(self.work / name)
        records = {name: record.model_dump() for name, record in self._done.items()}
        write_whole(self.work / PROGRESS_NAME, json.dumps({"key": self._key, "files": records}, indent=1))


def _finished(work: Path, key: dict[str, object]) -> dict[str, FileRecord]:
    """Files of an earlier build of the same index that are whole; those of another build are removed."""
    try:
        progress = json.loads((work / PROGRESS_NAME).read_text("utf-8"))
        if progress["key"] != key:
            raise CorruptError("another build")
        records = {name: FileRecord.model_validate(record) for name, record in progress["files"].items()}
        for name, record in records.items():
            check_file(work / name, record)
    except FileNotFoundError:
        return {}
    except (CorruptError, ValueError, KeyError, TypeError, AttributeError) as problem:
        logger.warning("%s: the unfinished build there is of no use (%s); starting anew", work, problem)
        (work / PROGRESS_NAME).unlink()
        return {}
    logger.info("%s: going on with an unfinished build; %d parts are done", work, max(0, len(records) - 1))
    return records


def _key(shards: VectorShards, vectors: str, settings: ApproximateSettings) -> dict[str, object]:
    """What decides the bytes of trained index and parts; a build goes on only where it is equal."""
    chosen = {
        name: value for name, value in asdict(settings).items() if name in ("preset", "nlist", "seed", "part_rows")
    }
    return {**chosen, "vectors": vectors, "passages": len(shards), "dimension": shards.dimension,
            "faiss": load_faiss().__version__}  # fmt: skip


def _empty(preset: Preset, dimension: int, nlist: int, seed: int) -> Any:
    """The untrained index of a preset."""
    faiss = load_faiss()
    metric, centres = faiss.METRIC_INNER_PRODUCT, faiss.IndexFlatIP(dimension)
    if preset == "ivf-sq8":
        index = faiss.IndexIVFScalarQuantizer(centres, dimension, nlist, faiss.ScalarQuantizer.QT_8bit, metric)
    else:
        index = faiss.IndexIVFRaBitQ(centres, dimension, nlist, metric)
    index.cp.seed = seed + 1
    index.cp.min_points_per_centroid = 1  # small corpora are exact enough; faiss would print a warning
    if preset == "ivf-sq8":
        return index
    rotation = faiss.RandomRotationMatrix(dimension, dimension)
    rotation.init(seed + 1)
    return faiss.IndexPreTransform(rotation, index)


def _manifest(
    build: _Build, new: Path, vectors: str, chosen: SearchSettings, recall: Recall, seconds: float
) -> ApproximateManifest:
    files = {name: file_record(new / name) for name in FILE_NAMES}
    return ApproximateManifest(
        faiss=load_faiss().__version__,
        preset=build.settings.preset,
        passages=len(build.shards),
        dimension=build.shards.dimension,
        vectors=vectors,
        nlist=build.nlist,
        nprobe=chosen.nprobe,
        rerank=chosen.rerank,
        seed=build.settings.seed,
        trained_on=build.sample_rows,
        recall=recall,
        bytes_per_vector=sum(record.bytes for record in files.values()) / len(build.shards),
        build_seconds=round(seconds, 1),
        files=files,
    )
