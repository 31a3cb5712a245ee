"""A cold start through verl's own SFT trainer, on two CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from factagent.configuration import load_config
from factagent.distributed.sft import check_sft
from factagent.distributed.sft_rows import SampleRows, write_rows
from factagent.errors import ConfigError
from factagent.evaluation.local import model_path
from factagent.runs import read_metrics
from factagent.train.config import RunConfig
from factagent.train.samples import Sample

SECONDS = int(os.environ.get("FACTAGENT_VERL_SECONDS", "900"))

CONFIG = """
name = "cold"
threads = 1
engine = "verl"

[data]
directory = "WORLD"

[data.world]
hops = [1]
type_weights = { chain = 1.0 }
train = 60
dev = 4
test = 4
distractors = 0

[rollout]
prompt = "factagent-terse"
max_new_tokens = 64
max_prompt_tokens = 960

[learner]
token_budget = 4096

[sft]
source = "expert"
trajectories = 20
batch_size = 8
epochs = 2
learning_rate = 1e-3
precision = "fp32"

[cluster]
device = "cpu"
gpus_per_node = 2
"""


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "sft.toml"
    path.write_text(CONFIG.replace("WORLD", str(tmp_path / "world")), "utf-8")
    return path


def test_a_cold_start_gives_a_model_that_has_learned(configuration: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "run"
    command = [sys.executable, "-m", "factagent.cli", "sft", "--config", str(configuration), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    model = Path(json.loads(done.stdout.strip().splitlines()[-1])["model"])
    rows = read_metrics(out)
    samples = len((out / "sft" / "samples.jsonl").read_bytes().splitlines())
    assert len(rows) == 2 * (samples // 8)
    assert all(np.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    trained = AutoModelForCausalLM.from_pretrained(model)
    start = AutoModelForCausalLM.from_pretrained(model_path("tiny"))
    # On the rows themselves, which the packaged policy was not made on.
    assert mean_loss(trained, out) < 0.9 * mean_loss(start, out)


def mean_loss(model: torch.nn.Module, run: Path) -> float:
    """Mean negative log-likelihood of the response tokens."""
    total, count = 0.0, 0
    for row in SampleRows(str(run / "sft" / "samples.jsonl"), None, None):
        with torch.no_grad():
            logits = model(row["input_ids"][None]).logits[0, :-1].float()
        mask = row["loss_mask"][1:].bool()
        losses = torch.nn.functional.cross_entropy(logits, row["input_ids"][1:], reduction="none")
        total, count = total + float(losses[mask].sum()), count + int(mask.sum())
    return total / count


def test_rows_are_the_samples_tokens(tmp_path: Path) -> None:
    mask = np.array([True, False, True])
    sample = Sample(np.array([5, 6]), np.array([7, 8, 9]), mask, np.zeros(3), np.ones(3), 0, np.array([0, -1, 1]))
    write_rows(tmp_path / "rows.jsonl", [sample])
    (row,) = SampleRows([str(tmp_path / "rows.jsonl")], None, None)
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 9]
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert row["loss_mask"].tolist() == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("sft.prompt_loss_weight=0.1", "sft.prompt_loss_weight"),
        ("sft.batch_size=7", "sft.batch_size = 7"),
    ],
)
def test_what_the_trainer_does_not_know_is_an_error(configuration: Path, override: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_sft(load_config(RunConfig, configuration, (override,)))
