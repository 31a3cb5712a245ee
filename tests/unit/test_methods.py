"""Methods by name: every preset loads, carries the published numbers, and lies where the layers say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from factagent.cli import main
from factagent.config_presets import MODES
from factagent.configuration import dump_toml, load_config
from factagent.errors import ConfigError
from factagent.evaluation.config import EvalConfig
from factagent.methods.registry import load_method, method_names, modifier_names
from factagent.protocols import PROTOCOLS
from factagent.protocols.prompts import BUILT_IN
from factagent.train.config import RunConfig

EVAL = 'retriever = {corpus = "c.jsonl"}\nsets = [{name = "dev", path = "q.jsonl"}]\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def value(config: BaseModel, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


# From the papers and scripts by hand. Rounds count the answer; updates is a batch's trajectories over a mini-batch's.
KEYS = (
    "rollout.protocol",
    "credit.rule",
    "credit.outcome",
    "rollout.max_rounds",
    "rollout.top_k",
    "rollout.group_size",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.max_new_tokens",
    "learner.aggregation",
    "learner.learning_rate",
    "learner.warmup_steps",
    "learner.updates_per_batch",
    "learner.kl_coef",
    "learner.entropy_coef",
    "learner.clip_high",
    "learner.llds_coef",
    "schedule.steps",
    "schedule.questions_per_step",
)
PUBLISHED = {
    "factagent": (
        "factagent", "fact-utility", "f1", 8, 3, 6, 0.7, 1, 512, "step-mean",
        1e-5, 0, 1, 1e-3, 0, 0.2, 0, 500, 128,
    ),
    "search-r1": (
        "search-r1", "outcome", "em", 5, 3, 5, 1, 0.95, 500, "token-mean",
        1e-6, 286, 10, 1e-3, 1e-3, 0.2, 0, 1005, 512,
    ),
    "llds": (
        "search-r1", "outcome", "em", 4, 3, 5, 1, 1, 500, "token-mean",
        1e-6, 286, 10, 1e-3, 1e-3, 0.2, 0.2, 1005, 512,
    ),
    "search-r1-ppo": (
        "search-r1", "gae", "em", 5, 3, 1, 1, 1, 500, "token-mean",
        1e-6, 286, 2, 0, 1e-3, 0.2, 0, 1005, 512,
    ),
    "gigpo": (
        "gigpo", "gigpo", "em", 4, 3, 5, 1, 1, 512, "token-mean",
        1e-6, 66, 5, 1e-3, 0, 0.2, 0, 662, 256,
    ),
    "research": (
        "research", "outcome", "research", 64, 5, 5, 1, 1, 8192, "token-mean",
        1e-6, 0, 1, 1e-3, 1e-3, 0.2, 0, 154, 256,
    ),
    "autorefine": (
        "autorefine", "outcome", "autorefine", 6, 3, 5, 1, 0.95, 512, "token-mean",
        1e-6, 0, 5, 1e-3, 1e-3, 0.2, 0, 300, 256,
    ),
    "zerosearch": (
        "zerosearch", "reinforce", "f1-multiset", 6, 5, 5, 1, 1, 500, "token-mean",
        1e-6, 193, 2, 1e-3, 0, 0.2, 0, 203, 64,
    ),
    "e-grpo": (
        "react", "e-grpo", "em", 41, 10, 8, 0.7, 1, 512, "trajectory-mean",
        2e-6, 0, 1, 0, 0, 0.28, 0, 78, 64,
    ),
    "vineppo": (
        "search-r1", "vine", "em", 5, 3, 8, 0.6, 0.9, 1024, "token-mean",
        1e-6, 30, 8, 1e-4, 0, 0.2, 0, 1000, 64,
    ),
    "memsearcher": (
        "memsearcher", "outcome", "memsearcher", 9, 5, 5, 1, 1, 6024, "token-mean",
        1e-6, 0, 2, 1e-3, 0, 0.2, 0, 662, 256,
    ),
    "tree-grpo": (
        "search-r1", "tree-grpo", "search-r1-format", 5, 3, 6, 1, 0.95, 500, "token-mean",
        1e-6, 286, 48, 1e-3, 1e-3, 0.2, 0, 1005, 512,
    ),
    "igpo": (
        "search-r1", "igpo", "f1", 10, 3, 16, 1, 1, 2000, "token-mean",
        1e-6, 0, 1, 1e-3, 1e-3, 0.2, 0, 500, 32,
    ),
}  # fmt: skip
MORE = {
    "factagent": {"credit.process_weight": 0.5, "credit.attribution": 0.2, "credit.prior_strength": 0.5,
                  "credit.prior": "symmetric", "credit.counting": "group"},
    "factagent_plus": {"credit.prior": "centred", "credit.counting": "leave-one-out", "credit.process_weight": 0.5},
    "rag": {"rollout.protocol": "rag", "rollout.max_rounds": 2, "rollout.top_k": 3},
    "react": {"rollout.protocol": "react", "rollout.max_rounds": 8, "rollout.top_k": 3, "credit.needs_facts": True},
    "search-r1-ppo": {"credit.gamma": 1, "credit.lam": 1, "credit.kl_in_reward": 1e-3, "critic.learning_rate": 1e-5,
                      "critic.warmup_steps": 15, "critic.value_clip": 0.5, "critic.updates_per_batch": 2},
    "gigpo": {"credit.omega": 1, "credit.gamma": 0.95, "credit.similarity": 0.9, "credit.invalid_penalty": 0.01,
              "credit.mode": "mean_std_norm", "credit.anchor": "observation", "credit.validity": "reply"},
    "research": {"rollout.max_prompt_tokens": 8704},
    "zerosearch": {"environment.kind": "simulator", "environment.p_start": 0, "environment.p_end": 0.5,
                   "environment.endpoint.temperature": 0.8, "environment.endpoint.max_tokens": 600},
    "e-grpo": {"credit.alpha": 0.3},
    "vineppo": {"credit.continuations": 9, "credit.max_states": 20},
    "tree-grpo": {"credit.trees": 2, "credit.expansions": 2, "credit.rounds": 1, "credit.leaves": 3},
    "credit/vine": {"credit.continuations": 9, "rollout.group_size": 6},
    "credit/gigpo": {"credit.anchor": "state", "credit.similarity": 0.9},
    "credit/llds": {"credit.rule": "outcome", "learner.llds_coef": 0.2, "learner.updates_per_batch": 2},
    "ablation/exact-match": {"credit.equivalence": "exact"},
    "ablation/no-redistribution": {"credit.attribution": 0},
    "ablation/no-process-reward": {"credit.process_weight": 0},
    "ablation/cold-start": {"sft.trajectories": 600, "sft.learning_rate": 2e-5, "sft.batch_size": 64,
                            "sft.warmup_ratio": 0.05, "sft.epochs": 2, "sft.source": "policy", "sft.keep": "correct"},
    "sweep/omega-0": {"credit.process_weight": 0},
    "sweep/omega-0.3": {"credit.process_weight": 0.3},
    "sweep/omega-0.5": {"credit.process_weight": 0.5},
    "sweep/omega-0.7": {"credit.process_weight": 0.7},
    "sweep/n-4": {"rollout.group_size": 4},
    "sweep/n-6": {"rollout.group_size": 6},
    "sweep/n-8": {"rollout.group_size": 8},
}  # fmt: skip


def load(method: str, mode: str, *overrides: str) -> RunConfig:
    return load_config(RunConfig, None, (f"method={method}", f"mode={mode}", *overrides))


@pytest.mark.parametrize("method", PUBLISHED)
def test_the_published_numbers(method: str) -> None:
    config = load(method, "faithful")
    assert dict(zip(KEYS, (value(config, key) for key in KEYS), strict=True)) == dict(
        zip(KEYS, PUBLISHED[method], strict=True)
    )


@pytest.mark.parametrize(("method", "keys"), MORE.items())
def test_more_published_numbers(method: str, keys: dict[str, object]) -> None:
    config = load(method, "faithful")
    assert {key: value(config, key) for key in keys} == keys


def test_no_method_is_forgotten() -> None:
    assert {name for name in method_names() if "/" not in name} <= {*PUBLISHED, *MORE}
    assert {name for name in method_names() if name.startswith(("ablation/", "sweep/"))} <= set(MORE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", method_names())
def test_every_preset_loads_and_survives_a_round_trip(method: str, mode: str, tmp_path: Path) -> None:
    config = load(method, mode)
    assert (config.method, config.mode) == (method, mode)
    assert config.rollout.protocol in PROTOCOLS
    assert config.rollout.prompt in BUILT_IN
    assert load(method, mode, "rollout.prompt=terse").rollout.prompt in BUILT_IN
    assert load_config(RunConfig, write(tmp_path / "c.toml", dump_toml(config))) == config


@pytest.mark.parametrize("method", method_names())
def test_matched_leaves_budgets_and_optimiser_to_the_run(method: str) -> None:
    plain, config = RunConfig(), load(method, "matched")
    assert (config.rollout.max_rounds, config.rollout.top_k) == (2 if method == "rag" else 8, 3)
    assert config.schedule == plain.schedule
    free = {"updates_per_batch", "llds_coef"} if "llds" in method else set()
    assert config.learner.model_dump(exclude=free) == plain.learner.model_dump(exclude=free)
    free = {"group_size"} if method.startswith("sweep/n-") else set()
    kept = {"group_size", "temperature", "top_p", "max_new_tokens"} - free
    assert config.rollout.model_dump(include=kept) == plain.rollout.model_dump(include=kept)


@pytest.mark.parametrize("method", [name for name in method_names() if name.startswith("credit/")])
def test_credit_variants_differ_from_factagent_in_credit_alone(method: str) -> None:
    base, config = load("factagent", "faithful"), load(method, "faithful")
    assert config.credit.rule != base.credit.rule
    assert (config.credit.outcome, config.credit.needs_facts) == (base.credit.outcome, base.credit.needs_facts)
    free = {"method", "credit", "learner"} if method == "credit/llds" else {"method", "credit"}
    assert config.model_dump(exclude=free) == base.model_dump(exclude=free)


@pytest.mark.parametrize("method", method_names())
def test_facts_are_needed_only_where_the_protocol_keeps_them(method: str) -> None:
    config = load(method, "matched")
    assert config.credit.needs_facts <= PROTOCOLS[config.rollout.protocol].asserts  # type: ignore[attr-defined]


def test_facts_from_a_protocol_that_keeps_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"credit\.needs_facts is true, but protocol 'search-r1' keeps no facts"):
        load("search-r1", "matched", "credit.needs_facts=true")
    with pytest.raises(ConfigError, match=r"protocol 'search-r1' keeps no facts.* set credit\.needs_facts = false"):
        load_config(RunConfig, None, ("rollout.protocol=search-r1",))


def test_a_modifier_goes_over_any_method() -> None:
    assert modifier_names() == ("llds",)
    config = load("gigpo+llds", "matched")
    assert (config.credit.rule, config.learner.llds_coef, config.learner.updates_per_batch) == ("gigpo", 0.2, 2)
    with pytest.raises(ConfigError, match=r"'gigpo\+llds' has no mode 'faithful': nothing is published"):
        load("gigpo+llds", "faithful")
    with pytest.raises(ConfigError, match=r"modifier 'ldds' is unknown; did you mean 'llds'\?"):
        load("gigpo+ldds", "matched")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gigp", "gigpo"),
        ("fact-agent", "factagent"),
        ("credit/vin", "credit/vine"),
        ("sweep/omega-0.4", "sweep/omega"),
    ],
)
def test_an_unknown_method_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"method '{name}' is unknown; did you mean '{near}") as caught:
        load(name, "matched")
    assert caught.value.exit_code == 2


def test_a_method_without_a_near_one_lists_all() -> None:
    with pytest.raises(ConfigError, match="method 'zzz' is unknown; known are autorefine, e-grpo, factagent,"):
        load("zzz", "matched")


@pytest.mark.parametrize("override", ["mode=fast", "method=3", "method=[]"])
def test_odd_values_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=rf"key '{override.partition('=')[0]}' = .* is refused"):
        load_config(RunConfig, None, ("method=gigpo", override))


@pytest.mark.parametrize("override", ["rollout.top_p=0", "rollout.top_p=1.01", "learner.aggregation=mean"])
def test_a_nucleus_and_a_mean_that_do_not_exist_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=rf"key '{override.partition('=')[0]}' = .* is refused"):
        load("search-r1", "faithful", override)


@pytest.mark.parametrize("method", [name for name in method_names() if load_method(name).departures])
def test_no_departure_claims_what_the_run_can_do(method: str) -> None:
    text = " ".join(load_method(method).departures)
    assert "draws from the whole distribution" not in text
    assert "over the steps of a group" not in text
    per_micro_batch = load(method, "faithful").learner.aggregation == "token-mean"
    assert ("micro-batch" in text) == per_micro_batch


def test_a_file_that_names_a_method_overrides_its_preset(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml", 'method = "gigpo"\nmode = "faithful"\n[rollout]\ngroup_size = 3\n[credit]\nomega = 2\n'
    )
    config = load_config(RunConfig, path, ("credit.gamma=0.5",))
    assert (config.rollout.group_size, config.credit.omega, config.credit.gamma) == (3, 2, 0.5)  # type: ignore[union-attr]
    assert config.learner.learning_rate == 1e-6
    above = write(tmp_path / "d.toml", 'extends = "c.toml"\n[rollout]\ntop_k = 4\n')
    assert load_config(RunConfig, above).rollout.model_dump(include={"group_size", "top_k", "max_rounds"}) == {
        "group_size": 3, "top_k": 4, "max_rounds": 4,
    }  # fmt: skip


BASE = """
[rollout]
protocol = "factagent"
prompt = "terse"
group_size = 3
max_rounds = 5
[credit]
encoder = "minilm"
prior = "centred"
success = "f1"
[learner]
learning_rate = 2e-4
"""


def test_a_method_named_over_a_file_makes_the_file_one_of_that_method(tmp_path: Path) -> None:
    path = write(tmp_path / "base.toml", BASE)
    config = load_config(RunConfig, path, ("credit.omega=0.5", "method=gigpo"))
    assert (config.rollout.protocol, config.rollout.prompt) == ("gigpo", "gigpo-terse")
    assert (config.credit.rule, config.credit.success) == ("gigpo", "f1")
    assert config.credit.omega == 0.5  # type: ignore[union-attr]
    assert (config.rollout.group_size, config.rollout.max_rounds, config.learner.learning_rate) == (3, 5, 2e-4)
    faithful = load_config(RunConfig, path, ("method=gigpo", "mode=faithful"))
    assert (faithful.rollout.group_size, faithful.rollout.max_rounds, faithful.learner.learning_rate) == (5, 4, 1e-6)
    same_rule = load_config(RunConfig, path, ("method=factagent_plus",))
    assert (same_rule.credit.encoder, same_rule.credit.counting) == ("minilm", "leave-one-out")  # type: ignore[union-attr]


def test_settings_given_as_tables_lie_over_the_preset(tmp_path: Path) -> None:
    path = write(tmp_path / "base.toml", BASE)
    tables = [("shared", {"rollout": {"top_k": 7}}), ("entry", {"method": "search-r1", "mode": "faithful"})]
    config = load_config(RunConfig, path, tables=tables)
    assert (config.rollout.protocol, config.rollout.top_k, config.rollout.group_size) == ("search-r1", 7, 5)


def test_the_last_method_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", 'method = "gigpo"\nmode = "faithful"\n[credit]\nomega = 2\n')
    config = load_config(RunConfig, path, ("method=search-r1", "mode=matched"))
    assert (config.method, config.rollout.protocol, config.credit.rule) == ("search-r1", "search-r1", "outcome")
    assert config.learner == RunConfig().learner
    faithful = load_config(RunConfig, write(tmp_path / "d.toml", 'method = "research"\nmode = "faithful"\n'))
    assert faithful.rollout.max_prompt_tokens == 8704
    again = load_config(RunConfig, tmp_path / "d.toml", ("method=search-r1",))
    assert (again.rollout.max_prompt_tokens, again.rollout.max_rounds) == (None, 5)
    with pytest.raises(ConfigError, match=r"key 'method' = '' comes too late: .*d\.toml says 'research'"):
        load_config(RunConfig, tmp_path / "d.toml", ('method=""',))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "rollout.protocol=react",
            r"key 'rollout\.protocol' = 'react' contradicts method 'gigpo', which means 'gigpo'",
        ),
        ("credit.rule=outcome", r"key 'credit\.rule' = 'outcome' contradicts method 'gigpo'"),
    ],
)
def test_what_makes_a_method_is_not_changed_under_its_name(override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"the command line: {problem}"):
        load("gigpo", "matched", override)
    assert load("gigpo", "matched", "rollout.protocol=gigpo").method == "gigpo"


def test_a_rule_has_no_keys_of_another(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", 'method = "gigpo"\n[credit]\nprior = "centred"\n')
    with pytest.raises(ConfigError, match=r"c\.toml: unknown key 'credit\.prior'.*fact-utility"):
        load_config(RunConfig, path)


def test_a_resolved_file_takes_no_preset(tmp_path: Path) -> None:
    """`null` over a preset's key, and presets that change later, must not come back when a run is resumed."""
    config = load("research", "faithful", "rollout.max_prompt_tokens=null")
    text = dump_toml(config)
    assert text.startswith('resolved = true\nmethod = "research"\nmode = "faithful"\n')
    path = write(tmp_path / "config.toml", text)
    assert config.rollout.max_prompt_tokens is None
    assert load_config(RunConfig, path) == config
    assert load_config(RunConfig, path, ("seed=3",)) == config.model_copy(update={"seed": 3})
    again = load_config(RunConfig, path, ("method=research",))
    assert again.rollout.max_prompt_tokens == 8704
    with pytest.raises(ConfigError, match=r"key 'mode' = 'matched' comes too late: .* is resolved for 'faithful'"):
        load_config(RunConfig, path, ("mode=matched",))
    with pytest.raises(ConfigError, match="key 'resolved' must be true or false, found 1"):
        load_config(RunConfig, write(tmp_path / "odd.toml", "resolved = 1\n"))


