"""Tests of the engine verl: `make test-verl`, in an environment of its own. Elsewhere they are not collected."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]

# Before anything imports verl: a CPU, no hub, no reports to anybody, no token files in the home directory.
os.environ.update(
    {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "factagent.distributed.cpu",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
        "VERL_LOGGING_LEVEL": "WARN",
    }
)

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return HERE.parents[1]
