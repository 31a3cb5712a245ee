"""`factagent train`, `sft`, `eval` and `tiny build` from the command line: results, refusals and exit codes."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.cli import main  # noqa: E402
from factagent.configuration import load_config  # noqa: E402
from factagent.policies.transformers import TransformersPolicy  # noqa: E402
from factagent.runs import read_metrics  # noqa: E402
from factagent.train.config import RunConfig  # noqa: E402


def refusal(capsys, *arguments):
    """Exit code and message of a command that must fail, in one line and without output."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("factagent: error: ")]
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err
    return code, lines[0].removeprefix("factagent: error: ")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_train_prints_a_summary_and_resume_goes_on(config_file, tmp_path, capsys):
    run, short = tmp_path / "run", ("--set", "schedule.eval_every=1", "--set", "schedule.questions_per_step=2")
    assert main(["train", "--config", str(config_file), "--out", str(run), "--steps", "1", *short]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["n"]) == (1, 6)
    assert (run / "checkpoints" / "step-1" / "model.safetensors").is_file()
    rows = read_metrics(run)
    assert summary["em_before"] == rows[0]["eval"]["em"]
    assert summary["em_after"] == rows[1]["eval"]["em"]
    assert sum(row["n"] for row in summary["by_hop"].values()) == 6
    assert main(["train", "--resume", str(run), "--steps", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2
    code, message = refusal(capsys, "train", "--resume", run, "--steps", 1)
    assert (code, message) == (2, f"{run} has 2 steps already; ask for --steps 2 or more")
    code, message = refusal(capsys, "train", "--config", config_file, "--out", run)
    assert (code, message) == (2, f"{run} holds a run already; resume it (--resume {run}) or choose another --out")


def test_an_alarm_exits_with_75(config_file, tiny_build, tmp_path, capsys):
    settings = (f"model.path={tiny_build / 'init'}", "alarms.parse_error_rate=0.3", "alarms.parse_error_steps=1")
    settings += ("schedule.eval_every=0", "rollout.max_new_tokens=4", "rollout.max_rounds=2")
    overrides = [part for setting in settings for part in ("--set", setting)]
    code, message = refusal(capsys, "train", "--config", config_file, "--out", tmp_path / "run", *overrides)
    assert code == 75
    assert "stopped with a checkpoint at step 1" in message
    assert (tmp_path / "run" / "checkpoints" / "step-1").is_dir()


def test_evaluation_of_no_questions_gives_a_summary_without_scores(config_file, tmp_path, capsys):
    arguments = ["--config", str(config_file), "--out", str(tmp_path / "run"), "--steps", "0"]
    assert main(["train", *arguments, "--set", "schedule.eval_questions=0"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["steps"] == 0
    assert "em_before" not in summary


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_dry_run_prints_the_configuration_that_it_would_use(config_file, tmp_path, capsys, command):
    overrides = ("seed=7", "learner.kl_coef=0.25", "data.types=['chain']", "data.world.hop_weights={2=0.5}")
    flags = [part for override in overrides for part in ("--set", override)]
    assert main([command, "--config", str(config_file), "--dry-run", *flags]) == 0
    text = capsys.readouterr().out
    (tmp_path / "printed.toml").write_text(text)
    assert tomllib.loads(text)["learner"]["kl_coef"] == 0.25
    resolved = load_config(RunConfig, config_file, overrides)
    assert load_config(RunConfig, tmp_path / "printed.toml") == resolved
    assert resolved.data.world.hop_weights == {2: 0.5}


@pytest.mark.parametrize("command", ["train", "sft"])
def test_wrong_flags_exit_with_2(config_file, tmp_path, capsys, command):
    out = tmp_path / "out"
    for arguments, expected in (
        (("--config", config_file, "--out", out, "--set", "schedule.stepz=3"), "did you mean 'schedule.steps'?"),
        (("--config", config_file, "--out", out, "--set", "learner.clip_low=2"), "'learner.clip_low' = 2 is refused"),
        (("--config", config_file, "--out", out, "--set", "rollout.prompt=none.toml"), "'none.toml': no such file"),
        (("--config", config_file, "--dry-run", "--set", "rollout.prompt=react-terse"), "under this protocol"),
        (("--config", config_file, "--out", config_file), "cannot be a directory for output: it is a file"),
        (("--config", config_file, "--out", out, "--set", "seed"), "must look like table.key=value"),
        (("--config", tmp_path / "none.toml", "--out", out), "none.toml cannot be read"),
        (("--config", config_file), "--out DIR is missing"),
        ((), "give either --config FILE with --out DIR, or --resume DIR"),
        (("--config", config_file, "--resume", out), "give either --config FILE"),
        (("--resume", tmp_path / "nothing"), "is no run directory: it has no config.toml"),
        (("--resume", tmp_path / "nothing", "--set", "seed=1"), "leave out --out, --set and --dry-run"),
    ):
        code, message = refusal(capsys, command, *arguments)
        assert (code, expected in message) == (2, True), message
    assert not out.exists()


def test_data_that_is_not_there_exits_with_2(config_file, tmp_path, capsys):
    arguments = ("--config", config_file, "--set", "data.world=null", "--set", f"data.directory={tmp_path / 'empty'}")
    code, message = refusal(capsys, "train", *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert message.startswith(f"data.corpus: {tmp_path / 'empty' / 'corpus.jsonl'} does not exist")


def test_eval_of_a_run_scores_as_the_run_does(config_file, tmp_path, capsys):
    run, answers = tmp_path / "run", tmp_path / "answers"
    short = ("--set", "schedule.eval_every=1", "--set", "schedule.questions_per_step=2")
    assert main(["train", "--config", str(config_file), "--out", str(run), "--steps", "1", *short]) == 0
    capsys.readouterr()
    arguments = ["eval", "--run", str(run), "--limit", "6", "--json"]
    for step, row in zip((0, 1), read_metrics(run), strict=True):
        assert main([*arguments, "--step", str(step), "--out", str(answers / str(step))]) == 0
        summary = json.loads(capsys.readouterr().out)
        own = summary["sets"]["dev"]
        assert {key: own[key] for key in row["eval"] if key not in ("low", "high")} == {
            key: value for key, value in row["eval"].items() if key not in ("low", "high")
        }
        kept = [json.loads(line) for line in (answers / str(step) / "results.jsonl").read_text().splitlines()]
        assert len(kept) == 6
        assert all(row["trajectory"]["steps"] for row in kept)
    config = tomllib.loads((answers / "1" / "config.toml").read_text())
    assert config["model"]["path"] == str(run / "checkpoints" / "step-1")
    assert (config["rollout"]["temperature"], config["rollout"]["precision"]) == (0.0, "fp32")
    code, message = refusal(capsys, *arguments, "--step", 7, "--out", tmp_path / "no")
    assert (code, message) == (2, f"{run / 'checkpoints'} has no checkpoint of step 7; it has 0, 1")
    code, message = refusal(capsys, *arguments, "--config", config_file, "--out", tmp_path / "no")
    assert (code, message) == (2, "--config and --run both say what to evaluate; give one")


# The tiny policy.


def test_tiny_build_makes_a_policy_that_loads_and_a_card_that_tells_the_truth(tiny_build, sft_config_file):
    policy = tiny_build / "policy"
    loaded = TransformersPolicy.load(policy, device="cpu")
    assert loaded.model.config.num_hidden_layers == 2
    card = json.loads((policy / "card.json").read_text())
    assert card["sha256"] == {p.name: sha256(p) for p in sorted(policy.iterdir()) if p.name != "card.json"}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= card["sha256"].keys()
    assert card["size"] == {
        "hidden_size": 32,
        "layers": 2,
        "heads": 2,
        "intermediate_size": 64,
        "max_positions": 1024,
        "seed": 0,
    }
    assert RunConfig.model_validate(card["config"]) == load_config(RunConfig, sft_config_file)
    assert sha256(policy / "model.safetensors") != sha256(tiny_build / "init" / "model.safetensors")


def build_arguments(config, out, *more):
    size = ("--hidden-size", "16", "--layers", "1", "--heads", "2", "--intermediate-size", "32")
    short = ("--set", "sft.trajectories=16", "--set", "sft.epochs=1")
    return ["tiny", "build", "--config", str(config), "--out", str(out), *size, *short, *more]


def test_tiny_build_again_gives_the_same_bytes_and_goes_on_where_it_stopped(sft_config_file, tmp_path, capsys):
    for name in ("a", "b"):
        assert main(build_arguments(sft_config_file, tmp_path / name)) == 0
        assert json.loads(capsys.readouterr().out) == {"policy": str(tmp_path / name / "policy")}
    cards = [json.loads((tmp_path / name / "policy" / "card.json").read_text()) for name in ("a", "b")]
    assert cards[0]["sha256"] == cards[1]["sha256"]
    assert "--set sft.trajectories=16 --set sft.epochs=1" in cards[0]["command"]
    code, message = refusal(capsys, *build_arguments(sft_config_file, tmp_path / "a"))
    assert (code, "exists already; choose another --out" in message) == (2, True)
    shutil.rmtree(tmp_path / "b" / "policy")  # as if stopped before the last part
    assert main(build_arguments(sft_config_file, tmp_path / "b")) == 0
    assert json.loads((tmp_path / "b" / "policy" / "card.json").read_text())["sha256"] == cards[0]["sha256"]
    shutil.rmtree(tmp_path / "b" / "policy")
    capsys.readouterr()
    code, message = refusal(capsys, *build_arguments(sft_config_file, tmp_path / "b", "--set", "seed=9"))
    assert (code, "another configuration" in message) == (2, True)


def test_tiny_sizes_out_of_range_are_refused(sft_config_file, tmp_path, capsys):
    arguments = ("--config", sft_config_file, "--out", tmp_path / "out", "--layers", 0)
    code, message = refusal(capsys, "tiny", "build", *arguments)
    assert (code, "--layers" in message) == (2, True)