def test_without_a_method_nothing_changes(tmp_path: Path) -> None:
    text = dump_toml(RunConfig())
    assert text.startswith('method = ""\nmode = "matched"\n')
    old = text.removeprefix('method = ""\nmode = "matched"\n')
    assert load_config(RunConfig, write(tmp_path / "config.toml", old)) == RunConfig()
    assert load_config(RunConfig, None, ("mode=faithful",)).learner == RunConfig().learner


def test_an_evaluation_plays_by_the_method(tmp_path: Path) -> None:
    path = write(tmp_path / "e.toml", f'method = "autorefine"\nmode = "faithful"\n{EVAL}')
    config = load_config(EvalConfig, path, ("rollout.max_rounds=4",))
    rollout = config.rollout
    assert (rollout.protocol, rollout.prompt, rollout.max_rounds) == ("autorefine", "autorefine-full", 4)
    assert (rollout.temperature, rollout.max_new_tokens) == (0.0, 512)
    assert load_config(EvalConfig, write(tmp_path / "r.toml", dump_toml(config))) == config
    on_top = load_config(EvalConfig, None, ("method=rag",), base=config)
    assert (on_top.rollout.protocol, on_top.rollout.max_rounds) == ("rag", 2)
    with pytest.raises(ConfigError, match=r"key 'rollout\.protocol' = 'react' contradicts method 'autorefine'"):
        load_config(EvalConfig, path, ("rollout.protocol=react",))


