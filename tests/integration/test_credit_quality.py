"""Credit rules train a tiny policy, and judge what it saved; those that measure, with the policy of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.cli import main  # noqa: E402
from factagent.configuration import load_config  # noqa: E402
from factagent.runs import read_groups, read_metrics  # noqa: E402
from factagent.train.config import RunConfig  # noqa: E402
from factagent.train.run import start_training  # noqa: E402
from factagent.train.run_measure import critic_values  # noqa: E402

ONE_STEP = ("schedule.eval_every=0", "schedule.steps=1")


@pytest.mark.parametrize("rule", ["outcome", "reinforce", "gigpo", "e-grpo"])
def test_rules_that_need_only_the_groups_train(rule: str, config_file: Path, tmp_path: Path) -> None:
    start_training(load_config(RunConfig, config_file, (f"credit.rule={rule}", *ONE_STEP)), tmp_path / "run")
    (row,) = read_metrics(tmp_path / "run")
    assert row["grad_norm"] >= 0.0
    assert row["clusters_per_group"] == 0.0
    assert ("entity_rate" in row) == (rule == "e-grpo")
    credits = [credit for _, _, credit in read_groups(tmp_path / "run")]
    assert len(credits) == 3
    assert all(isinstance(s["advantage"], float) for c in credits for t in c["trajectories"] for s in t["steps"])


def test_saved_groups_are_judged_by_rules_that_measure(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    start_training(load_config(RunConfig, config_file, ONE_STEP), run)
    capsys.readouterr()
    flags = ["--credit", "v:rule=vine,continuations=1", "--credit", "igpo", "--credit", "outcome", "--resamples", "20"]
    assert main(["credit-quality", str(run), *flags]) == 0
    printed = capsys.readouterr()
    assert "searches, all" in printed.err
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert {row["credit"] for row in rows} == {"v", "igpo", "outcome"}
    assert {row["groups"] for row in rows if row["credit"] != "outcome"} == {"original"}
    assert main(["credit-quality", str(run), "--credit", "tree-grpo"]) == 2
    assert "needs groups that were sampled as trees" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["search-r1", "react"])
def test_rules_that_measure_need_the_tokens_of_a_run_that_appends(
    method: str, config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--credit", "v:rule=vine,continuations=1", "--credit", "igpo", "--resamples", "20"]
    for name, keep in (("with", "true"), ("without", "false")):
        overrides = (f"method={method}", "rollout.prompt=terse", f"schedule.save_tokens={keep}")
        start_training(load_config(RunConfig, config_file, (*ONE_STEP, *overrides)), tmp_path / name)
    for rule in ("vine", "igpo"):
        assert main(["credit-quality", str(tmp_path / "without"), "--credit", rule]) == 2
        assert f"rule '{rule}' goes on from saved steps, which '{method}' does by their" in capsys.readouterr().err
    assert main(["credit-quality", str(tmp_path / "with"), *flags]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["credit"] for row in rows} == {"v", "igpo"}


@pytest.mark.parametrize("method", ["credit/gae", "search-r1-ppo"])
def test_a_critic_judges_the_groups_of_its_own_run(
    method: str, config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, bare = tmp_path / "run", tmp_path / "bare"
    common = (*ONE_STEP, f"method={method}", "rollout.prompt=terse")
    start_training(load_config(RunConfig, config_file, (*common, "schedule.save_tokens=true")), run)
    start_training(load_config(RunConfig, config_file, common), bare)
    capsys.readouterr()
    assert main(["credit-quality", str(run), "--credit", "gae", "--resamples", "20"]) == 0
    assert {json.loads(line)["credit"] for line in capsys.readouterr().out.splitlines()} == {"gae"}
    assert main(["credit-quality", str(bare), "--credit", "gae"]) == 2
    assert "train with schedule.save_tokens" in capsys.readouterr().err
    config = load_config(RunConfig, run / "config.toml")
    groups = [group for _, group, _ in read_groups(run)]
    measured = critic_values(groups, config, run)
    assert measured.values is not None
    values = [value for group in measured.values for row in group for value in row[:-1]]
    assert 0 < max(map(abs, values)) < 1  # a fresh critic is near 0, and no state is left out
    assert len(set(values)) > len(values) // 2
    assert all(row[-1] == 0.0 for group in measured.values for row in group)
