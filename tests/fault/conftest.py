"""What the fault tests share: the server that misbehaves on request."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    """A module beside this file; pytest's importlib mode puts no test folder on the path."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def faulty() -> ModuleType:
    """The module `faulty_server`: `faulty.FaultyServer(reply, fault="hang")`, `faulty.FAULTS`, `faulty.chat_reply`."""
    return _load("faulty_server")
