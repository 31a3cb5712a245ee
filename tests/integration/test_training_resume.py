"""Stop and go on, in every way a run can stop: what comes out is bit for bit what an unbroken run gives."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from safetensors.torch import load_file  # noqa: E402

from factagent.configuration import dump_toml, load_config  # noqa: E402
from factagent.errors import DataError, TryAgainError, UsageError  # noqa: E402
from factagent.runs import RunDirectory, metrics_digest, read_groups, read_metrics  # noqa: E402
from factagent.train.checkpoint import checkpoint_steps, load_checkpoint  # noqa: E402
from factagent.train.config import RunConfig  # noqa: E402
from factagent.train.loop import Trainer  # noqa: E402
from factagent.train.run import resume_sft, resume_training, start_sft, start_training  # noqa: E402
from factagent.train.setup import load_data, load_policy  # noqa: E402

STEPS = 6

GAE = (
    "credit={rule='gae', kl_in_reward=0.05, lam=0.95}",
    "learner.kl_coef=0",
    "critic.learning_rate=1e-2",
    "critic.warmup_steps=2",
    "critic.updates_per_batch=2",
)


def config_of(path: Path, *overrides: str) -> RunConfig:
    return load_config(RunConfig, path, overrides)


def hashes(run: Path, step: int = STEPS) -> dict[str, str]:
    """Everything that must be equal: weights, optimizer, state with random states, metrics, trajectories."""
    checkpoint = run / "checkpoints" / f"step-{step}"
    names = ["model.safetensors", "optimizer.safetensors", "optimizer.json", "state.json"]
    if (checkpoint / "critic").is_dir():
        names += [f"critic/{name}" for name in names[:3]]
    result = {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in names}
    result["metrics"] = metrics_digest(run)
    result["trajectories"] = hashlib.sha256(repr(list(read_groups(run))).encode()).hexdigest()
    return result


@pytest.fixture(scope="module")
def whole(config_file, tmp_path_factory):
    """An unbroken run of six steps."""
    run = tmp_path_factory.mktemp("whole") / "run"
    start_training(config_of(config_file), run)
    return run


def test_training_changes_weights_and_measures_against_the_initial_policy(whole, tiny_build):
    before = load_file(tiny_build / "policy" / "model.safetensors")
    after = load_file(whole / "checkpoints" / f"step-{STEPS}" / "model.safetensors")
    assert before.keys() == after.keys()
    assert max(float((before[name] - after[name]).abs().max()) for name in before) > 1e-3
    rows = read_metrics(whole)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows if "eval" in row] == [0, 3, 6]
    # The first step is on policy and at the reference; later steps have left it.
    assert rows[1]["kl_ref"] == pytest.approx(0.0, abs=1e-6)
    assert rows[1]["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert rows[1]["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert min(row["kl_ref"] for row in rows[2:]) > 1e-5
    assert all(row["grad_norm"] > 0 for row in rows[1:])
    assert any(row["nonzero_process_share"] > 0 for row in rows[1:])


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_trajectories(whole, config_file, tmp_path):
    start_training(config_of(config_file), tmp_path / "again")
    assert hashes(tmp_path / "again") == hashes(whole)
    start_training(config_of(config_file, "seed=1"), tmp_path / "other", steps=1)
    first = [group for _, group, _ in read_groups(whole, 1)]
    other = [group for _, group, _ in read_groups(tmp_path / "other", 1)]
    assert len(first) == len(other) == 3
    assert [group.trajectories for group in first] != [group.trajectories for group in other]


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_a_run_stopped_after_any_step_goes_on_bit_for_bit(whole, config_file, tmp_path, stop):
    start_training(config_of(config_file), tmp_path / "run", steps=stop)
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == stop
    resume_training(tmp_path / "run")
    assert hashes(tmp_path / "run") == hashes(whole)


def test_a_run_stopped_twice(whole, config_file, tmp_path):
    start_training(config_of(config_file), tmp_path / "run", steps=2)
    resume_training(tmp_path / "run", steps=4)
    resume_training(tmp_path / "run", steps=STEPS)
    assert hashes(tmp_path / "run") == hashes(whole)


def test_on_resume_the_reference_is_the_initial_policy(config_file, tiny_build, tmp_path):
    strong = ("learner.kl_coef=5.0", "schedule.eval_every=0", "schedule.steps=3")
    start_training(config_of(config_file, *strong), tmp_path / "whole")
    start_training(config_of(config_file, *strong), tmp_path / "run", steps=2)
    # Wherever the run goes on, its reference holds the weights that it began with, the policy those of the checkpoint.
    config, run = config_of(config_file, *strong), RunDirectory.open(tmp_path / "run")
    checkpoint = load_checkpoint(run.checkpoints / "step-2")
    trainer = Trainer(config, run, load_policy(config), load_data(config.data), checkpoint)
    initial = load_file(tiny_build / "policy" / "model.safetensors")
    reference, policy = trainer.learner.reference.state_dict(), trainer.policy.model.state_dict()
    assert all(torch.equal(reference[name], tensor) for name, tensor in initial.items())
    assert all(torch.equal(policy[name], tensor) for name, tensor in checkpoint.weights().items())
    assert not torch.equal(policy["model.norm.weight"], initial["model.norm.weight"])
    resume_training(tmp_path / "run")
    assert hashes(tmp_path / "run", 3) == hashes(tmp_path / "whole", 3)
    assert read_metrics(tmp_path / "run")[-1]["loss_kl"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        ("learner.precision=bf16", "rollout.precision=bf16"),
        ("learner.updates_per_batch=2", "learner.llds_coef=0.2", "learner.warmup_steps=3", "learner.weight_decay=0.01"),
        ("rollout.protocol=react", "rollout.prompt=react-terse", "credit.process_weight=0"),
        GAE,
        (*GAE, "rollout.protocol=react", "rollout.prompt=react-terse", "rollout.group_size=1"),
    ],
    ids=["bf16", "several updates", "append", "critic", "critic, append, groups of one"],
)
def test_other_settings_resume_bit_for_bit(config_file, tmp_path, settings):
    settings = (*settings, "schedule.steps=3", "schedule.eval_every=0")
    start_training(config_of(config_file, *settings), tmp_path / "whole")
    start_training(config_of(config_file, *settings), tmp_path / "run", steps=1)
    resume_training(tmp_path / "run")
    assert hashes(tmp_path / "run", 3) == hashes(tmp_path / "whole", 3)


def test_a_critic_is_trained_and_kept_whole(config_file, tmp_path):
    settings = (*GAE, "rollout.group_size=1", "schedule.questions_per_step=8", "schedule.eval_every=0")
    start_training(config_of(config_file, *settings), tmp_path / "run", steps=4)
    rows = read_metrics(tmp_path / "run")
    assert [row["updates_skipped"] for row in rows] == [0] * 4
    assert all(np.isfinite(row["critic_loss"]) and row["critic_grad_norm"] > 0 for row in rows)
    assert [row["critic_learning_rate"] for row in rows] == pytest.approx([5e-3, 1e-2, 1e-2, 1e-2])
    assert all(row["gae_advantage_std"] > 0 and row["grad_norm"] > 0 for row in rows)
    assert abs(rows[0]["critic_value_mean"]) < 0.1
    # The reference is the initial policy, so the KL in the first reward is 0; later ones have left it.
    assert rows[0]["reward_with_kl"] == pytest.approx(rows[0]["reward"], abs=1e-5)
    assert rows[-1]["reward_with_kl"] != pytest.approx(rows[-1]["reward"], abs=1e-4)
    checkpoint = load_checkpoint(tmp_path / "run" / "checkpoints" / "step-4")
    critic = checkpoint.weights("critic")
    assert critic["head.weight"].shape == (1, 32)
    policy = checkpoint.weights()
    assert not any(name.startswith(("backbone", "head.")) for name in policy)
    assert not torch.equal(critic["backbone.norm.weight"], policy["model.norm.weight"])
    ledger = [credit for _, _, credit in read_groups(tmp_path / "run")]
    trajectories = [trajectory for credit in ledger for trajectory in credit["trajectories"]]
    steps = [step for trajectory in trajectories for step in trajectory["steps"]]
    assert len(trajectories) == 32
    assert all(step["advantage"] == step["process"] for step in steps)
    assert len({step["advantage"] for step in steps}) > len(steps) // 2
    assert all(trajectory["outcome_advantage"] == 0 for trajectory in trajectories)


def test_a_checkpoint_without_a_critic_cannot_go_on_with_one(config_file, tmp_path):
    plain = config_of(config_file, "schedule.eval_every=0")
    start_training(plain, tmp_path / "run", steps=1)
    run = RunDirectory.open(tmp_path / "run")
    config = config_of(config_file, *GAE)
    checkpoint = load_checkpoint(run.checkpoints / "step-1")
    with pytest.raises(DataError, match=r"step-1: holds no 'critic'; it was written under another configuration"):
        Trainer(config, run, load_policy(config), load_data(config.data), checkpoint)


def test_fewer_steps_than_are_done_are_refused(whole):
    before = hashes(whole)
    with pytest.raises(UsageError, match=r"has 6 steps already; ask for --steps 6 or more"):
        resume_training(whole, steps=5)
    assert hashes(whole) == before


def test_a_damaged_checkpoint_is_refused_by_name(config_file, tmp_path):
    start_training(config_of(config_file, "schedule.eval_every=0"), tmp_path / "run", steps=1)
    weights = tmp_path / "run" / "checkpoints" / "step-1" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    from factagent.errors import CorruptError

    with pytest.raises(CorruptError, match=r"step-1/model\.safetensors: SHA-256"):
        resume_training(tmp_path / "run")


# Killed processes.


def launch(command: str, config: Path, out: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "factagent.cli", command, "--config", str(config), "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def wait_for_lines(process: subprocess.Popen[str], path: Path, lines: int) -> None:
    """Until the file has so many lines; the process must live."""
    deadline = time.monotonic() + 300
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        if process.poll() is not None:
            raise AssertionError(f"ended early with {process.returncode}: {process.stderr.read()}")
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_ctrl_c_writes_a_checkpoint_and_the_run_goes_on_bit_for_bit(whole, config_file, tmp_path):
    run = tmp_path / "run"
    process = launch("train", config_file, run)
    wait_for_lines(process, run / "metrics.jsonl", 2)  # step 0 and step 1
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert output == ""
    assert "stopping after this step" in errors
    assert "Traceback" not in errors
    done = checkpoint_steps(run / "checkpoints")[-1]
    assert 1 <= done < STEPS
    assert read_metrics(run)[-1]["step"] == done
    resume_training(run)
    assert hashes(run) == hashes(whole)


def test_kill_9_loses_only_what_came_after_the_last_checkpoint(whole, config_file, tmp_path):
    run = tmp_path / "run"
    process = launch("train", config_file, run)
    wait_for_lines(process, run / "metrics.jsonl", 3)  # the checkpoint of step 0 and two steps more
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert checkpoint_steps(run / "checkpoints")[0] == 0
    assert read_metrics(run)[-1]["step"] >= 2
    resume_training(run)
    assert hashes(run) == hashes(whole)


# Alarms.


def test_parse_errors_stop_the_run_with_a_checkpoint(config_file, tiny_build, tmp_path):
    untrained = (f"model.path={tiny_build / 'init'}", "schedule.eval_every=0", "alarms.parse_error_steps=2")
    untrained += ("alarms.parse_error_rate=0.3",)
    untrained += ("rollout.max_new_tokens=4", "rollout.max_rounds=2")
    with pytest.raises(TryAgainError, match=r"more than 30% of the actions could not be parsed for 2 steps") as caught:
        start_training(config_of(config_file, *untrained), tmp_path / "run")
    assert caught.value.exit_code == 75
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [2]
    assert [row["parse_error_rate"] for row in read_metrics(tmp_path / "run")] == [1.0, 1.0]
    with pytest.raises(TryAgainError):  # the window is part of the checkpoint: one more bad step is enough
        resume_training(tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [2, 3]
    start_training(config_of(config_file, *untrained, "alarms.ignore=true"), tmp_path / "deaf", steps=4)
    assert checkpoint_steps(tmp_path / "deaf" / "checkpoints") == [4]


def test_updates_that_are_not_finite_are_skipped_counted_and_stop_the_run(config_file, tmp_path):
    config = config_of(config_file, "schedule.eval_every=0")
    run = RunDirectory.create(tmp_path / "run", dump_toml(config))
    trainer = Trainer(config, run, load_policy(config), load_data(config.data))
    initial = {name: tensor.clone() for name, tensor in trainer.policy.model.state_dict().items()}
    with torch.no_grad():  # the KL term turns NaN, the sampler still works
        trainer.learner.reference.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(TryAgainError, match=r"not finite for 3 steps in a row; lower the learning rate"):
        trainer.train(STEPS)
    rows = read_metrics(run.path)
    assert [row["updates_skipped"] for row in rows] == [1, 1, 1]
    assert [row["loss"] for row in rows] == [None, None, None]
    kept = [(step, group) for step, group, _ in read_groups(run.path, folder="skipped")]
    assert [step for step, _ in kept] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert all(one.generation.response_ids for _, group in kept for t in group.trajectories for one in t.steps)
    assert checkpoint_steps(run.checkpoints) == [3]
    checkpoint = load_checkpoint(run.checkpoints / "step-3")
    assert checkpoint.state["non_finite"] == 3
    assert all(torch.equal(initial[name], tensor) for name, tensor in checkpoint.weights().items())


def test_a_finite_update_ends_the_count(config_file, tmp_path):
    config = config_of(config_file, "schedule.eval_every=0")
    run = RunDirectory.create(tmp_path / "run", dump_toml(config))
    trainer = Trainer(config, run, load_policy(config), load_data(config.data))
    embedding = trainer.learner.reference.get_input_embeddings().weight
    sound = embedding.detach().clone()
    counts = []
    for broken in (True, True, False, True):
        with torch.no_grad():
            embedding.copy_(torch.full_like(sound, float("nan")) if broken else sound)
        trainer.run_step()
        counts.append(trainer.non_finite)
    assert counts == [1, 2, 0, 1]


# Cold start.


def test_an_interrupted_cold_start_goes_on_bit_for_bit(tiny_build, sft_config_file, tmp_path, monkeypatch):
    config = config_of(
        sft_config_file, f"model.path={tiny_build / 'init'}", "sft.trajectories=24", "sft.batch_size=8", "sft.epochs=2"
    )
    end = start_sft(config, tmp_path / "whole")
    steps = int(end.name.removeprefix("step-"))
    assert steps > 8

    from factagent.train import run as module

    real = module.fit

    def interrupted(*arguments):
        for batch in real(*arguments):
            if batch.step == 4:
                signal.raise_signal(signal.SIGINT)
            yield batch

    monkeypatch.setattr(module, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_sft(config, tmp_path / "run")
    monkeypatch.undo()
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [4]
    assert resume_sft(tmp_path / "run").name == end.name
    assert hashes(tmp_path / "run", steps) == hashes(tmp_path / "whole", steps)
    assert resume_sft(tmp_path / "run").name == end.name  # a finished one stays as it is
    assert hashes(tmp_path / "run", steps) == hashes(tmp_path / "whole", steps)
    losses = [row["loss"] for row in read_metrics(tmp_path / "whole")]
    assert len(losses) == steps
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_a_cold_start_killed_while_collecting_starts_the_collection_over(tiny_build, sft_config_file, tmp_path):
    config = config_of(
        sft_config_file, f"model.path={tiny_build / 'init'}", "sft.trajectories=8", "sft.batch_size=8", "sft.epochs=1"
    )
    end = start_sft(config, tmp_path / "whole")
    run = RunDirectory.create(tmp_path / "run", dump_toml(config))
    _, group, _ = next(read_groups(tmp_path / "whole", 0))
    for _ in range(3):
        run.log_group(0, group)
    again = resume_sft(tmp_path / "run")
    step = int(end.name.removeprefix("step-"))
    assert again.name == end.name
    assert hashes(tmp_path / "run", step) == hashes(tmp_path / "whole", step)