def test_every_preset_says_what_it_is() -> None:
    for name in method_names():
        method = load_method(name)
        assert all((method.title, method.paper, method.summary))
        assert method.summary.endswith(".")
        assert all(each.endswith(".") for each in method.departures)
    assert len({load_method(name).title for name in method_names()}) == len(method_names())


def test_the_page_names_every_method_and_only_files_and_keys_that_are_there(repository: Path) -> None:
    page = (repository / "docs/methods.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([a-z][a-z0-9_/+.-]*)`", page))
    assert set(method_names()) - names == set()
    paths = re.findall(r"`((?:tests|src|docs)/[^`]+)`", page)
    assert len(paths) > 20
    assert [path for path in paths if not (repository / path).exists()] == []
    keys = re.findall(r"`(rollout|credit|learner|environment|critic)\.([a-z_]+)", page)
    kinds = {name: vars(load("gigpo", "matched"))[name] for name in ("rollout", "learner", "environment", "critic")}
    assert {table for table, _ in keys} >= {"rollout", "learner", "environment"}
    assert [(table, key) for table, key in keys if table in kinds and key not in type(kinds[table]).model_fields] == []


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    page = capsys.readouterr().out
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    assert rows == ["method", *method_names()]
    assert "| gigpo | gigpo | gigpo | em | retriever | the run's own | n 5, 4 rounds, top-3, lr 1e-06," in page
    assert "| corpus-noise / simulator |" in page


def test_one_method_as_toml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["methods", "search-r1", "--mode", "faithful"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Search-R1 (GRPO): arXiv 2503.09516\n")
    assert "# - Its token mean is taken in each micro-batch, then over these;" in text
    assert "\ntop_p = 0.95\n" in text
    assert load_config(RunConfig, write(tmp_path / "c.toml", text)) == load("search-r1", "faithful")
    assert main(["methods", "search-r1"]) == 0
    page = capsys.readouterr().out
    assert "top_p" not in page
    assert "micro-batch" not in page


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["gigpoo"], "method 'gigpoo' is unknown; did you mean 'gigpo'?"),
        (["--mode", "faithful"], "--mode faithful is for one method"),
        (["gigpo", "--json"], "--json is for the list"),
    ],
)
def test_refused_arguments(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", *arguments]) == 2
    assert problem in capsys.readouterr().err
