"""One configuration -> the overrides of verl's own. Pure: neither verl nor torch is needed to see what a run would do.

Every key that decides what is learned comes from the tables that the engine in this process reads too; a setting that
verl cannot honour, or that `[cluster.verl]` sets twice, is an error and never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factagent.errors import ConfigError
from factagent.evaluation.local import model_path
from factagent.train.cluster import ClusterConfig, ServersConfig, Value
from factagent.train.config import RunConfig

Overrides = dict[str, Value | Sequence[Value]]
"""Key of verl's configuration -> value. A leading "+" adds a key that its files lack."""

MEASURED_RULES = ("vine", "igpo", "tree-grpo")
"""Rules that need more than the group's own trajectories."""

CPU_MODULE = "factagent.distributed.cpu"
"""What registers the CPU with verl when it is imported."""

CHECKPOINTS = "verl"
"""Folder of the run directory with verl's own sharded checkpoints, from which it resumes."""

_PLAIN = re.compile(r"(?!(true|false|null|nan|inf)$)[A-Za-z_/][A-Za-z0-9_./-]*", re.IGNORECASE)
"""Text that needs no quotes: nothing that could be read as a number or a keyword."""


def overrides_of(config: RunConfig, run: Path, steps: int | None = None) -> Overrides:
    """All overrides of a run.

    Args:
        config: the run.
        run: its directory, which every node must see under this path.
        steps: train until this many steps are done; by default `schedule.steps`.

    Raises:
        ConfigError: a setting that verl cannot honour, or a key of `[cluster.verl]` that is set here already.
    """
    cluster = config.cluster or ClusterConfig()
    check(config, cluster)
    ours = {
        **_objective(config),
        **_model(config, cluster),
        **_actor(config, cluster),
        **_sampler(config, cluster),
        **_schedule(config, cluster, run, config.schedule.steps if steps is None else steps),
        **_ray(cluster),
    }
    taken = {key.lstrip("+") for key in ours}
    for key in cluster.verl:
        if key.lstrip("+") in taken:
            raise ConfigError(
                f"cluster.verl: key '{key}' is set by this configuration; change the key that it comes from"
            )
    return {**ours, **cluster.verl}


def environment_of(cluster: ClusterConfig) -> dict[str, str]:
    """Environment variables that every process of the run needs."""
    if cluster.device != "cpu":
        return {}
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": CPU_MODULE,
        "OMP_NUM_THREADS": "1",
        # Ray gives its workers the lowest of priorities but four; beside other work on a CPU they would hardly run.
        "RAY_worker_niceness": "0",
    }


def lines_of(overrides: Mapping[str, Value | Sequence[Value]]) -> list[str]:
    """The overrides as verl's command line takes them, `key=value`."""
    return [f"{key}={_text(value)}" for key, value in overrides.items()]


def check(config: RunConfig, cluster: ClusterConfig) -> None:
    """Refuse what verl cannot honour.

    Raises:
        ConfigError: names the key, its value and what would do.
    """
    credit, rollout, learner = config.credit, config.rollout, config.learner
    rule = getattr(credit, "rule", "fact-utility")
    if rule in MEASURED_RULES:
        raise ConfigError(f"credit.rule = '{rule}' measures with the policy between rollouts; use engine = \"local\"")
    if rule == "gae":
        raise ConfigError("credit.rule = 'gae' trains a critic, which the engine verl does not; use engine = \"local\"")
    if getattr(credit, "process_scale", "raw") == "batch-std":
        raise ConfigError(
            "credit.process_scale = 'batch-std' looks at the whole batch, but the engine verl assigns credit group by "
            'group; use "raw", or engine = "local"'
        )
    if learner.llds_coef > 0 and learner.llds_answer != "same":
        raise ConfigError(
            f"learner.llds_answer = '{learner.llds_answer}' looks at the searches of the whole batch, but the engine "
            'verl builds rows group by group; use "same", or engine = "local"'
        )
    if learner.llds_coef and learner.llds_answer != "same":
        raise ConfigError(
            f"learner.llds_answer = '{learner.llds_answer}' weighs answers over the whole batch, which the engine verl "
            'does not; use "same", or engine = "local"'
        )
    if rollout.top_p < 1 and cluster.old_logprobs == "sampled":
        raise ConfigError(
            f"rollout.top_p = {rollout.top_p}: log-probabilities that come with the tokens are those of the nucleus; "
            'set cluster.old_logprobs = "recompute"'
        )
    servers_of(config)
    if rollout.max_prompt_tokens is None:
        raise ConfigError(
            "rollout.max_prompt_tokens is not set; the engine verl reserves memory for the longest prompt, so give it "
            "(longer prompts end their episode, they are never cut)"
        )
    longest = rollout.max_prompt_tokens + rollout.max_new_tokens
    if learner.token_budget < longest:
        raise ConfigError(
            f"learner.token_budget = {learner.token_budget} is below the longest row of {longest} tokens "
            "(rollout.max_prompt_tokens + rollout.max_new_tokens); raise it"
        )
    if config.environment.kind != "retriever":
        raise ConfigError(
            f"environment.kind = '{config.environment.kind}': the engine verl searches servers only; use "
            'engine = "local"'
        )
    if config.model.device not in ("auto", cluster.device):
        raise ConfigError(f"model.device = '{config.model.device}' and cluster.device = '{cluster.device}' conflict")
    if cluster.device == "cpu" and (learner.precision, rollout.precision) != ("fp32", "fp32"):
        raise ConfigError("cluster.device = 'cpu' computes in fp32; set learner.precision and rollout.precision to it")


