"""Bar: an RL step by phase, and its trained tokens per second against TRL's GRPOTrainer on the same model.

One run, interleaved step by step, so that a busy machine is busy for everybody. In turn:

- `factagent`: a whole step as `factagent train` takes it: multi-turn rollouts with retrieval, credit, learn.
- `single-turn`: our sampler and learner on TRL's workload: the same prompts, the same reward.
- `trl-N`: a step of GRPOTrainer in a process and a virtual environment of its own (`step_trl.py`), with N rows a
  forward pass. The best N is compared.

TRL's trainer knows one prompt and one reply. Its prompts are step prompts from rollouts of ours: one member a group,
all rounds, each sampled as often as a group has members; so rows and lengths are about those of our steps. All have the
same weights, temperature, reply limit, KL to a reference, optimiser, one update a batch, threads, precision and
allocator settings. The learning rate is too small to change the lengths of replies within the run.

A trained token is a sampled token that enters the loss; seconds are those of sampling, reward or credit, and update.

    python benchmarks/step.py --model DIR --steps 6 --precision bf16 --precision fp32
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from factagent.configuration import load_config
from factagent.credit.advantages import outcome_advantages
from factagent.credit.assign import assign_credit
from factagent.credit.encoders import load_encoder
from factagent.evaluation.local import model_path, prepare_process, protocol_of
from factagent.policies.base import GenerationRequest
from factagent.policies.transformers import TransformersPolicy
from factagent.protocols.state import State
from factagent.rollout import sample_groups
from factagent.train.config import RunConfig
from factagent.train.learner import Learner
from factagent.train.loop import StepClock, questions_of_step, samples_of
from factagent.train.samples import Sample, count_loss_tokens, micro_batches, padding_share, step_samples
from factagent.train.setup import Data, load_data, load_policy
from factagent.types import Answer, Group, Message, Question, Step, Trajectory

HERE = Path(__file__).resolve().parent
TORCH, TRL = "torch==2.13.0", ("trl==1.16.0", "transformers==5.23.0")
"""What TRL's virtual environment holds: the torch and the transformers that we run on."""
GOAL = 2.0
LEARNING_RATE = 1e-7
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(0x7FFFFFFF)}
"""What `prepare_process` sets for us, so that TRL's process has it too."""

Prompt = tuple[Message, ...]


@dataclass(frozen=True)
class Measured:
    """One step of one side."""

    seconds: dict[str, float]
    """By phase."""
    trained: int
    """Sampled tokens that entered the loss."""
    read: int
    """Prompt tokens of the rows trained on."""
    rows: int
    cpu: float
    """CPU seconds of the process, all threads: what to compare with one thread on a machine that others use too."""

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())


