"""What this project writes for verl is what this verl reads: every recipe composes, and an unknown key does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from factagent.configuration import load_config
from factagent.distributed.launch import dry_run, verl_config_of
from factagent.distributed.overrides import overrides_of
from factagent.errors import ConfigError
from factagent.train.config import RunConfig

RECIPES = ("paper-qwen2.5-3b", "paper-qwen2.5-7b", "one-gpu-lora", "two-nodes")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_configuration_of_verl(repository: Path, name: str) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass

    run = load_config(RunConfig, repository / "configs" / f"{name}.toml")
    composed: Any = verl_config_of(overrides_of(run, Path("run")))
    assert not need_critic(composed)
    assert need_reference_policy(composed)
    actor = omega_conf_to_dataclass(composed.actor_rollout_ref.actor)
    assert actor.optim.lr == run.learner.learning_rate
    assert actor.engine.mixed_precision["param_dtype"] == "bf16"
    assert actor.engine.strategy == "fsdp2"
    rollout = omega_conf_to_dataclass(composed.actor_rollout_ref.rollout)
    assert (rollout.name, rollout.n, rollout.temperature) == ("vllm", 6, 0.7)
    assert (rollout.prompt_length, rollout.response_length) == (4096, 512)
    cluster = run.cluster
    assert cluster is not None
    actor.validate(cluster.ranks, composed.data.train_batch_size, composed.actor_rollout_ref.model)


def test_an_unknown_key_of_verl_is_found_before_anything_starts(repository: Path) -> None:
    path = repository / "configs" / "paper-qwen2.5-3b.toml"
    known = load_config(RunConfig, path, ('cluster.verl={"actor_rollout_ref.rollout.max_num_seqs"=512}',))
    assert any(line == "actor_rollout_ref.rollout.max_num_seqs=512" for line in dry_run(known, Path("run"))[0])
    unknown = load_config(RunConfig, path, ('cluster.verl={"actor_rollout_ref.rollout.max_nums"=512}',))
    with pytest.raises(ConfigError, match="max_nums"):
        dry_run(unknown, Path("run"))


def test_the_adapters_stand_on_what_this_verl_has() -> None:
    """The methods that are replaced or called; a verl without one of them must not be installed silently."""
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, PPOTrainerSync
    from verl.workers.engine_workers import ActorRolloutRefWorker

    replaced = ("_init_dataloader", "prepare_step", "_setup", "_init_resource_pool_mgr", "_step_once", "_balance_batch")
    replaced += ("_compute_advantage", "_update_actor", "_validate", "_compute_metrics", "_save_checkpoint")
    replaced += ("_load_checkpoint", "_compute_old_log_prob", "_compute_ref_log_prob", "on_sample_end", "fit", "init")
    assert [name for name in replaced if not callable(getattr(PPOTrainerSync, name, None))] == []
    assert callable(ActorRolloutRefWorker.set_loss_fn)
    assert callable(AgentLoopManagerTQ.create)
