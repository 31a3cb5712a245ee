"""Every system of the paper trains: ten steps in the world from a short cold start, with finite losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.configuration import load_config  # noqa: E402
from factagent.methods.registry import load_method  # noqa: E402
from factagent.runs import read_groups, read_metrics  # noqa: E402
from factagent.train.config import RunConfig  # noqa: E402
from factagent.train.run import start_sft, start_training  # noqa: E402
from factagent.types import Answer, Invalid, Search  # noqa: E402

SYSTEMS = ("rag", "react", "search-r1", "research", "zerosearch", "autorefine", "gigpo", "e-grpo", "vineppo")
STEPS = 10
SHORT = (
    "rollout.prompt=terse",
    "rollout.max_new_tokens=48",
    "rollout.temperature=0.5",
    "learner.learning_rate=1e-3",
    f"schedule.steps={STEPS}",
    "schedule.questions_per_step=2",
    "schedule.eval_every=0",
    "schedule.save_trajectories_every=1",
)
COLD = ("credit.needs_facts=false", "rollout.prompt=terse", "rollout.max_rounds=6", "sft.keep=correct")
COLD += ("sft.trajectories=96", "sft.batch_size=8", "sft.epochs=12", "sft.learning_rate=1e-2")
MARKS = [f"<{slash}{tag}>" for tag in ("think", "search", "answer", "refine", "information", "result") for slash in "/"]
MARKS += [mark.replace("/", "") for mark in MARKS]


@pytest.fixture(scope="module")
def spelling(tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session's policy, which knows FactAgent's format, with a token for each tag (bytes are slow to learn)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tmp_path_factory.mktemp("spelling")
    tokenizer = AutoTokenizer.from_pretrained(tiny_build / "policy")
    tokenizer.add_tokens(MARKS)
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(tiny_build / "policy")
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def lenient(place: Path, tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training questions, each with the answers of half of the others accepted too.

    A policy that has learnt only how to answer, not what, then earns something now and then, so that there is credit.
    """
    rows = [json.loads(line) for line in (place / "world" / "qa.train.jsonl").read_text("utf-8").splitlines()]
    accepted = sorted({answer for row in rows for answer in row["answers"]})[::2]
    path = tmp_path_factory.mktemp("questions") / "qa.train.jsonl"
    path.write_text(
        "".join(json.dumps(row | {"answers": [*row["answers"], *accepted]}) + "\n" for row in rows), "utf-8"
    )
    return path


@pytest.fixture(scope="module")
def cold_start(spelling: Path, config_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint that a protocol's cold start ends with; made once a protocol."""
    made = {"factagent": spelling}  # what it knows already

    def make(protocol: str) -> Path:
        if protocol not in made:
            overrides = (*COLD, f"rollout.protocol={protocol}", f"model.path={spelling}")
            if protocol == "gigpo":  # a sample a step, not a trajectory
                overrides += ("sft.epochs=4",)
            made[protocol] = start_sft(
                load_config(RunConfig, config_file, overrides), tmp_path_factory.mktemp("cold") / protocol
            )
        return made[protocol]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("system", [*SYSTEMS, "factagent", "factagent_plus"])
def test_ten_steps_with_finite_losses(
    system: str, config_file: Path, cold_start: Callable[[str], Path], lenient: Path, tmp_path: Path
) -> None:
    base = load_config(RunConfig, config_file, (f"method={system}", f"data.train={lenient}", *SHORT))
    config = load_config(RunConfig, None, (f"model.path={cold_start(base.rollout.protocol)}",), base=base)
    start_training(config, tmp_path / "run")

    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for key in ("loss", "grad_norm", "reward"):
        assert np.isfinite([row[key] for row in rows]).all(), key
    assert sum(row["updates_skipped"] for row in rows) == 0
    assert all(row["response_tokens"] > 0 for row in rows)
    assert any(row["reward"] > 0 for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows)
    assert (sum(row["measure_tokens"] for row in rows) > 0) == (config.credit.rule == "vine")

    # It played the method's own protocol, and the cold start taught it enough of that to search and to answer.
    preset = load_method(system).table("matched")
    assert config.rollout.protocol == preset["rollout"]["protocol"]
    assert config.credit.rule == preset["credit"]["rule"]
    groups = [group for _, group, _ in read_groups(tmp_path / "run")]
    actions = [step.action for group in groups for t in group.trajectories for step in t.steps]
    assert any(isinstance(action, Search) for action in actions)
    assert any(isinstance(action, Answer) for action in actions)
    assert any(not isinstance(action, Invalid) for action in actions)
