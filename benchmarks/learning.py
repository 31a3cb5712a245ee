"""Bar: learning curves of FactAgent's credit rule, its ablations and its controls.

Same cold start, same questions in the same order, same number of steps; only the `credit` table differs. Runs are
interleaved (all variants of a seed before the next seed), each in a directory of its own, and resumable: call again and
it goes on where it stopped. At the end: a table (Markdown and JSON) and a figure of greedy dev EM and fact
coverage over training, means over seeds with 95 % t intervals, and each variant's difference to outcome-only, paired by
seed.

    python benchmarks/learning.py --out runs/learning --seeds 3 --steps 8 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from factagent.configuration import load_config
from factagent.data.world.build import build_world
from factagent.runs import read_metrics
from factagent.train.config import RunConfig

VARIANTS: dict[str, tuple[str, ...]] = {
    "outcome only": ("credit.process_weight=0",),
    "FactAgent (paper)": (),
    "exact-match clustering": ("credit.equivalence=exact",),
    "no redistribution": ("credit.attribution=0",),
    "penalties only": ("credit.utility=none",),
    "centred prior": ("credit.prior=centred",),
    "centred + leave-one-out": ("credit.prior=centred", "credit.counting=leave-one-out"),
    "centred + consensus": ("credit.prior=centred", "credit.consensus=0.1"),
}
"""Overrides of the configuration's `credit` table. "Penalties only" is the paper's reward without its process term but
with its auxiliary penalties; "outcome only" has neither."""

BASELINE = "outcome only"
CURVES = {"em": "EM (dev, greedy)", "coverage": "fact coverage (dev, greedy)"}


def slug(variant: str, seed: int) -> str:
    """The directory name of one run."""
    words = "".join(c if c.isalnum() else "-" for c in variant.lower())
    return f"{'-'.join(filter(None, words.split('-')))}.seed{seed}"


def run_one(directory: Path, config: Path, overrides: Sequence[str], seed: int, steps: int) -> float:
    """Train one run, or what is left of it; returns its wall time in seconds (0 where it was finished)."""
    if (directory / "summary.json").exists():
        return 0.0
    began = time.perf_counter()
    command = [sys.executable, "-m", "factagent.cli", "train", "--steps", str(steps)]
    if (directory / "config.toml").exists():
        command += ["--resume", str(directory)]
    else:
        command += ["--config", str(config), "--out", str(directory)]
        for override in (*overrides, f"seed={seed}", "threads=1"):
            command += ["--set", override]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (directory.parent / f"{directory.name}.log").open("ab") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{directory.name}: exit code {done.returncode}; see {directory}.log")
    print(f"{directory.name}: {time.perf_counter() - began:.0f} s", flush=True)
    return time.perf_counter() - began


def curve(directory: Path, key: str) -> tuple[list[int], list[float]]:
    """Steps and dev values of one run, the final evaluation included."""
    points = {row["step"]: row["eval"][key] for row in read_metrics(directory) if "eval" in row}
    summary = json.loads((directory / "summary.json").read_text())
    points[summary["steps"]] = summary["after"][key]
    return list(points), list(points.values())


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % t interval over seeds (no width with one seed)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, mean, mean
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half


def table(out: Path, variants: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """One row a variant: final EM and coverage, the difference to the baseline, starting groups, cost."""
    summaries = {
        (variant, seed): json.loads((out / slug(variant, seed) / "summary.json").read_text())
        for variant in variants
        for seed in range(seeds)
    }
    rows = []
    for variant in variants:
        runs = [out / slug(variant, seed) for seed in range(seeds)]
        final = [summaries[variant, seed]["em_after"] for seed in range(seeds)]
        base = [summaries[BASELINE, seed]["em_after"] for seed in range(seeds)] if BASELINE in variants else final
        metrics = [row for run in runs for row in read_metrics(run) if row["step"] > 0]
        rows.append(
            {
                "variant": variant,
                "em_start": float(np.mean([summaries[variant, seed]["em_before"] for seed in range(seeds)])),
                "em": interval(final),
                "em_minus_baseline": interval([a - b for a, b in zip(final, base, strict=True)]),
                "coverage": interval([curve(run, "coverage")[1][-1] for run in runs]),
                "steps_per_question": float(np.mean([summaries[variant, s]["after"]["steps"] for s in range(seeds)])),
                "all_fail_groups_first_5": float(np.mean([m["all_fail_groups"] for m in metrics if m["step"] <= 5])),
                "all_fail_groups_last_5": float(
                    np.mean([m["all_fail_groups"] for m in metrics if m["step"] > metrics[-1]["step"] - 5])
                ),
                "mean_abs_process": float(np.mean([m["mean_abs_process"] for m in metrics])),
                "seconds_per_step": float(np.mean([m["seconds"]["total"] for m in metrics])),
                "credit_seconds_per_step": float(np.mean([m["seconds"]["credit"] for m in metrics])),
            }
        )
    return rows


def markdown(rows: Sequence[dict[str, Any]], seeds: int) -> str:
    """The table as Markdown."""

    def shown(triple: Sequence[float]) -> str:
        return f"{triple[0]:.3f} [{triple[1]:.3f}, {triple[2]:.3f}]"

    lines = [
        "All-fail groups: share in the first and the last five steps.",
        "",
        f"| variant ({seeds} seeds) | EM start | EM end | minus outcome-only | coverage | rounds | all-fail groups |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['variant']} | {row['em_start']:.3f} | {shown(row['em'])} | {shown(row['em_minus_baseline'])} | "
        f"{shown(row['coverage'])} | {row['steps_per_question']:.2f} | "
        f"{row['all_fail_groups_first_5']:.2f} / {row['all_fail_groups_last_5']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def figure(out: Path, variants: Sequence[str], seeds: int) -> None:
    """Curves of all variants: mean over seeds, band of the 95 % t interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(1, len(CURVES), figsize=(11, 4.2), layout="constrained")
    for axis, (key, label) in zip(axes, CURVES.items(), strict=True):
        for variant in variants:
            curves = [curve(out / slug(variant, seed), key) for seed in range(seeds)]
            points = [interval([values[i] for _, values in curves]) for i in range(len(curves[0][0]))]
            steps, (mean, low, high) = curves[0][0], zip(*points, strict=True)
            axis.plot(steps, mean, label=variant, linewidth=1.6)
            axis.fill_between(steps, low, high, alpha=0.08)
        axis.set(xlabel="step", ylabel=label)
        axis.grid(alpha=0.25)
    axes[0].legend(fontsize=8, frameon=False)
    canvas.savefig(out / "learning.png", dpi=130)


def main() -> None:
    """Run what is missing, then write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/learning.toml"))
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), help="a part of the variants")
    arguments = parser.parse_args()
    variants = [variant for variant in VARIANTS if not arguments.only or variant in arguments.only]
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = load_config(RunConfig, arguments.config).data
    if data.world is not None and data.directory is not None:
        build_world(data.world, data.directory)  # once, before runs that start together ask for it
    plan = [(variant, seed) for seed in range(arguments.seeds) for variant in variants]
    began = time.perf_counter()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [
            pool.submit(
                run_one,
                arguments.out / slug(variant, seed),
                arguments.config,
                VARIANTS[variant],
                seed,
                arguments.steps,
            )
            for variant, seed in plan
        ]
        for job in jobs:
            job.result()
    rows = table(arguments.out, variants, arguments.seeds)
    (arguments.out / "table.json").write_text(json.dumps(rows, indent=2) + "\n")
    (arguments.out / "table.md").write_text(markdown(rows, arguments.seeds))
    figure(arguments.out, variants, arguments.seeds)
    print(markdown(rows, arguments.seeds))
    print(f"{time.perf_counter() - began:.0f} s in this call; figure and table in {arguments.out}")


if __name__ == "__main__":
    main()
