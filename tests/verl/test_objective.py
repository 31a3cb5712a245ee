"""The same samples through verl's engine on two ranks and through the learner in one process: the same numbers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from objective_case import CASES, PARTS, RANKS, local_numbers, write_model  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_model(directory)
    return directory


@pytest.fixture(scope="module")
def verl_numbers(model: Path) -> dict[str, dict[str, float]]:
    """Every case, from one pair of processes: most of their time is imports."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(RANKS):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {key: str(value) for key, value in place.items()}
        command = [sys.executable, str(HERE / "objective_case.py"), str(model)]
        ranks.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        outputs = [process.communicate(timeout=300) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * RANKS, outputs[0][1][-3000:]
    (line,) = [line for line in outputs[0][0].splitlines() if line.startswith("NUMBERS ")]
    numbers: dict[str, dict[str, float]] = json.loads(line.removeprefix("NUMBERS "))
    return numbers


@pytest.mark.parametrize("name", list(CASES))
def test_loss_and_gradient_are_those_of_the_local_learner(
    model: Path, verl_numbers: dict[str, dict[str, float]], name: str
) -> None:
    expected, found = local_numbers(CASES[name], model), verl_numbers[name]
    assert expected["grad_norm"] > 0.01
    assert expected["loss_policy"] != 0
    for part in PARTS:
        assert found[part] == pytest.approx(expected[part], abs=1e-4), part
    # And far closer than the bar, so that a small mistake in a weight shows.
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