def servers_of(config: RunConfig) -> ServersConfig:
    """The search servers of a run: `cluster.servers`, with `data.retriever` as what they search or where they are.

    Raises:
        ConfigError: both tables say what is searched.
    """
    servers, retriever = (config.cluster or ClusterConfig()).servers, config.data.retriever
    if retriever is None:
        return servers
    if servers.urls or servers.index is not None:
        raise ConfigError("data.retriever and cluster.servers both say what is searched; leave one out")
    if not retriever.is_server:
        return servers.model_copy(update={"index": retriever.spec, "device": retriever.device})
    asked = {"urls": (str(retriever.spec),), "protocol": retriever.protocol, "token_env": retriever.token_env}
    return servers.model_copy(update=asked)


def _objective(config: RunConfig) -> Overrides:
    learner, cluster = config.learner, config.cluster or ClusterConfig()
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "algorithm.rollout_correction.bypass_mode": cluster.old_logprobs == "sampled",
        "actor_rollout_ref.actor.use_kl_loss": learner.kl_coef > 0,
        "actor_rollout_ref.actor.kl_loss_coef": learner.kl_coef,
        "actor_rollout_ref.actor.entropy_coeff": learner.entropy_coef,
        "actor_rollout_ref.actor.clip_ratio_low": learner.clip_low,
        "actor_rollout_ref.actor.clip_ratio_high": learner.clip_high,
        "actor_rollout_ref.actor.ppo_epochs": 1,
        "actor_rollout_ref.actor.shuffle": False,
    }


def _model(config: RunConfig, cluster: ClusterConfig) -> Overrides:
    gpu = cluster.device == "cuda"
    keys: Overrides = {
        "actor_rollout_ref.model.path": str(model_path(config.model.path)),
        "actor_rollout_ref.model.trust_remote_code": False,
        "actor_rollout_ref.model.use_remove_padding": gpu,
        "actor_rollout_ref.model.enable_gradient_checkpointing": cluster.gradient_checkpointing and gpu,
    }
    if not gpu:
        keys["+actor_rollout_ref.model.override_config.attn_implementation"] = "sdpa"
    if cluster.lora_rank:
        keys |= {
            "actor_rollout_ref.model.lora_rank": cluster.lora_rank,
            "actor_rollout_ref.model.lora_alpha": cluster.lora_alpha,
            "actor_rollout_ref.model.target_modules": "all-linear",
            "actor_rollout_ref.model.lora.merge": True,
        }
    return keys


def _actor(config: RunConfig, cluster: ClusterConfig) -> Overrides:
    learner, actor = config.learner, "actor_rollout_ref.actor"
    gpu = cluster.device == "cuda"
    return {
        f"{actor}.strategy": "fsdp2",
        f"{actor}.ppo_mini_batch_size": config.schedule.questions_per_step,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": learner.token_budget,
        f"{actor}.ulysses_sequence_parallel_size": cluster.sequence_parallel,
        f"{actor}.use_torch_compile": gpu,
        f"{actor}.fsdp_config.use_torch_compile": gpu,
        f"{actor}.fsdp_config.model_dtype": "fp32",
        f"{actor}.fsdp_config.seed": config.seed,
        f"{actor}.fsdp_config.param_offload": cluster.offload == "all",
        f"{actor}.fsdp_config.optimizer_offload": cluster.offload in ("all", "optimizer"),
        "actor_rollout_ref.ref.fsdp_config.param_offload": cluster.offload == "all",
        "actor_rollout_ref.ref.use_torch_compile": gpu,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": gpu,
        **arithmetic(f"{actor}.fsdp_config", learner.precision),
        **arithmetic("actor_rollout_ref.ref.fsdp_config", learner.precision),
        f"{actor}.grad_clip": learner.grad_clip,
        f"{actor}.optim.clip_grad": learner.grad_clip,
        f"{actor}.optim.lr": learner.learning_rate,
        f"{actor}.optim.weight_decay": learner.weight_decay,
        f"{actor}.optim.betas": list(learner.betas),
        # A cosine from 1 to 1: constant after a warm-up that, as ours, gives the first batch its share, not zero.
        f"{actor}.optim.lr_scheduler_type": "cosine",
        f"{actor}.optim.min_lr_ratio": 1.0,
        f"{actor}.optim.zero_indexed_step": False,
        f"{actor}.optim.lr_warmup_steps": learner.warmup_steps,
    }


