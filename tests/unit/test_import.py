"""`import factagent` is light, and every public name is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import factagent

HEAVY = ("torch", "transformers", "sentence_transformers", "numba", "scipy", "matplotlib", "pydantic", "numpy")


def loaded_by(code: str, *modules: str) -> list[str]:
    """Which of the modules a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys\nprint(*(m for m in {modules!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_import_loads_nothing_heavy() -> None:
    assert loaded_by("import factagent; factagent.Question", *HEAVY) == []


def test_only_the_transformers_policy_needs_torch() -> None:
    code = "import factagent as f\nfor name in f.__all__:\n    if name != 'TransformersPolicy': getattr(f, name)"
    assert loaded_by(code, "torch", "transformers", "sentence_transformers", "verl") == []


@pytest.mark.parametrize("name", factagent.__all__)
def test_every_public_name_exists(name: str) -> None:
    value = getattr(factagent, name)
    assert getattr(value, "__name__", name) == name
    assert name in dir(factagent)


def test_the_lazy_table_and_the_public_names_agree() -> None:
    assert set(factagent._MODULES) <= set(factagent.__all__)
    assert sorted(factagent.__all__) == factagent.__all__
    source = Path(factagent.__file__).read_text(encoding="utf-8")
    checked = re.findall(r"^    from factagent\.([\w.]+) import (\(?[^()]+?\)?)\n(?=    from|\n)", source, re.MULTILINE)
    typed = {name: module for module, names in checked for name in re.findall(r"\w+", names)}
    assert typed == {name: factagent._MODULES.get(name, "types") for name in factagent.__all__ if name != "__version__"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'factagent' has no attribute 'Qestion'"):
        factagent.Qestion  # noqa: B018
