"""Bar: a training killed with SIGKILL at random instants loses nothing that was saved and goes on bit for bit.

Real runs of the packaged tiny policy in a small world: rollouts, credit, updates, dev evaluation, a checkpoint after
every step. First each setting trains unbroken. Then processes train, are killed, and go on from what the killed one
left, until the wanted number of kills is reached; a run that comes to its end is compared as a whole, and the next one
begins. Every other kill waits until a checkpoint is being written.

After each kill: the newest checkpoint opens (every byte is hashed), its files have the hashes that the unbroken run
wrote at that step, and at most one half-written one stands beside it. At the end of a run: all metrics and all
trajectories equal the unbroken run's.

    python benchmarks/kills.py [--kills 200] [--minutes M] [--seed 0] [--out DIR]

One process imports torch and forks those that train, so that a kill costs seconds. Exit code 1 where a check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from factagent.configuration import load_config
from factagent.errors import FactAgentError
from factagent.runs import metrics_digest, read_groups
from factagent.train.checkpoint import MANIFEST, checkpoint_steps, latest, load_checkpoint
from factagent.train.config import RunConfig
from factagent.train.run import resume_training, start_training

STEPS = 8
GIVE_UP_S = 600.0
KILL_WITHIN = 0.25
"""Instants of kills are drawn from this first share of what an unbroken run takes: about two checkpoints' time."""

COMMON = (
    "threads=1",
    "model.device=cpu",
    "data.world={entities=600, train=48, dev=8, test=0, hops=[1, 2]}",
    "rollout.group_size=3",
    "rollout.max_rounds=4",
    "rollout.max_new_tokens=40",
    "schedule.questions_per_step=2",
    "schedule.eval_every=4",
    "schedule.eval_questions=4",
    "schedule.checkpoint_every=1",
    f"schedule.steps={STEPS}",
    "alarms.ignore=true",
    "credit.encoder=exact",
    "rollout.prompt=factagent-terse",
)
SETTINGS: dict[str, tuple[str, ...]] = {
    "fact utility": COMMON,
    "critic, one row a trajectory": (
        *COMMON[:-2],
        "credit={rule='gae', kl_in_reward=0.01}",
        "rollout.protocol=react",
        "rollout.prompt=react-terse",
        "learner.updates_per_batch=2",
    ),
}


@dataclass
class Tally:
    """What happened so far."""

    kills: int = 0
    while_writing: int = 0
    finished: int = 0
    stale: int = 0
    unsaved: int = 0
    faults: list[str] = field(default_factory=list)
    at_step: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class Unbroken:
    """What a run without kills wrote: hashes of each step's files, and of metrics and trajectories."""

    config: RunConfig
    steps: dict[int, dict[str, str]]
    whole: tuple[str, str]
    seconds: float


