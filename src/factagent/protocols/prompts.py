"""Prompts as data: templates in TOML, filled in one pass.

A prompt file holds `name`, `system` and `user` (templates with `$question`, `$facts`, `$queries`, `$observation`,
`$round`, `$max_rounds`), the line templates `fact`, `query` and `passage`, the texts shown where one of them is
empty, and the feedback that `append` protocols send back. Values are substituted once and never scanned again, so a
passage that contains `$question` stays as it is.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from string import Template
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from factagent.errors import ConfigError
from factagent.types import Fact, Message, Observation, Passage

BUILT_IN = ("factagent-full", "factagent-terse", "react-full", "react-terse")

_SLOTS = {
    "system": set[str](),
    "user": {"question", "facts", "queries", "observation", "round", "max_rounds"},
    "fact": {"number", "subject", "relation", "object", "summary"},
    "query": {"number", "query"},
    "passage": {"number", "title", "text"},
    "observed": {"observation", "round", "max_rounds"},
    "asserted": {"count", "round", "max_rounds"},
    "refused": {"reason", "detail", "round", "max_rounds"},
}


class PromptSpec(BaseModel):
    """One prompt file. Unknown keys and unknown `$slots` are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    style: str = Field(default="full", pattern="^(full|terse)$")
    """How scripted policies write their replies for this prompt: fenced JSON, or bare."""
    system: str = ""
    user: str
    fact: str = "- $subject | $relation | $object"
    query: str = "- $query"
    passage: str = "[$number] $title: $text"
    separator: str = "\n"
    """What stands between two lines of the same list."""
    no_facts: str = "(empty)"
    no_queries: str = "(none)"
    no_observation: str = "(none)"
    no_passages: str = "(no passage found)"
    passage_chars: int = Field(default=2000, ge=1)
    """A passage's text is cut to this many characters."""
    guards: tuple[str, ...] = ()
    """Delimiters of this prompt; where retrieved text contains one, its first character is doubled."""
    observed: str = "$observation"
    asserted: str = "Added $count facts to the fact store."
    refused: str = "That was no valid action ($reason)."

    @model_validator(mode="after")
    def _known_slots(self) -> Self:
        for field, allowed in _SLOTS.items():
            found = set(Template(getattr(self, field)).get_identifiers())
            if unknown := sorted(found - allowed):
                raise ValueError(f"{field}: unknown slot ${unknown[0]}; allowed are {sorted(allowed)}")
        return self

    def render_user(self, question: str, facts: str, queries: str, observation: str, round_: int, last: int) -> Message:
        """Fill the user template. All arguments are finished texts."""
        text = Template(self.user).substitute(
            question=question, facts=facts, queries=queries, observation=observation, round=round_, max_rounds=last
        )
        return Message("user", text)

    def render_system(self) -> tuple[Message, ...]:
        """The system message, or nothing where the prompt has none."""
        return (Message("system", self.system),) if self.system else ()

    def render_facts(self, facts: tuple[Fact, ...]) -> str:
        """The fact store, one line a fact; a summary is shown with the first fact of its assert."""
        lines = [
            Template(self.fact).substitute(
                number=number,
                subject=fact.triple.subject,
                relation=fact.triple.relation,
                object=fact.triple.object,
                summary=fact.summary,
            )
            for number, fact in enumerate(facts, 1)
        ]
        return self.separator.join(lines) or self.no_facts

    def render_queries(self, queries: tuple[str, ...]) -> str:
        """The past queries, oldest first."""
        template = Template(self.query)
        lines = [template.substitute(number=number, query=query) for number, query in enumerate(queries, 1)]
        return self.separator.join(lines) or self.no_queries

    def render_observation(self, observation: Observation | None) -> str:
        """The last observation as data: one line a passage, cut, with this prompt's delimiters defused."""
        if observation is None:
            return self.no_observation
        template = Template(self.passage)
        lines = [
            template.substitute(number=number, title=self._clean(passage.title), text=self._text(passage))
            for number, passage in enumerate(observation.passages, 1)
        ]
        return self.separator.join(lines) or self.no_passages

    def _text(self, passage: Passage) -> str:
        return self._clean(passage.text)[: self.passage_chars]

    def _clean(self, text: str) -> str:
        text = " ".join(text.split())
        for guard in self.guards:
            text = text.replace(guard, guard[0] + guard)
        return text


def load_prompt(name_or_path: str) -> PromptSpec:
    """Load a built-in prompt by name, or a user's own file by path.

    Raises:
        ConfigError: neither a built-in name nor a readable, valid prompt file.
    """
    if name_or_path in BUILT_IN:
        text = (resources.files("factagent.protocols") / "prompt_files" / f"{name_or_path}.toml").read_text("utf-8")
        return PromptSpec.model_validate(tomllib.loads(text))
    path = Path(name_or_path)
    if not path.is_file():
        raise ConfigError(f"prompt '{name_or_path}': no such file, and not one of the built-in {', '.join(BUILT_IN)}")
    try:
        return PromptSpec.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt file {path}: not valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(whole file)"
        raise ConfigError(f"prompt file {path}: key '{key}': {first['msg']}") from error
