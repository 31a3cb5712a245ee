"""A cold start through verl's own SFT trainer: our rejection-sampled trajectories in, a model directory out.

The trajectories are collected as the engine in this process collects them (`sft.source`), become token rows once, and
are trained on by all GPUs of one node under FSDP2. What is collected and what is trained are kept in the run directory,
so that an interrupted cold start goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from factagent.configuration import dump_toml, load_config
from factagent.distributed.export import merge_shards
from factagent.distributed.launch import LATEST, require_verl
from factagent.distributed.overrides import Overrides, arithmetic, environment_of, lines_of
from factagent.distributed.sft_rows import write_rows
from factagent.errors import ConfigError, ServiceError
from factagent.evaluation.local import model_path, prepare_process
from factagent.records import loads
from factagent.runs import RunDirectory, read_metrics
from factagent.train.cluster import ClusterConfig
from factagent.train.config import RunConfig
from factagent.train.run import collected_samples
from factagent.train.setup import load_policy

SHARDS = "verl-sft"
"""Folder of the run directory with the SFT trainer's own checkpoints."""

MODEL = "model"
"""Folder of the run directory with the model in the end."""


def start_cluster_sft(config: RunConfig, out: Path) -> Path:
    """Cold-start the configured model in a new run directory; returns the model's directory.

    Raises:
        MissingExtraError: verl is not installed.
        ConfigError: a setting that verl's SFT trainer does not know.
        ServiceError: the trainer failed.
    """
    require_verl()
    check_sft(config)
    return _sft(config, RunDirectory.create(out, dump_toml(config)))


def resume_cluster_sft(directory: Path) -> Path:
    """Go on with an interrupted cold start from its last checkpoint; returns the model's directory."""
    require_verl()
    run = RunDirectory.open(directory)
    return _sft(load_config(RunConfig, run.config_path, ()), run)


def check_sft(config: RunConfig) -> None:
    """Refuse what verl's SFT trainer cannot honour.

    Raises:
        ConfigError: names the key and what would do.
    """
    cluster = config.cluster or ClusterConfig()
    if config.sft.prompt_loss_weight:
        raise ConfigError("sft.prompt_loss_weight is above 0, which verl's SFT trainer does not know; set it to 0")
    if cluster.nodes > 1:
        raise ConfigError(f"cluster.nodes = {cluster.nodes}: a cold start runs on one node; set it to 1")
    if config.sft.batch_size % cluster.gpus_per_node:
        raise ConfigError(
            f"sft.batch_size = {config.sft.batch_size} is no multiple of the {cluster.gpus_per_node} GPUs "
            "(cluster.gpus_per_node)"
        )


def sft_overrides(config: RunConfig, run: Path, longest: int) -> Overrides:
    """All overrides of the SFT trainer; `longest` is the longest row in tokens."""
    sft, cluster = config.sft, config.cluster or ClusterConfig()
    gpu = cluster.device == "cuda"
    keys: Overrides = {
        "model.path": str(model_path(config.model.path)),
        "model.trust_remote_code": False,
        "model.use_remove_padding": gpu,
        "model.enable_gradient_checkpointing": cluster.gradient_checkpointing and gpu,
        "model.lora_rank": cluster.lora_rank,
        "model.lora_alpha": cluster.lora_alpha,
        "engine.strategy": "fsdp2",
        "engine.model_dtype": "fp32",
        "engine.use_torch_compile": gpu,
        "engine.param_offload": cluster.offload == "all",
        "engine.optimizer_offload": cluster.offload != "none",
        "engine.seed": config.seed,
        **arithmetic("engine", sft.precision),
        "optim.lr": sft.learning_rate,
        "optim.betas": list(sft.betas),
        "optim.weight_decay": sft.weight_decay,
        "optim.clip_grad": 1.0,
        "optim.lr_scheduler_type": "cosine",
        "optim.lr_warmup_steps_ratio": sft.warmup_ratio,
        "optim.zero_indexed_step": False,
        "data.train_files": str(run.resolve() / "sft" / "samples.jsonl"),
        "data.custom_cls.path": "pkg://factagent.distributed.sft_rows",
        "data.custom_cls.name": "SampleRows",
        "data.train_batch_size": sft.batch_size,
        "data.max_length": longest,
        "data.max_token_len_per_gpu": max(config.learner.token_budget, longest),
        "data.num_workers": 0,
        "trainer.device": cluster.device,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": cluster.gpus_per_node,
        "trainer.total_epochs": sft.epochs,
        "trainer.seed": config.seed,
        "trainer.save_freq": 50,
        "trainer.max_ckpt_to_keep": 1,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": str(run.resolve() / SHARDS),
        "trainer.logger": ["file"],
        "trainer.project_name": "factagent",
        "trainer.experiment_name": config.name,
    }
    if not gpu:
        keys["+model.override_config.attn_implementation"] = "sdpa"
    return keys


def _sft(config: RunConfig, run: RunDirectory) -> Path:
    out = run.path / MODEL
    with run.lock():
        longest = _rows_once(config, run)
        log = run.path / "sft" / "verl.jsonl"
        _train(config, lines_of(sft_overrides(config, run.path, longest)), log)
        _log(run, log)
        if not out.exists():
            step = (run.path / SHARDS / LATEST).read_text("utf-8").strip()
            merge_shards(run.path / SHARDS / f"global_step_{step}", out)
    return out


def _rows_once(config: RunConfig, run: RunDirectory) -> int:
    """Collect trajectories and write their rows, unless that is done; the longest row in tokens."""
    path = run.path / "sft" / "samples.jsonl"
    if not path.exists():
        prepare_process(config.threads, config.seed)
        samples = collected_samples(config, run, load_policy(config))
        if len(samples) < config.sft.batch_size:
            raise ConfigError(f"sft.batch_size = {config.sft.batch_size} is above the {len(samples)} samples; lower it")
        write_rows(path, samples)
    rows = (loads(line) for line in path.read_bytes().splitlines())
    return max(len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows)


def _train(config: RunConfig, overrides: list[str], log: Path) -> None:
    cluster = config.cluster or ClusterConfig()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", str(cluster.gpus_per_node), "-m", "factagent.distributed.sft_main", *overrides]
    environment = os.environ | environment_of(cluster) | {"VERL_FILE_LOGGER_PATH": str(log)}
    # Its own output goes where ours does not: standard output is for the result.
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)  # noqa: S603 (our own command)
    if done.returncode:
        raise ServiceError(f"verl's SFT trainer ended with exit code {done.returncode}; see its messages above")


def _log(run: RunDirectory, log: Path) -> None:
    """The trainer's figures as rows of metrics; those of an earlier start stay."""
    done = max((row["step"] for row in read_metrics(run.path)), default=0)
    for line in log.read_bytes().splitlines():
        record = loads(line)
        if record["step"] > done and "train/loss" in record["data"]:
            figures = {name: record["data"].get(f"train/{key}") for name, key in _FIGURES.items()}
            run.log_metrics({"step": record["step"], **figures, "seconds": {}})


_FIGURES = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "response_tokens": "global_tokens"}
"""Our name -> the trainer's."""
