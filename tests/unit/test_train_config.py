"""The run's configuration: the paper's defaults, the ranges, and the packaged files."""

from __future__ import annotations

import pytest

from factagent.configuration import dump_toml, load_config
from factagent.errors import ConfigError
from factagent.evaluation.config import EvalConfig
from factagent.train.config import RunConfig


def test_the_defaults_are_the_papers():
    config = RunConfig()
    assert (config.rollout.group_size, config.rollout.max_rounds, config.rollout.top_k) == (6, 8, 3)
    assert config.rollout.temperature == 0.7
    assert (config.learner.learning_rate, config.learner.kl_coef) == (1e-5, 0.001)
    assert (config.learner.clip_low, config.learner.clip_high) == (0.2, 0.2)
    assert (config.schedule.steps, config.schedule.questions_per_step) == (500, 128)
    assert (config.credit.process_weight, config.credit.attribution) == (0.5, 0.2)
    assert (config.sft.learning_rate, config.sft.batch_size, config.sft.epochs) == (2e-5, 64, 2)
    assert (config.alarms.parse_error_rate, config.alarms.parse_error_steps) == (0.3, 5)


@pytest.mark.parametrize(
    "override",
    [
        "threads=0",
        "rollout.group_size=0",
        "rollout.temperature=0",
        "rollout.top_p=0",
        "rollout.top_p=1.1",
        "rollout.protocol=serach-r1",
        "rollout.precision=fp16",
        "learner.learning_rate=0",
        "learner.clip_low=1",
        "learner.updates_per_batch=0",
        "learner.kl_coef=-0.1",
        "learner.ratio=sequence",
        "learner.aggregation=mean",
        "schedule.checkpoint_every=0",
        "schedule.keep_last=0",
        "alarms.parse_error_rate=0",
        "alarms.non_finite_steps=0",
        "sft.noise=1.5",
        "sft.keep=best",
        "data.world.entities=10",
    ],
)
def test_values_out_of_range_are_refused_with_their_key(override):
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"the command line: key '{key}' = .* is refused"):
        load_config(RunConfig, None, ("data.directory=x", override))


def test_a_world_needs_a_place():
    with pytest.raises(ConfigError, match="'world' needs 'directory'"):
        load_config(RunConfig, None, ("data.world={seed=1}",))


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("learner.kl_coeff=1", "learner.kl_coef"),
        ("rolout=1", "rollout"),
        ("learning_rate=1", "learner.learning_rate"),
        ("credit.prio='centred'", "credit.prior"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_one(override, near):
    with pytest.raises(ConfigError, match=rf"unknown key '{override.partition('=')[0]}'; did you mean '{near}'\?"):
        load_config(RunConfig, None, (override,))


def test_what_the_driver_gets():
    rollout = load_config(RunConfig, None, ("rollout.group_size=3", "rollout.max_rounds=5", "rollout.top_k=2")).rollout
    settings = rollout.settings()
    assert (settings.group_size, settings.max_rounds, settings.top_k, settings.record_messages) == (3, 5, 2, False)
    assert rollout.settings(group_size=1, record_messages=True).group_size == 1
    assert rollout.settings(record_messages=True).record_messages


def test_every_file_in_configs_loads_and_survives_a_round_trip(repository, tmp_path):
    files = sorted((repository / "configs").glob("*.toml"))
    assert {"tiny.toml", "world.toml"} <= {path.name for path in files}
    for path in files:
        kind = EvalConfig if path.name.startswith("eval-") else RunConfig
        config = load_config(kind, path)
        (tmp_path / path.name).write_text(dump_toml(config), encoding="utf-8")
        assert load_config(kind, tmp_path / path.name) == config
