"""What VinePPO's values cost beside the rollouts that they value: sampled tokens, episodes and seconds.

The paper calls per-step branching and Monte Carlo expansion expensive and gives no number; T steps a trajectory and K
continuations a state make T K continuations for each trajectory, each about half as long: at T = 3.5 and K = 9 some 15
to 20 times the sampling. Measured here for the packaged policy in the built-in world, for each K:

- `plain`: every state of every trajectory, V(s_0) too, estimated on its own;
- `shared`: states that members share estimated once;
- `reused`: the same, and V(s_0) is the mean return of the group (what `credit.rule = "vine"` does by default).

Seconds are those of the whole batch in lock-step, after one batch to warm up; every setting values the same rollouts.

    python benchmarks/vine_cost.py --steps 2 --out vine_cost.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factagent.configuration import load_config
from factagent.credit.assign import outcome_and_success
from factagent.evaluation.local import prepare_process, protocol_of
from factagent.methods.sampling import sample
from factagent.methods.vine import VineSettings, vine_values
from factagent.train.config import RunConfig
from factagent.train.loop import questions_of_step
from factagent.train.setup import load_data, load_policy
from factagent.types import Group, Question, Trajectory

HERE = Path(__file__).resolve().parent
SETTINGS = ("plain", "shared", "reused")


class Bench:
    """Policy, data and budgets of one configuration."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.data = load_data(config.data)
        self.policy = load_policy(config)
        self.protocol = protocol_of(config.rollout)
        self.settings = config.rollout.settings()

    def rollout(self, step: int) -> tuple[list[Group], int, float]:
        """The groups of a step, the tokens that they took, and the seconds."""
        schedule = self.config.schedule
        questions = questions_of_step(self.data.train, step, schedule.questions_per_step, self.config.seed)
        began = time.perf_counter()
        key = (self.config.seed, "vine-cost", step)
        where = (self.protocol, self.policy, self.data.retriever, self.settings)
        sampled = sample(questions, *where, key, self.config.credit)
        return sampled.groups, sampled.tokens, time.perf_counter() - began

    def outcome(self, question: Question, trajectory: Trajectory) -> float:
        """The reward of the configuration's rule."""
        return outcome_and_success(question, trajectory, self.config.credit)[0]

    def value(self, groups: Sequence[Group], setting: str, continuations: int, step: int) -> dict[str, float]:
        """What it takes to value the states of a batch."""
        if setting == "plain":
            groups = [Group(group.question, (each,)) for group in groups for each in group.trajectories]
        vine = VineSettings(continuations, reuse_group=setting == "reused")
        began = time.perf_counter()
        where = (self.protocol, self.policy, self.data.retriever, self.settings)
        found = vine_values(groups, self.outcome, *where, (self.config.seed, "vine", step), vine)
        seconds = time.perf_counter() - began
        return {"tokens": found.tokens, "seconds": seconds, "continuations": found.states * continuations}


def run(bench: Bench, counts: Sequence[int], steps: int) -> dict[str, Any]:
    """All settings on the rollouts of `steps` steps."""
    bench.rollout(0)  # warm-up
    totals: dict[str, dict[str, float]] = {}
    base = {"trajectories": 0.0, "steps": 0.0, "tokens": 0.0, "seconds": 0.0}
    for step in range(1, steps + 1):
        groups, tokens, seconds = bench.rollout(step)
        lengths = [len(trajectory.steps) for group in groups for trajectory in group.trajectories]
        for key, value in zip(base, (len(lengths), sum(lengths), tokens, seconds), strict=True):
            base[key] += value
        for count in counts:
            for setting in SETTINGS:
                total = totals.setdefault(f"K={count} {setting}", {})
                for key, value in bench.value(groups, setting, count, step).items():
                    total[key] = total.get(key, 0.0) + value
    rows = {name: {**total, **_ratios(total, base)} for name, total in totals.items()}
    return {"rollout": {**base, "steps_per_trajectory": base["steps"] / base["trajectories"]}, "vine": rows}


def _ratios(total: dict[str, float], base: dict[str, float]) -> dict[str, float]:
    return {
        "continuations_per_trajectory": total["continuations"] / base["trajectories"],
        "tokens_ratio": total["tokens"] / base["tokens"],
        "seconds_ratio": total["seconds"] / base["seconds"],
    }


def show(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rollout = result["rollout"]
    lines = [
        f"{rollout['trajectories']:.0f} trajectories of {rollout['steps_per_trajectory']:.2f} steps, "
        f"{rollout['tokens']:.0f} tokens sampled in {rollout['seconds']:.1f} s.",
        "",
        "| values | continuations a trajectory | sampled tokens | x rollout | seconds | x rollout |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in result["vine"].items():
        lines.append(
            f"| {name} | {row['continuations_per_trajectory']:.1f} | {row['tokens']:.0f} | "
            f"{row['tokens_ratio']:.1f} | {row['seconds']:.1f} | {row['seconds_ratio']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=HERE.parent / "configs" / "tiny.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override the configuration")
    parser.add_argument("--continuations", type=int, action="append", help="K; repeat for several (default 4 and 9)")
    parser.add_argument("--steps", type=int, default=2, help="steps whose rollouts are valued")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        overrides = [f"data.directory={place}/world", "credit={rule='vine'}", *options.set]
        config = load_config(RunConfig, options.config, overrides)
        prepare_process(config.threads, config.seed)
        result = run(Bench(config), options.continuations or [4, 9], options.steps)
    print(show(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