def arithmetic(engine: str, precision: str) -> Overrides:
    """Weights are kept in fp32; matrix products run in `precision`, and sums over ranks in fp32.

    Left alone, verl computes in bf16 whatever `dtype` says.
    """
    parts = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {f"+{engine}.mixed_precision.{name}": value for name, value in parts.items()}


def _sampler(config: RunConfig, cluster: ClusterConfig) -> Overrides:
    rollout, name = config.rollout, "actor_rollout_ref.rollout"
    gpu = cluster.device == "cuda"
    keys: Overrides = {
        "data.train_batch_size": config.schedule.questions_per_step,
        "data.max_prompt_length": rollout.max_prompt_tokens or 0,
        "data.max_response_length": rollout.max_new_tokens,
        f"{name}.name": cluster.sampler if gpu else "hf_cpu",
        f"{name}.n": rollout.group_size,
        f"{name}.temperature": rollout.temperature,
        f"{name}.top_p": rollout.top_p,
        f"{name}.top_k": -1,
        f"{name}.seed": config.seed,
        f"{name}.dtype": {"fp32": "float32", "bf16": "bfloat16"}[rollout.precision],
        f"{name}.calculate_log_probs": True,
        # On CPUs one server is enough: its replica spans all ranks.
        f"{name}.tensor_model_parallel_size": cluster.tensor_parallel if gpu else cluster.ranks,
        f"{name}.agent.num_workers": cluster.workers,
    }
    if gpu:
        # The tokenizer is for stop strings; prompts go in and replies come out as tokens all the same.
        keys |= {f"{name}.gpu_memory_utilization": cluster.sampler_memory, f"{name}.skip_tokenizer_init": False}
    else:
        keys[f"{name}.free_cache_engine"] = False
    return keys


def _schedule(config: RunConfig, cluster: ClusterConfig, run: Path, steps: int) -> Overrides:
    schedule = config.schedule
    return {
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
        "trainer.device": cluster.device,
        "trainer.nnodes": cluster.nodes,
        "trainer.n_gpus_per_node": cluster.gpus_per_node,
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": 1_000_000,
        "trainer.val_before_train": bool(schedule.eval_every),
        "trainer.test_freq": schedule.eval_every or -1,
        "trainer.save_freq": schedule.checkpoint_every,
        "trainer.max_actor_ckpt_to_keep": schedule.keep_last,
        "trainer.default_local_dir": str(run.resolve() / CHECKPOINTS),
        "trainer.resume_mode": "auto",
        "trainer.logger": list(cluster.loggers),
        "trainer.project_name": "factagent",
        "trainer.experiment_name": config.name,
        "reward.num_workers": 1,
    }


def _ray(cluster: ClusterConfig) -> Overrides:
    keys: Overrides = {
        f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}": value for name, value in environment_of(cluster).items()
    }
    if cluster.nodes > 1:
        keys["+ray_kwargs.ray_init.address"] = "auto"
    if cluster.cpus is not None:
        keys["ray_kwargs.ray_init.num_cpus"] = cluster.cpus
    if cluster.device == "cpu":
        # Ray's pools count GPUs, so the CPU run declares as many as it has ranks.
        keys["+ray_kwargs.ray_init.num_gpus"] = cluster.gpus_per_node
        keys["+ray_kwargs.ray_init.include_dashboard"] = False
        keys["transfer_queue.backend.SimpleStorage.num_data_storage_units"] = 1
    return keys


def _text(value: Any) -> str:
    """A value in the grammar of the overrides (Hydra's)."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            if _PLAIN.fullmatch(value):
                return value
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case _:
            return f"[{','.join(_text(item) for item in value)}]"
