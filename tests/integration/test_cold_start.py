"""`factagent sft` under every protocol: forty of the expert's trajectories teach its format, with a finite loss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.cli import main  # noqa: E402
from factagent.episode import FORCED  # noqa: E402
from factagent.policies.transformers import TransformersPolicy  # noqa: E402
from factagent.protocols import PROTOCOLS, build_protocol  # noqa: E402
from factagent.runs import read_groups, read_metrics  # noqa: E402
from factagent.train.sft import with_tokens  # noqa: E402
from factagent.types import Invalid  # noqa: E402

SETTINGS = (
    "credit.needs_facts=false",
    "rollout.prompt=terse",
    "rollout.max_rounds=8",
    "sft.keep=correct",
    "sft.trajectories=40",
    "sft.batch_size=8",
    "sft.epochs=4",
    "sft.learning_rate=5e-3",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_the_loss_is_finite_and_falls(
    name: str, config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [part for setting in (*SETTINGS, f"rollout.protocol={name}") for part in ("--set", setting)]
    assert main(["sft", "--config", str(config_file), "--out", str(tmp_path / "run"), *overrides]) == 0
    checkpoint = Path(json.loads(capsys.readouterr().out)["checkpoint"])
    groups = [group for _, group, _ in read_groups(tmp_path / "run", 0)]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    assert len(trajectories) == 40
    assert not any(isinstance(step.action, Invalid) for step in steps)
    assert sum(step.generation.finish_reason == FORCED for step in steps) == (40 if name == "rag" else 0)

    rows = read_metrics(tmp_path / "run")
    losses = [row["loss"] for row in rows]
    samples = 40 if build_protocol(name, f"{name}-terse").context == "append" else len(steps) - 40 * (name == "rag")
    assert len(rows) == 4 * -(-samples // 8)
    assert np.isfinite(losses).all()
    passes = np.array_split(losses, 4)
    assert passes[-1].mean() < 0.7 * passes[0].mean()

    # What was learnt from is what the trained policy would have been asked for: its tokens, its ends, nothing else.
    policy = TransformersPolicy.load(checkpoint, device="cpu")
    protocol = build_protocol(name, f"{name}-terse")
    encoded = [t for group in with_tokens(groups, protocol, policy.codec, 8) for t in group]
    written = sum(len(step.generation.response_ids) for trajectory in encoded for step in trajectory.steps)
    assert sum(row["response_tokens"] for row in rows) == 4 * written
