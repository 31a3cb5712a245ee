"""Training whose credit needs more than groups (vine, igpo, tree-grpo), and training in other environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.configuration import load_config  # noqa: E402
from factagent.errors import ConfigError, DataError, TryAgainError, UsageError  # noqa: E402
from factagent.evaluation.local import protocol_of  # noqa: E402
from factagent.methods.igpo import forced_reply, gold_logprobs  # noqa: E402
from factagent.methods.measure import measure  # noqa: E402
from factagent.methods.sampling import sample  # noqa: E402
from factagent.policies.base import GenerationRequest  # noqa: E402
from factagent.policies.scripted import ScriptedExpert  # noqa: E402
from factagent.protocols import PROTOCOLS, build_protocol  # noqa: E402
from factagent.rollout import RolloutSettings  # noqa: E402
from factagent.runs import metrics_digest, read_groups, read_metrics  # noqa: E402
from factagent.train.config import RunConfig  # noqa: E402
from factagent.train.run import resume_training, start_training  # noqa: E402
from factagent.train.setup import load_data, load_policy  # noqa: E402
from factagent.types import Generation, Question, Step  # noqa: E402

SHORT = ("schedule.steps=2", "schedule.eval_every=0", "schedule.questions_per_step=2", "schedule.checkpoint_every=1")
RULES = {
    "vine": ("credit={rule='vine', continuations=2}",),
    "igpo": ("credit={rule='igpo'}",),
    "tree-grpo": ("credit={rule='tree-grpo'}", "rollout.group_size=6"),
}


def config_of(path: Path, *overrides: str) -> RunConfig:
    return load_config(RunConfig, path, overrides)


def records(run: Path) -> list[str]:
    return [repr(each) for each in read_groups(run)]


# --- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_run_stopped_after_a_step_goes_on_bit_for_bit(rule: str, config_file: Path, tmp_path: Path) -> None:
    config = config_of(config_file, *SHORT, *RULES[rule])
    start_training(config, tmp_path / "whole")
    start_training(config, tmp_path / "halves", 1)
    resume_training(tmp_path / "halves", 2)
    assert metrics_digest(tmp_path / "whole") == metrics_digest(tmp_path / "halves")
    assert records(tmp_path / "whole") == records(tmp_path / "halves")
    for row in read_metrics(tmp_path / "whole"):
        assert np.isfinite(row["loss"])
        assert row["seconds"]["measure"] >= 0
        assert (row["measure_tokens"] > 0) == (rule != "tree-grpo")


@pytest.fixture(scope="module")
def played(config_file: Path) -> Any:
    """Policy, data, protocol and a batch of groups."""
    config = config_of(config_file)
    policy, data, protocol = load_policy(config), load_data(config.data), protocol_of(config.rollout)
    settings = config.rollout.settings()
    sampled = sample(data.train[:3], protocol, policy, data.retriever, settings, ("t",), config.credit)
    return policy, data, protocol, settings, sampled.groups


def test_what_is_measured_follows_from_the_key(played: Any, config_file: Path) -> None:
    policy, data, protocol, settings, groups = played
    rule = config_of(config_file, *RULES["vine"]).credit

    def values(key: tuple[str | int, ...]) -> list[list[list[float]]]:
        measured = measure(groups, rule, protocol, policy, data.retriever, settings, key)
        assert measured is not None
        assert measured.values is not None
        return [[row.tolist() for row in group] for group in measured.values]

    first = values(("m", 1))
    assert first == values(("m", 1))
    for group, rows in zip(groups, first, strict=True):
        for trajectory, row in zip(group.trajectories, rows, strict=True):
            assert len(row) == len(trajectory.steps) + 1
            assert row[-1] == 0.0
            assert all(0 <= value <= 1 for value in row)


def test_rules_that_need_nothing_measure_nothing(played: Any) -> None:
    policy, data, protocol, settings, groups = played
    rule = load_config(RunConfig, None, ("credit={rule='outcome'}",)).credit
    assert measure(groups, rule, protocol, policy, data.retriever, settings, ()) is None


@dataclass
class Recording:
    """A policy that remembers what it generated, by key."""

    policy: Any
    generated: dict[tuple[str | int, ...], Generation] = field(default_factory=dict)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        found = self.policy.generate(requests)
        self.generated.update(zip((request.key for request in requests), found, strict=True))
        return list(found)


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_a_continuation_reads_the_very_tokens_that_its_trajectory_read(name: str, played: Any) -> None:
    policy, data, *_ = played
    protocol = build_protocol(name, f"{name}-terse")
    settings = RolloutSettings(group_size=2, max_rounds=3)
    rules = {rule: load_config(RunConfig, None, (f"credit={{rule='{rule}'}}",)).credit for rule in ("vine", "igpo")}
    groups = sample(data.train[:2], protocol, policy, data.retriever, settings, ("t",), rules["vine"]).groups
    recording = Recording(policy)
    measured = measure(groups, rules["vine"], protocol, recording, data.retriever, settings, ("m",))
    assert measured is not None
    assert measured.values is not None
    assert measured.tokens == sum(generation.sampled_tokens for generation in recording.generated.values())
    first = 0
    by_id = {group.question.id: group for group in groups}
    for (_, question, member, start, _, round_), generation in recording.generated.items():
        trajectory = by_id[str(question)].trajectories[int(member)]
        if round_ == int(start) + 1:
            first += 1
            assert generation.prompt_ids == trajectory.steps[int(start)].generation.prompt_ids
    longest = max(len(trajectory.steps) for group in groups for trajectory in group.trajectories)
    assert first > 0 or longest == 1 + protocol.opens_with_search
    scored = measure(groups, rules["igpo"], protocol, policy, data.retriever, settings, ())
    assert scored is not None
    assert scored.gold_logprobs is not None
    for group, values, gold in zip(groups, measured.values, scored.gold_logprobs, strict=True):
        for trajectory, row, logprobs in zip(group.trajectories, values, gold, strict=True):
            assert len(row) == len(logprobs) == len(trajectory.steps) + 1
            assert np.isfinite(row).all()
            assert (np.asarray(logprobs) < 0).all()


# --- the gold answer -----------------------------------------------------------------------------------------------


def test_gold_logprobs_are_those_of_one_forward_pass(played: Any) -> None:
    policy, _, protocol, _, groups = played
    values, _ = gold_logprobs(groups, protocol, policy)
    policy.model.train(False)
    for group, rows in zip(groups, values, strict=True):
        forced = forced_reply(policy, protocol, group.question)
        spelled = policy.tokenizer.decode([forced.ids[i] for i in forced.answer])
        assert spelled.strip() == group.question.answers[0]
        for trajectory, row in zip(group.trajectories, rows, strict=True):
            assert len(row) == len(trajectory.steps) + 1
            assert row[-1] == row[-2]
            for step, value in zip(trajectory.steps, row, strict=False):
                assert value == pytest.approx(_by_hand(policy, step, forced.ids, forced.answer), abs=1e-4)


def _by_hand(policy: Any, step: Step, ids: tuple[int, ...], answer: tuple[int, ...]) -> float:
    prompt = step.generation.prompt_ids
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0]
    logprobs = torch.log_softmax(logits.float(), -1)
    return float(np.mean([float(logprobs[len(prompt) + i - 1, ids[i]]) for i in answer]))


def test_igpo_needs_tokens_and_a_gold_answer(played: Any, config_file: Path) -> None:
    policy, data, protocol, settings, groups = played
    rule = config_of(config_file, *RULES["igpo"]).credit
    with pytest.raises(UsageError, match="train a local model"):
        measure(groups, rule, protocol, ScriptedExpert("terse"), data.retriever, settings, ())
    with pytest.raises(DataError, match="no gold answer"):
        forced_reply(policy, protocol, Question("q", "who?", ()))
    scripted = sample(data.train[:1], protocol, ScriptedExpert("terse"), data.retriever, settings, (), rule)
    with pytest.raises(UsageError, match="a policy with tokens"):
        gold_logprobs(scripted.groups, protocol, policy)


def test_trees_must_make_the_group(config_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"group_size is 4, but credit\.trees \* credit\.leaves make groups of 6"):
        config_of(config_file, "credit={rule='tree-grpo'}")
    with pytest.raises(ConfigError, match=r"leaves = 4, but a tree grows 1 \+ rounds \* expansions = 3"):
        config_of(config_file, "credit={rule='tree-grpo', leaves=4}", "rollout.group_size=8")


# --- environments --------------------------------------------------------------------------------------------------


@pytest.fixture
def simulator(chat_server: Any) -> Iterator[Any]:
    """The stand-in chat server with scripted replies: documents that name what they were asked."""
    module = sys.modules["chat_server"]

    class Scripted(module.ChatServer):  # type: ignore[misc,name-defined]
        reply: Callable[[str], str] = staticmethod(lambda prompt: "Doc 1: one fact.\nDoc 2: another.\nDoc 3: a third.")

        def _generate(self, body: dict[str, Any], ids: tuple[int, ...]) -> Any:
            return module.Completion(type(self).reply(body["messages"][-1]["content"]), "stop", len(ids), 9)

    with Scripted(chat_server.policy) as server:
        yield server


def test_a_run_in_a_simulated_search_engine(config_file: Path, simulator: Any, tmp_path: Path) -> None:
    environment = ("environment.kind=simulator", f"environment.endpoint.url={simulator.url}")
    config = config_of(config_file, *SHORT, *environment, "environment.prompt=simulator-tuned", "environment.p_end=1.0")
    start_training(config, tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    assert [round(row["environment_noise"], 3) for row in rows] == [0.333, 1.0]
    prompts = [body["messages"][-1]["content"] for body in simulator.bodies]
    assert {body["temperature"] for body in simulator.bodies} == {0.8}
    assert {body["max_tokens"] for body in simulator.bodies} == {600}
    observed = 0
    for _, group, _ in read_groups(tmp_path / "run"):
        for step in (step for trajectory in group.trajectories for step in trajectory.steps if step.observation):
            observed += 1
            assert [passage.text for passage in step.observation.passages][:1] == ["one fact."]
            mine = [p for p in prompts if group.question.text in p and group.question.answers[0] in p]
            assert any(f"Query: {step.observation.query}\n" in prompt for prompt in mine)
    assert observed == len(prompts) > 0
    assert any("do not help" in prompt for prompt in prompts)


def test_a_simulator_that_writes_no_documents_stops_the_run(
    config_file: Path, simulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(simulator), "reply", staticmethod(lambda prompt: "I am only a language model."))
    environment = ("environment.kind=simulator", f"environment.endpoint.url={simulator.url}")
    config = config_of(config_file, *SHORT, *environment, "alarms.failed_share=0.1")
    with pytest.raises(TryAgainError, match=r"of the trajectories failed: simulated search: .* hold no 'Doc 1"):
        start_training(config, tmp_path / "run")
    (row,) = read_metrics(tmp_path / "run")
    assert row["failed_trajectories"] > 0
    assert json.loads((tmp_path / "run" / "checkpoints" / "step-1" / "state.json").read_text())["step"] == 1


def test_a_run_with_noise_from_the_corpus_repeats_itself(config_file: Path, tmp_path: Path) -> None:
    config = config_of(
        config_file, *SHORT, "environment.kind=corpus-noise", "environment.p_start=0.5", "environment.p_end=1"
    )
    start_training(config, tmp_path / "one")
    start_training(config, tmp_path / "two")
    assert metrics_digest(tmp_path / "one") == metrics_digest(tmp_path / "two")
    start_training(config_of(config_file, *SHORT), tmp_path / "plain")
    assert records(tmp_path / "one") != records(tmp_path / "plain")
