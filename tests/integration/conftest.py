"""A small world and a tiny model cold-started in it, made once a session: what training tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFIG = """
name = "small"
threads = 1

[model]
path = "{model}"
device = "cpu"

[data]
directory = "{world}"

[data.world]
entities = 600
train = 48
dev = 8
test = 0
hops = [1, 2]

[rollout]
prompt = "factagent-terse"
group_size = 4
max_rounds = 4
max_new_tokens = 40
temperature = 1.0
precision = "fp32"

[credit]
encoder = "exact"

[learner]
learning_rate = 3e-3
kl_coef = 0.1
precision = "fp32"

[schedule]
steps = 6
questions_per_step = 3
eval_every = 3
eval_questions = 6
checkpoint_every = 100

[alarms]
parse_error_rate = 1.0

[sft]
source = "expert"
keep = "all"
trajectories = 96
batch_size = 32
epochs = 20
learning_rate = 1e-2
precision = "fp32"
"""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's world, models and configuration are."""
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="session")
def sft_config_file(place: Path) -> Path:
    """The configuration from which the policy is built."""
    path = place / "sft.toml"
    path.write_text(CONFIG.format(model="tiny", world=place / "world"), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_build(place: Path, sft_config_file: Path) -> Path:
    """What `factagent tiny build` makes: `init`, `sft` and the cold-started `policy`, 2 layers of 32."""
    pytest.importorskip("torch")
    from factagent.configuration import load_config
    from factagent.train.config import RunConfig
    from factagent.train.tiny import TinyConfig
    from factagent.train.tiny_build import build_tiny

    size = TinyConfig(hidden_size=32, layers=2, heads=2, intermediate_size=64)
    build_tiny(load_config(RunConfig, sft_config_file), size, place / "tiny", "factagent tiny build")
    return place / "tiny"


@pytest.fixture(scope="session")
def config_file(place: Path, tiny_build: Path) -> Path:
    """The configuration that trains the cold-started policy: 6 steps of 3 questions by 4 members."""
    path = place / "train.toml"
    path.write_text(CONFIG.format(model=tiny_build / "policy", world=place / "world"), encoding="utf-8")
    return path
