"""Search-R1 on two CPU ranks: one masked sequence a trajectory, passages inside it, credit of the outcome alone.

The packaged policy writes FactAgent's format, so it would earn nothing here. A cold start in this process, too short to
be right every time, gives it outcomes that differ within a group, and so advantages of both signs.
"""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import pytest

from factagent.configuration import load_config
from factagent.runs import read_groups, read_metrics
from factagent.train.config import RunConfig
from factagent.train.run import start_sft, start_training
from factagent.types import Invalid, StopReason

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from engines import assert_same_groups, assert_same_metrics, factagent  # noqa: E402

GROUPS, MEMBERS = 5, 3

CONFIG = f"""
name = "verl-append"
method = "search-r1"
threads = 1
engine = "verl"

[data]
directory = "WORLD"

[data.world]
hops = [1]
type_weights = {{ chain = 1.0 }}
train = 60
dev = 4
test = 4
distractors = 0

[rollout]
prompt = "terse"
group_size = {MEMBERS}
max_rounds = 3
max_new_tokens = 48
max_prompt_tokens = 960
top_k = 1
temperature = 1.0
precision = "fp32"

[learner]
learning_rate = 1e-3
updates_per_batch = 2
aggregation = "token-mean"
token_budget = 4096
precision = "fp32"
kl_coef = 0.01

[schedule]
steps = 1
questions_per_step = {GROUPS}
eval_every = 0
checkpoint_every = 1

[alarms]
parse_error_rate = 1.0

[sft]
source = "expert"
trajectories = 40
batch_size = 8
epochs = 10
learning_rate = 5e-3
precision = "fp32"

[cluster]
device = "cpu"
gpus_per_node = 2
workers = 1
cpus = 16
"""


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run from its cold start."""
    place = tmp_path_factory.mktemp("append")
    path = place / "run.toml"
    path.write_text(CONFIG.replace("WORLD", str(place / "world")), "utf-8")
    model = start_sft(load_config(RunConfig, path, ("engine=local",)), place / "cold")
    path.write_text(f'{path.read_text("utf-8")}\n[model]\npath = "{model}"\n', "utf-8")
    return path


@pytest.fixture(scope="module")
def local(configuration: Path) -> Path:
    """The step in this process; it has something to learn from."""
    out = configuration.parent / "local"
    start_training(load_config(RunConfig, configuration, ("engine=local",)), out)
    (row,) = read_metrics(out)
    assert row["grad_norm"] > 1e-2
    return out


@pytest.fixture(scope="module")
def run(configuration: Path, local: Path) -> Path:
    """The step with verl."""
    out = configuration.parent / "run"
    assert factagent("train", "--config", str(configuration), "--out", str(out))["steps"] == 1
    return out


def test_the_step_has_what_the_engines_could_differ_in(local: Path) -> None:
    """Passages between replies, invalid replies, cut trajectories, and credit of both signs."""
    groups = list(read_groups(local, 1))
    trajectories = list(chain.from_iterable(group.trajectories for _, group, _ in groups))
    steps = list(chain.from_iterable(trajectory.steps for trajectory in trajectories))
    assert any(step.observation is not None and step.observation.passages for step in steps)
    assert any(isinstance(step.action, Invalid) for step in steps)
    assert {StopReason.ANSWERED, StopReason.OUT_OF_ROUNDS} <= {t.stop_reason for t in trajectories}
    advantages = [
        step["advantage"] for _, _, credit in groups for member in credit["trajectories"] for step in member["steps"]
    ]
    assert min(advantages) < 0 < max(advantages)


def test_trajectories_and_ledger_are_those_of_the_local_engine(run: Path, local: Path) -> None:
    assert_same_groups(run, local, step=1, count=GROUPS)


def test_loss_and_gradient_are_those_of_the_local_engine(run: Path, local: Path) -> None:
    assert len(read_metrics(run)) == len(read_metrics(local)) == 1
    assert_same_metrics(run, local)


def test_a_trajectory_is_one_row(run: Path) -> None:
    (row,) = read_metrics(run)
    assert row["rows"] == GROUPS * MEMBERS
    assert (row["rows"] + row["rows_added"]) % 4 == 0
    assert 0 <= row["sampler_probability_gap"] < 1e-4
