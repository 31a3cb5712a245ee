"""What a language model is told when it plays the search engine: prompts as data, in TOML, which users may replace.

A file holds `name`, optionally `system`, and the templates `useful` and `noisy`. Their slots are `$question`,
`$answer`, `$query` and `$count` (documents wanted); `$$` is a dollar sign. Values are substituted once and never
scanned again.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from string import Template
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from factagent.errors import ConfigError
from factagent.protocols.untrusted import quote
from factagent.types import Message, Question

BUILT_IN = ("simulator-tuned", "simulator-plain")
"""For a simulator that was fine-tuned to be one, and for any instruction-tuned model (with an example to follow)."""

SLOTS = frozenset({"question", "answer", "query", "count"})


class SimulatorPrompt(BaseModel):
    """One prompt file. Unknown keys, unknown `$slots` and malformed templates are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    system: str = ""
    useful: str
    noisy: str

    @model_validator(mode="after")
    def _valid_templates(self) -> Self:
        for field in ("useful", "noisy"):
            template = Template(getattr(self, field))
            if not template.is_valid():
                raise ValueError(f"{field}: a '$' without a slot name; write '$$' for a dollar sign")
            found = set(template.get_identifiers())
            if unknown := sorted(found - SLOTS):
                raise ValueError(f"{field}: unknown slot ${unknown[0]}; known are {sorted(SLOTS)}")
            if "query" not in found:
                raise ValueError(f"{field}: must contain $query")
        return self

    def render(self, query: str, question: Question, count: int, *, useful: bool) -> tuple[Message, ...]:
        """The messages that ask for `count` documents; the gold answer shown is the question's first."""
        text = Template(self.useful if useful else self.noisy).substitute(
            question=quote(question.text, ()),
            answer=quote(question.answers[0] if question.answers else "unknown", ()),
            query=quote(query, ()),
            count=count,
        )
        system = (Message("system", self.system),) if self.system else ()
        return (*system, Message("user", text))


def load_simulator_prompt(name_or_path: str) -> SimulatorPrompt:
    """Load a built-in prompt by name, or a user's own file by path.

    Raises:
        ConfigError: neither a built-in name nor a readable, valid prompt file.
    """
    if name_or_path in BUILT_IN:
        folder = resources.files("factagent.retrieval") / "simulator_files"
        return SimulatorPrompt.model_validate(tomllib.loads((folder / f"{name_or_path}.toml").read_text("utf-8")))
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(BUILT_IN)
        raise ConfigError(f"simulator prompt '{name_or_path}': no such file, and not one of the built-in {known}")
    try:
        return SimulatorPrompt.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise ConfigError(f"simulator prompt {path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(whole file)"
        raise ConfigError(f"simulator prompt {path}: key '{key}': {first['msg']}") from error
    except ValueError as error:  # tomllib.TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"simulator prompt {path}: not valid TOML: {error}") from error
