"""One configuration for both engines: what verl is given, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from factagent.configuration import dump_toml, load_config
from factagent.credit.rule_choice import AnyRule
from factagent.distributed.memory import memory_plan, model_size, plan_lines
from factagent.distributed.overrides import environment_of, lines_of, overrides_of, servers_of
from factagent.errors import ConfigError, UsageError
from factagent.train.cluster import ClusterConfig
from factagent.train.config import RunConfig

RUN = Path("runs/a run")
RULES = [get_args(member)[1].tag for member in get_args(get_args(AnyRule)[0])]


def config(**changes: Any) -> RunConfig:
    base: dict[str, Any] = {"rollout": {"max_prompt_tokens": 4096}, "cluster": {"gpus_per_node": 4}}
    for key, value in changes.items():
        base[key] = {**base.get(key, {}), **value}
    return RunConfig.model_validate(base)


def test_what_is_learned_comes_from_the_tables_of_the_local_engine() -> None:
    keys = overrides_of(
        config(
            learner={"learning_rate": 3e-6, "kl_coef": 0.002, "clip_low": 0.1, "warmup_steps": 7, "grad_clip": 0.5},
            rollout={"group_size": 5, "temperature": 0.9, "max_new_tokens": 256, "max_prompt_tokens": 3000},
            schedule={"questions_per_step": 64, "steps": 40, "eval_every": 10, "checkpoint_every": 20},
        ),
        RUN,
    )
    assert keys["actor_rollout_ref.actor.optim.lr"] == 3e-6
    assert keys["actor_rollout_ref.actor.use_kl_loss"] is True
    assert keys["actor_rollout_ref.actor.kl_loss_coef"] == 0.002
    assert keys["actor_rollout_ref.actor.clip_ratio_low"] == 0.1
    assert keys["actor_rollout_ref.actor.optim.lr_warmup_steps"] == 7
    assert keys["actor_rollout_ref.actor.grad_clip"] == keys["actor_rollout_ref.actor.optim.clip_grad"] == 0.5
    assert keys["actor_rollout_ref.rollout.n"] == 5
    assert keys["actor_rollout_ref.rollout.temperature"] == 0.9
    assert (keys["data.max_prompt_length"], keys["data.max_response_length"]) == (3000, 256)
    assert keys["data.train_batch_size"] == 64
    assert keys["trainer.total_training_steps"] == 40
    assert (keys["trainer.test_freq"], keys["trainer.save_freq"]) == (10, 20)


def test_a_run_without_kl_has_no_reference_and_steps_on_the_command_line_go_first() -> None:
    keys = overrides_of(config(learner={"kl_coef": 0.0}, schedule={"eval_every": 0}), RUN, steps=3)
    assert keys["actor_rollout_ref.actor.use_kl_loss"] is False
    assert keys["trainer.total_training_steps"] == 3
    assert (keys["trainer.val_before_train"], keys["trainer.test_freq"]) == (False, -1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_of_the_learner_reaches_actor_and_reference(precision: str) -> None:
    keys = overrides_of(config(learner={"precision": precision}), RUN)
    for part in ("actor", "ref"):
        assert keys[f"+actor_rollout_ref.{part}.fsdp_config.mixed_precision.param_dtype"] == precision
        assert keys[f"+actor_rollout_ref.{part}.fsdp_config.mixed_precision.reduce_dtype"] == "fp32"


def test_adapters_are_merged_before_weights_are_sent_to_the_sampler() -> None:
    keys = overrides_of(config(cluster={"lora_rank": 16, "lora_alpha": 64}), RUN)
    assert keys["actor_rollout_ref.model.lora_rank"] == 16
    assert keys["actor_rollout_ref.model.lora_alpha"] == 64
    assert keys["actor_rollout_ref.model.lora.merge"] is True
    assert "actor_rollout_ref.model.lora_rank" not in overrides_of(config(), RUN)


def test_lines_are_what_verl_reads() -> None:
    lines = lines_of({"a": True, "b": 1e-6, "c": [0.9, "x y"], "d": "1", "e": "it's", "f": "null", "g": "a/b.c"})
    assert lines == ["a=true", "b=1e-06", "c=[0.9,'x y']", "d='1'", "e='it\\'s'", "f='null'", "g=a/b.c"]


def test_the_dry_run_holds_every_setting_once_and_no_empty_value() -> None:
    lines = lines_of(overrides_of(config(), RUN))
    names = [line.partition("=")[0].lstrip("+") for line in lines]
    assert len(names) == len(set(names)) > 60
    assert f"trainer.default_local_dir='{RUN.resolve()}/verl'" in lines


def test_further_keys_of_verl_are_passed_on_and_may_not_contradict() -> None:
    keys = overrides_of(config(cluster={"verl": {"actor_rollout_ref.rollout.max_num_seqs": 512}}), RUN)
    assert keys["actor_rollout_ref.rollout.max_num_seqs"] == 512
    with pytest.raises(ConfigError, match=r"cluster\.verl: key 'actor_rollout_ref\.rollout\.n'"):
        overrides_of(config(cluster={"verl": {"actor_rollout_ref.rollout.n": 8}}), RUN)
    with pytest.raises(ConfigError, match=r"mixed_precision"):
        overrides_of(
            config(cluster={"verl": {"actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp16"}}), RUN
        )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rollout": {"max_prompt_tokens": None}}, "rollout.max_prompt_tokens is not set"),
        ({"learner": {"token_budget": 4096}}, "learner.token_budget = 4096"),
        ({"credit": {"process_scale": "batch-std"}}, "credit.process_scale"),
        ({"model": {"device": "cpu"}}, "model.device = 'cpu'"),
        ({"environment": {"kind": "corpus-noise"}}, "environment.kind"),
        ({"learner": {"llds_coef": 0.2, "llds_answer": "paper"}}, "learner.llds_answer"),
        ({"cluster": {"device": "cpu"}}, "learner.precision"),
        ({"learner": {"llds_coef": 0.2, "llds_answer": "paper"}}, "learner.llds_answer = 'paper'"),
        ({"rollout": {"top_p": 0.9}, "cluster": {"old_logprobs": "sampled"}}, "rollout.top_p = 0.9"),
        (
            {"data": {"retriever": {"spec": "a"}}, "cluster": {"servers": {"index": "b"}}},
            "data.retriever and cluster.servers both",
        ),
    ],
)
def test_what_verl_cannot_honour_is_an_error_that_names_the_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        overrides_of(config(**changes), RUN)
    assert named in str(error.value)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_runs_on_verl_or_is_refused_by_name(rule: str) -> None:
    """No credit rule may slip through that would be computed otherwise than by the local engine."""
    run = config(credit={"rule": rule})
    if rule in ("vine", "igpo", "tree-grpo", "gae"):
        with pytest.raises(ConfigError, match=f"credit.rule = '{rule}'"):
            overrides_of(run, RUN)
    else:
        assert overrides_of(run, RUN)["algorithm.adv_estimator"] == "grpo"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("[cluster]\ngpus = 8\n", "unknown key 'cluster.gpus'"),
        ("[cluster]\ntensor_parallel = 3\n", "does not divide"),
        ("[cluster]\nnodes = 2\n", "out of the others' reach"),
        ('[cluster]\ndevice = "cpu"\noffload = "all"\n', "knows neither"),
        ('[cluster.servers]\nurls = ["http://a"]\nindex = "b"\n', "exclude each other"),
        ('[cluster.servers]\nlayout = "shards"\n', "needs 'urls'"),
    ],
)
def test_a_wrong_table_is_an_error_with_its_place(tmp_path: Path, table: str, problem: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(table, "utf-8")
    with pytest.raises(ConfigError) as error:
        load_config(RunConfig, path)
    assert problem in str(error.value)
    assert str(path) in str(error.value)


def test_a_configuration_with_a_cluster_survives_its_file(tmp_path: Path) -> None:
    run = config(cluster={"verl": {"a.b": 1, "c": "x"}, "servers": {"urls": ["http://one:8000"]}})
    path = tmp_path / "run.toml"
    path.write_text(dump_toml(run), "utf-8")
    assert load_config(RunConfig, path) == run


def test_only_a_run_on_cpus_changes_the_environment() -> None:
    assert environment_of(ClusterConfig()) == {}
    assert environment_of(ClusterConfig(device="cpu"))["VERL_PLATFORM"] == "cpu"


def test_a_runs_own_retriever_is_what_its_servers_search() -> None:
    assert servers_of(config()).index is None
    assert servers_of(config(data={"retriever": {"spec": "indexes/wiki", "device": "cuda"}})).index == "indexes/wiki"
    there = servers_of(config(data={"retriever": {"spec": "http://a:1", "protocol": "verl-agent", "token_env": "T"}}))
    assert (there.urls, there.protocol, there.token_env) == (("http://a:1",), "verl-agent", "T")


@pytest.mark.parametrize("name", ["paper-qwen2.5-3b", "paper-qwen2.5-7b", "one-gpu-lora", "two-nodes"])
def test_every_recipe_is_one_that_verl_is_given(repository: Path, name: str) -> None:
    run = load_config(RunConfig, repository / "configs" / f"{name}.toml")
    assert run.engine == "verl"
    assert RunConfig.model_validate_json(run.model_dump_json()) == run
    keys = overrides_of(run, RUN)
    if name.startswith("paper"):
        assert (run.schedule.questions_per_step, run.rollout.group_size, run.schedule.steps) == (128, 6, 500)
        assert (keys["trainer.nnodes"], keys["trainer.n_gpus_per_node"]) == (1, 8)
    if name == "two-nodes":
        assert keys["+ray_kwargs.ray_init.address"] == "auto"


# Qwen2.5-3B-Instruct as published.
QWEN_3B = """{"hidden_size": 2048, "num_hidden_layers": 36, "vocab_size": 151936, "num_attention_heads": 16,
"num_key_value_heads": 2, "intermediate_size": 11008, "tie_word_embeddings": true}"""


def test_the_memory_plan_counts_the_parameters_of_a_published_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(QWEN_3B, "utf-8")
    size = model_size(tmp_path)
    assert size is not None
    assert size.parameters == pytest.approx(3.09e9, rel=0.005)
    assert size.cache_bytes == 36 * 2 * 2 * 128 * 2
    eight = memory_plan(config(model={"path": str(tmp_path)}, cluster={"gpus_per_node": 8}), size)
    one = memory_plan(config(model={"path": str(tmp_path)}, cluster={"gpus_per_node": 1}), size)
    assert one.weights == 4 * size.parameters == pytest.approx(8 * eight.weights, abs=64)
    assert one.moments == 2 * one.weights
    lora = memory_plan(config(cluster={"gpus_per_node": 1, "lora_rank": 16}), size)
    assert lora.reference == 0
    assert lora.moments < 0.03 * one.moments
    assert "3.09 B parameters" in plan_lines(config(model={"path": str(tmp_path)}))[0]


def test_a_model_that_is_not_here_has_no_plan(tmp_path: Path) -> None:
    assert "no plan" in plan_lines(config(model={"path": str(tmp_path / "none")}))[0]


def test_the_engine_of_a_run_is_named_once(tmp_path: Path) -> None:
    from factagent.cli.engine import engine_of_run, engine_overrides

    assert engine_overrides("verl", ("seed=1",)) == ("seed=1", "engine=verl")
    with pytest.raises(UsageError, match="both name the engine"):
        engine_overrides("verl", ("engine=local",))
    (tmp_path / "config.toml").write_text(dump_toml(config(cluster={}).model_copy(update={"engine": "verl"})), "utf-8")
    assert engine_of_run(tmp_path, None) == "verl"
    with pytest.raises(UsageError, match="a run of the engine verl"):
        engine_of_run(tmp_path, "local")
