"""Fixtures and settings that all tests share."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Nothing that a test loads may come from a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

REPOSITORY = Path(__file__).resolve().parents[1]

# Timings never gate: no deadline. Deterministic, so that a red run can be repeated.
settings.register_profile(
    "factagent", max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", parent=settings.get_profile("factagent"), max_examples=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "factagent"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The shared data: `$FACTAGENT_SHARED/data`, or `../shared/data` beside the checkout; skips without it."""
    root = Path(os.environ.get("FACTAGENT_SHARED") or REPOSITORY.parent / "shared")
    data = root / "data"
    if not data.is_dir():
        pytest.skip(f"no shared data at {data} (set FACTAGENT_SHARED to the folder that holds data/)")
    return data


@pytest.fixture(scope="session")
def chat_server() -> Iterator[Any]:
    """A `ChatServer` (tests/integration/chat_server.py) that serves the packaged tiny policy."""
    pytest.importorskip("torch")
    pytest.importorskip("openai")
    # pytest's importlib mode puts no test folder on the path.
    path = REPOSITORY / "tests" / "integration" / "chat_server.py"
    spec = importlib.util.spec_from_file_location("chat_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["chat_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.serve_tiny() as server:
        yield server
