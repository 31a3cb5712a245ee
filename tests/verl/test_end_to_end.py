"""The whole loop on two CPU ranks: world, search server, reference with KL, validation, checkpoint, resume, report.

The same configuration runs in this process too, and must give the same run: the draws of the CPU sampler are named as
those of the engine in this process are, so trajectories and credit are equal, and losses and gradients nearly.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from factagent.analysis.report import write_report
from factagent.configuration import load_config
from factagent.evaluation.local import model_path
from factagent.runs import read_metrics
from factagent.train.config import RunConfig
from factagent.train.run import start_training

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from engines import assert_same_groups, assert_same_metrics, factagent, run_command  # noqa: E402

CONFIG = """
name = "verl-cpu"
threads = 1
engine = "verl"

[data]
directory = "WORLD"

[data.world]
hops = [1, 2]
type_weights = { chain = 1.0 }
train = 60
dev = 12
test = 4
distractors = 0

[rollout]
prompt = "factagent-terse"
group_size = 3
max_rounds = 6
max_new_tokens = 64
max_prompt_tokens = 960
temperature = 0.7
precision = "fp32"

[credit]
encoder = "exact"

[learner]
learning_rate = 1e-3
warmup_steps = 4
updates_per_batch = 2
token_budget = 2048
precision = "fp32"
kl_coef = 0.01

[schedule]
steps = 2
questions_per_step = 4
eval_every = 2
eval_questions = 6
checkpoint_every = 1

[cluster]
device = "cpu"
gpus_per_node = 2
workers = 1
cpus = 16
"""


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("verl")
    path = place / "run.toml"
    path.write_text(CONFIG.replace("WORLD", str(place / "world")), "utf-8")
    return path


@pytest.fixture(scope="module")
def run(configuration: Path) -> Path:
    """Two steps of the run."""
    out = configuration.parent / "run"
    summary = factagent("train", "--config", str(configuration), "--out", str(out))
    assert summary["steps"] == 2
    assert summary["n"] == 6
    return out


@pytest.fixture(scope="module")
def local(configuration: Path, run: Path) -> Path:
    """The same configuration in this process."""
    out = configuration.parent / "local"
    start_training(load_config(RunConfig, configuration, ("engine=local",)), out)
    return out


def test_trajectories_and_ledger_are_those_of_the_local_engine(run: Path, local: Path) -> None:
    for step in (1, 2):
        assert_same_groups(run, local, step, count=4)


def test_rows_of_metrics_are_those_of_the_local_engine(run: Path, local: Path) -> None:
    rows, expected = read_metrics(run), read_metrics(local)
    assert [row["step"] for row in rows[:3]] == [row["step"] for row in expected] == [0, 1, 2]
    assert_same_metrics(run, local)


def test_rows_were_added_and_changed_nothing(run: Path) -> None:
    rows = read_metrics(run)[1:3]
    assert any(row["rows_added"] > 0 for row in rows)
    assert all((row["rows"] + row["rows_added"]) % 4 == 0 for row in rows)


def test_the_sampler_has_the_weights_of_the_trainer(run: Path) -> None:
    assert all(0 <= row["sampler_probability_gap"] < 1e-4 for row in read_metrics(run)[1:3])


def test_the_run_directory_reads_like_any_other(run: Path) -> None:
    page = write_report([run]).read_text("utf-8")
    assert "verl-cpu" in page
    assert set(read_metrics(run)[1]["seconds"]) >= {"rollout", "credit", "learn", "total", "ref", "old_log_prob"}


def test_a_resumed_run_goes_on(run: Path, local: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    summary = factagent("train", "--resume", str(run), "--steps", "3")
    assert summary["steps"] == 3
    after = (run / "metrics.jsonl").read_bytes()
    assert after.startswith(before)
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    # The questions of step 3, and the learning rate of a warm-up that went on where it stopped.
    assert rows[3]["questions_seen"] == 12
    assert rows[3]["learning_rate"] == pytest.approx(1e-3 * 3 / 4)
    assert rows[3]["grad_norm"] > 0


def test_a_checkpoint_is_exported_as_a_model_that_loads(run: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "model"
    row = factagent("export", str(run), "--out", str(out), "--step", "2")
    assert row["step"] == 2
    assert not list(out.glob("*.bin"))
    assert not list(out.glob("*.pt"))
    exported = AutoModelForCausalLM.from_pretrained(out).state_dict()
    start = AutoModelForCausalLM.from_pretrained(model_path("tiny")).state_dict()
    assert exported.keys() == start.keys()
    moved = max(float((exported[name].float() - start[name].float()).abs().max()) for name in start)
    assert 1e-5 < moved < 0.1


def test_a_step_in_which_every_episode_fails_is_written_down_and_stops_the_run(
    configuration: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    changes = ("cluster.episode_timeout_s=0.001", "schedule.eval_every=0", "learner.kl_coef=0.0")
    overrides = [word for change in changes for word in ("--set", change)]
    code, _, errors = run_command("train", "--config", str(configuration), "--out", str(out), *overrides)
    assert code == 75
    assert "100% of the trajectories failed: the episode did not end within 0.001 s" in errors
    (row,) = read_metrics(out)
    assert (row["dropped_groups"], row["failed_trajectories"], row["rows"]) == (4, 12, 0)
    assert (row["grad_norm"], row["updates_skipped"]) == (0, 0)
    assert (out / "verl" / "global_step_1" / "actor").is_dir()