class Ours:
    """Our policy and learner in one precision."""

    def __init__(self, config: RunConfig, data: Data) -> None:
        self.config = config
        self.data = data
        self.policy: TransformersPolicy = load_policy(config)
        self.learner = Learner(self.policy.model, config.learner, config.rollout.temperature)
        self.protocol = protocol_of(config.rollout)
        self.encoder = load_encoder(config.credit.encoder)
        self.exact = config.credit.model_copy(update={"encoder": "exact"})
        self.exact_encoder = load_encoder("exact")

    def groups(self, step: int, *, record_messages: bool = False) -> list[Group]:
        """The rollouts of a step (1-based)."""
        questions = questions_of_step(self.data.train, step, self.config.schedule.questions_per_step, self.config.seed)
        settings = self.config.rollout.settings(record_messages=record_messages)
        key = (self.config.seed, "benchmark", step)
        return sample_groups(questions, self.protocol, self.policy, self.data.retriever, settings, key)

    def whole_step(self, step: int) -> tuple[Measured, dict[str, float]]:
        """A step as the training loop takes it; and figures beside it (exact credit, padding, texts)."""
        clock, append, cpu = StepClock(), self.protocol.context == "append", time.process_time()
        with clock.phase("rollout"):
            groups = self.groups(step)
        with clock.phase("credit"):
            credits = assign_credit(groups, self.config.credit, self.encoder)
            samples = samples_of(groups, credits, append=append)
        with clock.phase("learn"):
            self.learner.update(samples, step)
        cpu = time.process_time() - cpu
        began = time.perf_counter()
        samples_of(groups, assign_credit(groups, self.exact, self.exact_encoder), append=append)
        beside = {"credit_exact": time.perf_counter() - began}
        cut = micro_batches(samples, self.config.learner.token_budget)
        return _measured(clock, samples, cpu), beside | dict(padding_share(samples, cut))

    def single_turn(self, prompts: Sequence[Prompt], step: int) -> Measured:
        """TRL's step by our sampler and learner: one reply a row, its advantage within the group of its prompt."""
        clock, size, cpu = StepClock(), self.config.rollout.group_size, time.process_time()
        state = State(Question("benchmark", "", ()), 1)
        with clock.phase("rollout"):
            keys = [(prompt, (self.config.seed, step, i, m)) for i, prompt in enumerate(prompts) for m in range(size)]
            generations = self.policy.generate([GenerationRequest(prompt, state, None, key) for prompt, key in keys])
        with clock.phase("credit"):
            rewards = np.array([reward(g.response_ids) for g in generations]).reshape(-1, size)
            advantages = np.concatenate([outcome_advantages(rewards_G) for rewards_G in rewards])
            samples: list[Sample] = []
            for row, (generation, advantage) in enumerate(zip(generations, advantages, strict=True)):
                trajectory = Trajectory((Step(Answer(""), generation),))
                samples += step_samples(trajectory, [float(advantage)], row // size)
        with clock.phase("learn"):
            self.learner.update(samples, step)
        return _measured(clock, samples, time.process_time() - cpu)


def reward(ids: Sequence[int]) -> float:
    """A reward that costs nothing, never helps, and differs between replies (`step_trl.py` has the same)."""
    return sum(ids) % 7 / 7


def _measured(clock: StepClock, samples: Sequence[Sample], cpu: float) -> Measured:
    read = sum(len(sample.prompt_ids) for sample in samples)
    return Measured(dict(clock.seconds), count_loss_tokens(samples), read, len(samples), cpu)


class Trl:
    """A process that takes one step of GRPOTrainer whenever it is asked to."""

    def __init__(self, python: Path, spec: dict[str, Any], directory: Path) -> None:
        file = directory / f"spec-{spec['rows']}-{spec['precision']}.json"
        file.write_text(json.dumps(spec), "utf-8")
        self.process = subprocess.Popen(
            [str(python), str(HERE / "step_trl.py"), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ALLOCATOR | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        self.ready = self._read()

    def step(self) -> Measured:
        """Ask for one step."""
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        row = self._read()
        return Measured(row["seconds"], row["trained"], row["read"], row["rows"], row["cpu"])

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"step_trl.py ended with exit code {self.process.wait()}; its message is above")
        row: dict[str, Any] = json.loads(line)
        return row

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def environment(directory: Path) -> Path:
    """The Python of TRL's virtual environment, made where it is absent."""
    python, done = directory / "bin" / "python", directory / "installed"
    if not done.exists() or done.read_text() != " ".join((TORCH, *TRL)):
        print(f"installing {TORCH} and {', '.join(TRL)} into {directory}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, TORCH], check=True)
        subprocess.run([*install, TORCH, *TRL], check=True)
        done.write_text(" ".join((TORCH, *TRL)))
    return python


def step_prompts(groups: Sequence[Group]) -> list[Prompt]:
    """The prompts of all rounds of one member a group (members in turn)."""
    chosen = [group.trajectories[i % len(group.trajectories)] for i, group in enumerate(groups)]
    return [messages for trajectory in chosen for messages in trajectory.messages]


def batches_of_prompts(ours: Ours, steps: int, multiple: int) -> list[list[Prompt]]:
    """One batch of prompts a step, all of one size, which is a multiple of what TRL reads at once."""
    batches = [step_prompts(ours.groups(step, record_messages=True)) for step in range(1, steps + 1)]
    size = min(map(len, batches)) // multiple * multiple
    if size == 0:
        raise SystemExit(f"a step has fewer than {multiple} prompts; lower --trl-rows or raise --questions")
    return [[batch[i * len(batch) // size] for i in range(size)] for batch in batches]


def trl_spec(config: RunConfig, batches: Sequence[Sequence[Prompt]], rows: int) -> dict[str, Any]:
    """Everything `step_trl.py` needs to know."""
    chats = [[{"role": m.role, "content": m.content} for m in prompt] for batch in batches for prompt in batch]
    learner, rollout = config.learner, config.rollout
    return {
        "model": str(model_path(config.model.path).resolve()),
        "prompts": chats,
        "steps": len(batches),
        "batch_rows": len(batches[0]) * rollout.group_size,
        "rows": rows,
        "generations": rollout.group_size,
        "max_new_tokens": rollout.max_new_tokens,
        "temperature": rollout.temperature,
        "beta": learner.kl_coef,
        "epsilon": learner.clip_low,
        "learning_rate": learner.learning_rate,
        "grad_clip": learner.grad_clip,
        "precision": learner.precision,
        "threads": config.threads,
    }


def compare(config: RunConfig, data: Data, python: Path | None, options: argparse.Namespace) -> dict[str, Any]:
    """All sides in turn for `options.steps` steps, after one step each that is not counted."""
    ours, steps = Ours(config, data), options.steps + 1
    size = config.rollout.group_size
    batches = batches_of_prompts(ours, steps, max(options.trl_rows) // size)
    sides: dict[str, list[Measured]] = {}
    beside: list[dict[str, float]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trl = {}
        for rows in options.trl_rows if python else ():
            trl[f"trl-{rows}"] = process = Trl(python, trl_spec(config, batches, rows), directory)
            stack.callback(process.close)
        for step in range(1, steps + 1):
            measured, figures = ours.whole_step(step)
            sides.setdefault("factagent", []).append(measured)
            beside.append(figures)
            sides.setdefault("single-turn", []).append(ours.single_turn(batches[step - 1], step))
            for name, process in trl.items():
                sides.setdefault(name, []).append(process.step())
                check_same(sides["single-turn"][-1], sides[name][-1], name)
            now = ", ".join(f"{name} {rows[-1].total:.2f} s" for name, rows in sides.items())
            load = os.getloadavg()[0]
            print(f"{config.learner.precision} step {step}/{steps}: {now}; load {load:.1f}", file=sys.stderr)
            beside[-1]["load"] = load
    counted = {name: rows[1:] for name, rows in sides.items()}
    return {
        "sides": {name: summary(rows) for name, rows in counted.items()},
        "beside": {key: float(np.median([figures[key] for figures in beside[1:]])) for key in beside[0]},
        "ratios": ratios(counted),
        "versions": {name: process.ready for name, process in trl.items()},
    }


def check_same(ours: Measured, theirs: Measured, name: str) -> None:
    """Both must have read as many rows and as many prompt tokens, or the comparison means nothing."""
    if (ours.rows, ours.read) != (theirs.rows, theirs.read):
        raise SystemExit(
            f"{name} read {theirs.rows} rows of {theirs.read} prompt tokens, we {ours.rows} of {ours.read}; "
            "the chat template must give both the same tokens"
        )


def summary(rows: Sequence[Measured]) -> dict[str, Any]:
    """Medians over steps."""
    phases = {phase: float(np.median([row.seconds[phase] for row in rows])) for phase in rows[0].seconds}
    return {
        "seconds": phases | {"total": float(np.median([row.total for row in rows]))},
        "cpu_seconds": float(np.median([row.cpu for row in rows])),
        "trained_tokens_per_cpu_second": float(np.median([row.trained / row.cpu for row in rows])),
        "rows": float(np.median([row.rows for row in rows])),
        "trained_tokens": float(np.median([row.trained for row in rows])),
        "trained_tokens_per_second": float(np.median([row.trained / row.total for row in rows])),
        "tokens_per_second": float(np.median([(row.trained + row.read) / row.total for row in rows])),
        "tokens_per_row": [
            sum(r.read for r in rows) / sum(r.rows for r in rows),
            sum(r.trained for r in rows) / sum(r.rows for r in rows),
        ],
        "every_step": [
            {"seconds": row.seconds, "cpu": row.cpu, "trained": row.trained, "read": row.read} for row in rows
        ],
    }


def ratios(sides: dict[str, list[Measured]]) -> dict[str, Any]:
    """Trained tokens per second of each of our sides over TRL's best, step by step: median, smallest, largest.

    By wall time (the bar) and by CPU time. The best of TRL's is the fastest by the same measure.
    """
    trl = [name for name in sides if name.startswith("trl")]
    found: dict[str, Any] = {}
    for measure in ("wall", "cpu") if trl else ():
        rates = {
            name: np.array([row.trained / (row.cpu if measure == "cpu" else row.total) for row in rows])
            for name, rows in sides.items()
        }
        best = max(trl, key=lambda name: float(np.median(rates[name])))
        found[measure] = {"against": best}
        for name in ("single-turn", "factagent"):
            pairs = rates[name] / rates[best]
            found[measure][name] = [float(np.median(pairs)), float(pairs.min()), float(pairs.max())]
    return found


def show(precision: str, result: dict[str, Any]) -> str:
    """A table of one precision."""
    lines = [
        f"\n{precision}: medians over steps",
        f"{'side':<12}{'rollout':>9}{'credit':>8}{'learn':>8}{'total s':>9}{'cpu s':>8}{'rows':>6}{'prompt/row':>11}"
        f"{'reply/row':>10}{'trained':>9}{'trained/s':>10}{'all/s':>8}",
    ]
    for name, side in result["sides"].items():
        seconds, (read, written) = side["seconds"], side["tokens_per_row"]
        lines.append(
            f"{name:<12}{seconds['rollout']:>9.2f}{seconds['credit']:>8.2f}{seconds['learn']:>8.2f}"
            f"{seconds['total']:>9.2f}{side['cpu_seconds']:>8.2f}"
            f"{side['rows']:>6.0f}{read:>11.1f}{written:>10.1f}{side['trained_tokens']:>9.0f}"
            f"{side['trained_tokens_per_second']:>10.0f}{side['tokens_per_second']:>8.0f}"
        )
    beside = result["beside"]
    lines.append(f"our credit with the encoder exact instead: {beside['credit_exact']:.3f} s")
    lines.append(f"padding in our learner's batches: {beside['padding_share']:.1%}; load average {beside['load']:.1f}")
    for measure, found in result["ratios"].items():
        for name in ("single-turn", "factagent"):
            middle, low, high = found[name]
            verdict = f"; goal {GOAL:g}x {'met' if middle >= GOAL else 'missed'}" if measure == "wall" else ""
            lines.append(f"{measure}: {name} / {found['against']}: {middle:.2f}x [{low:.2f}, {high:.2f}]{verdict}")
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=HERE.parent / "configs" / "tiny.toml")
    parser.add_argument("--model", default="tiny", help="model directory; 'tiny' is the packaged policy")
    parser.add_argument("--steps", type=int, default=6, help="counted steps a side; one more warms up")
    parser.add_argument("--questions", type=int, default=16, help="questions a step")
    parser.add_argument("--precision", action="append", choices=["bf16", "fp32"], help="repeatable; both by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trl-rows", type=int, action="append", help="multiples of the group size; default 96 and 192")
    parser.add_argument("--trl-env", type=Path, default=Path(".venv-trl"), help="TRL's own, made if absent")
    parser.add_argument("--no-trl", action="store_true", help="our side alone")
    parser.add_argument("--set", action="append", default=[], help="override a key of the configuration; repeatable")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    options.trl_rows = options.trl_rows or [96, 192]
    python = None if options.no_trl else environment(options.trl_env).absolute()
    results = {}
    for precision in options.precision or ["bf16", "fp32"]:
        overrides = [f"learner.precision={precision}", f"rollout.precision={precision}", f"threads={options.threads}"]
        overrides += ["model.device=cpu"]  # where TRL is measured too
        overrides += [f"learner.learning_rate={LEARNING_RATE}", f"schedule.questions_per_step={options.questions}"]
        config = load_config(RunConfig, options.config, [*overrides, f"model.path={options.model}", *options.set])
        prepare_process(config.threads)
        results[precision] = compare(config, load_data(config.data), python, options)
        print(show(precision, results[precision]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