def in_child(work: Callable[[], object], log: Path) -> int:
    """Fork a process that does the work and ends; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        torch.set_num_threads(1)
        work()
        code = 0
    finally:
        os._exit(code)


def files_of(checkpoint: Path) -> dict[str, str]:
    """Hash of each file, from the manifest."""
    entries = json.loads((checkpoint / MANIFEST).read_bytes())["files"]
    return {name: entry["sha256"] for name, entry in entries.items()}


def whole_of(run: Path) -> tuple[str, str]:
    """Digests of all metrics and all trajectories of a finished run."""
    return metrics_digest(run), hashlib.sha256(repr(list(read_groups(run))).encode()).hexdigest()


def train_unbroken(name: str, world: Path, out: Path) -> Unbroken:
    """One run without kills, all of its checkpoints kept."""
    run = out / "unbroken"
    overrides = (*SETTINGS[name], f"data.directory='{world}'")
    config = load_config(RunConfig, None, overrides)
    kept = load_config(RunConfig, None, (*overrides, "schedule.keep_last=1000"))
    began = time.perf_counter()
    _, status = os.waitpid(in_child(lambda: start_training(kept, run), out / "unbroken.log"), 0)
    if status:
        raise SystemExit(f"{name}: the unbroken run failed; see {out / 'unbroken.log'}")
    steps = {step: files_of(run / "checkpoints" / f"step-{step}") for step in checkpoint_steps(run / "checkpoints")}
    return Unbroken(config, steps, whole_of(run), time.perf_counter() - began)


def is_writing(checkpoints: Path) -> bool:
    """Whether a checkpoint is being written (or deleted) now."""
    return checkpoints.is_dir() and any(entry.name.endswith(".tmp") for entry in checkpoints.iterdir())


def wait_to_kill(child: int, run: Path, draws: random.Random, seconds: float, tally: Tally) -> bool:
    """Wait for a random instant, or for one at which a checkpoint is written; False where the process ended before."""
    until = time.perf_counter() + draws.uniform(0.0, seconds)
    on_write = tally.kills % 2 == 1
    deadline = time.perf_counter() + GIVE_UP_S
    while time.perf_counter() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        if time.perf_counter() >= until and (not on_write or is_writing(run / "checkpoints")):
            if on_write:
                time.sleep(draws.uniform(0.0, 0.01))
            break
        time.sleep(0.0005)
    tally.while_writing += is_writing(run / "checkpoints")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    tally.kills += 1
    return True


def check(run: Path, unbroken: Unbroken, tally: Tally) -> None:
    """Compare what a killed process left with the unbroken run."""
    checkpoints = run / "checkpoints"
    stale = sum(entry.name.endswith(".tmp") for entry in checkpoints.iterdir()) if checkpoints.is_dir() else 0
    tally.stale += stale
    if stale > 1:
        tally.faults.append(f"kill {tally.kills}: {stale} half-written checkpoints")
    newest = latest(checkpoints)
    if newest is None:
        tally.unsaved += 1
        return
    try:
        step = load_checkpoint(newest).step
    except FactAgentError as error:
        tally.faults.append(f"kill {tally.kills}: {newest.name} does not open: {error}")
        return
    tally.at_step[step] += 1
    if files_of(newest) != unbroken.steps[step]:
        tally.faults.append(f"kill {tally.kills}: {newest.name} differs from the unbroken run's")


def train_killed(unbroken: Unbroken, out: Path, draws: random.Random, more: Callable[[], bool], tally: Tally) -> None:
    """One run from its start to its end (or to the last kill), killed on its way."""
    run = out / "killed"
    shutil.rmtree(run, ignore_errors=True)
    log = out / "killed.log"
    while more():
        begun = (run / "config.toml").exists()
        child = in_child(lambda b=begun: resume_training(run) if b else start_training(unbroken.config, run), log)
        if wait_to_kill(child, run, draws, KILL_WITHIN * unbroken.seconds, tally):
            check(run, unbroken, tally)
            print(f"kill {tally.kills}, faults {len(tally.faults)}", file=sys.stderr, flush=True)
            if run.exists() and not (run / "config.toml").exists():
                shutil.rmtree(run)
            continue
        tally.finished += 1
        if checkpoint_steps(run / "checkpoints")[-1:] != [STEPS]:
            tally.faults.append(f"run {tally.finished}: ended by itself before its last step; see {log}")
        elif whole_of(run) != unbroken.whole:
            tally.faults.append(f"run {tally.finished}: metrics or trajectories differ from the unbroken run's")
        return


def main() -> int:
    """Run the bar and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop earlier, after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where runs are kept; by default a folder that is deleted")
    options = parser.parse_args()
    began, draws, tally = time.perf_counter(), random.Random(options.seed), Tally()

    def more() -> bool:
        late = time.perf_counter() - began > 60 * options.minutes
        return tally.kills < options.kills and len(tally.faults) < 10 and not late

    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        places = {name: out / f"setting-{index}" for index, name in enumerate(SETTINGS)}
        for place in places.values():
            place.mkdir(parents=True, exist_ok=True)
        unbroken = {name: train_unbroken(name, out / "world", places[name]) for name in SETTINGS}
        while more():
            for name in SETTINGS:
                train_killed(unbroken[name], places[name], draws, more, tally)
                print(
                    json.dumps({"kills": tally.kills, "finished": tally.finished, "faults": tally.faults}), flush=True
                )
    row = {
        "kills": tally.kills,
        "while_writing": tally.while_writing,
        "before_the_first_checkpoint": tally.unsaved,
        "after_step": dict(sorted(tally.at_step.items())),
        "half_written_left": tally.stale,
        "runs_finished_and_equal": tally.finished - sum(fault.startswith("run") for fault in tally.faults),
        "faults": tally.faults,
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(row), flush=True)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
