"""Prompts as data: templates in TOML, filled in one pass.

A prompt file holds `name`, the templates `system` and `user`, the line templates `fact`, `evidence`, `query` and
`passage`, the texts shown where one of them is empty, and the feedback that `append` protocols send back. Which
`$slots` each template knows stands in `SLOTS`; `$$` is a dollar sign. Values are substituted once and never scanned
again, so a passage that contains `$question` stays as it is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Set as AbstractSet
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from factagent.errors import ConfigError
from factagent.protocols.untrusted import quote
from factagent.types import Fact, Message, Observation

_FILES = resources.files("factagent.protocols") / "prompt_files"

BUILT_IN = tuple(sorted(file.name.removesuffix(".toml") for file in _FILES.iterdir() if file.name.endswith(".toml")))
"""Names of the prompts that come with the package: a protocol's name, a hyphen, and the style."""

SLOTS: dict[str, frozenset[str]] = {
    "system": frozenset(),
    "user": frozenset({"question", "facts", "queries", "observation", "history", "memory", "round", "max_rounds"}),
    "fact": frozenset({"number", "subject", "relation", "object"}),
    "evidence": frozenset({"summary"}),
    "query": frozenset({"number", "query"}),
    "passage": frozenset({"number", "title", "text"}),
    "observed": frozenset({"observation", "round", "max_rounds"}),
    "asserted": frozenset({"count", "round", "max_rounds"}),
    "refused": frozenset({"reason", "detail", "round", "max_rounds"}),
    "history": frozenset({"steps", "entries"}),
    "entry": frozenset({"number", "action", "query", "observation", "json"}),
    "invalid_entry": frozenset({"number"}),
    "memorise": frozenset({"call", "query", "observation", "round", "max_rounds"}),
}
"""The slots that each template knows."""


def _check_guard(guard: str) -> str:
    if len(guard) < 2 or any(char.isspace() for char in guard):
        raise ValueError(f"guard {guard!r} must have two characters or more and no white space")
    return guard


class PromptSpec(BaseModel):
    """One prompt file. Unknown keys, unknown `$slots` and malformed templates are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    style: Literal["full", "terse"] = "full"
    """How scripted policies write their replies for this prompt: fenced JSON, or bare."""
    system: str = ""
    user: str
    fact: str = "- $subject | $relation | $object"
    evidence: str = ""
    """Put behind the first fact of an assert that has a summary."""
    query: str = "- $query"
    passage: str = "[$number] $title: $text"
    separator: str = "\n"
    """What stands between two lines of the same list."""
    no_facts: str = "(empty)"
    no_queries: str = "(none)"
    no_observation: str = "(none)"
    no_passages: str = "(no passage found)"
    passage_chars: int = Field(default=2000, ge=1)
    """A passage's title and its text are cut to this many characters each."""
    guards: tuple[Annotated[str, AfterValidator(_check_guard)], ...] = ()
    """Delimiters of this prompt, at least two characters each, without white space. A value that contains one (in any
    case) is shown with a blank inside it; the special tokens of chat templates are treated so in every prompt."""
    observed: str = "$observation"
    asserted: str = "Noted: $count facts."
    refused: str = "That was no valid action ($reason)."
    history: str = "$entries"
    """Where a fresh prompt tells what was done before; nothing stands there in the first round."""
    entry: str = "$number. $query: $observation"
    """A past search in `history`; `$json` is its observation as a JSON string (GiGPO's form)."""
    invalid_entry: str = "$number. (no valid action)"
    """A past step in `history` that was no action."""
    memorise: str = "$observation"
    """What asks for an updated memory after a search."""
    no_memory: str = ""

    @model_validator(mode="after")
    def _valid_templates(self) -> Self:
        for field, known in SLOTS.items():
            template = Template(getattr(self, field))
            if not template.is_valid():
                raise ValueError(f"{field}: a '$' without a slot name; write '$$' for a dollar sign")
            if unknown := sorted(set(template.get_identifiers()) - known):
                raise ValueError(f"{field}: unknown slot ${unknown[0]}; known are {sorted(known)}")
        return self

    def check_slots(self, field: str, needed: AbstractSet[str], shown: AbstractSet[str]) -> None:
        """Refuse a prompt that hides what its protocol's policy must see, or asks for what the protocol does not show.

        Raises:
            ConfigError: template `field` lacks a slot of `needed`, or holds one that is not in `shown`.
        """
        found = set(Template(getattr(self, field)).get_identifiers())
        if missing := sorted(needed - found):
            raise ConfigError(f"prompt '{self.name}': {field} must contain ${missing[0]} under this protocol")
        if extra := sorted(found - shown):
            raise ConfigError(f"prompt '{self.name}': {field} contains ${extra[0]}, which this protocol does not show")

    def render_user(self, question: str, facts: str, queries: str, observation: str, round_: int, last: int) -> Message:
        """Fill the user template. `question` is taken raw; the other texts come from the render methods below."""
        text = Template(self.user).substitute(
            question=self.quote(question),
            facts=facts,
            queries=queries,
            observation=observation,
            round=round_,
            max_rounds=last,
        )
        return Message("user", text)

    def render_system(self) -> tuple[Message, ...]:
        """The system message, or nothing where the prompt has none."""
        return (Message("system", Template(self.system).substitute()),) if self.system else ()

    def render_facts(self, facts: tuple[Fact, ...]) -> str:
        """The fact store, one line a fact; a summary stands once, with the first fact kept from its assert."""
        lines: list[str] = []
        last_assert = None
        for number, fact in enumerate(facts, 1):
            subject, relation, object_ = map(self.quote, fact.triple)
            line = Template(self.fact).substitute(number=number, subject=subject, relation=relation, object=object_)
            if fact.summary and fact.assert_step != last_assert:
                line += Template(self.evidence).substitute(summary=self.quote(fact.summary))
            last_assert = fact.assert_step
            lines.append(line)
        return self.separator.join(lines) or self.no_facts

    def render_queries(self, queries: tuple[str, ...]) -> str:
        """The past queries, oldest first."""
        template = Template(self.query)
        lines = [template.substitute(number=number, query=self.quote(query)) for number, query in enumerate(queries, 1)]
        return self.separator.join(lines) or self.no_queries

    def render_observation(self, observation: Observation | None) -> str:
        """The last observation as data, best passage first, each cut to `passage_chars`."""
        if observation is None:
            return self.no_observation
        template = Template(self.passage)
        lines = [
            template.substitute(number=number, title=self._cut(passage.title), text=self._cut(passage.text))
            for number, passage in enumerate(observation.passages, 1)
        ]
        return self.separator.join(lines) or self.no_passages

    def quote(self, text: str) -> str:
        """Text from outside as one visible line without this prompt's delimiters (see `untrusted`)."""
        return quote(text, self.guards)

    def _cut(self, text: str) -> str:
        return self.quote(text)[: self.passage_chars]


def load_prompt(name_or_path: str) -> PromptSpec:
    """Load a built-in prompt by name, or a user's own file by path.

    Raises:
        ConfigError: neither a built-in name nor a readable, valid prompt file.
    """
    if name_or_path in BUILT_IN:
        text = (_FILES / f"{name_or_path}.toml").read_text("utf-8")
        return PromptSpec.model_validate(tomllib.loads(text))
    path = Path(name_or_path)
    if not path.is_file():
        raise ConfigError(f"prompt '{name_or_path}': no such file, and not one of the built-in {', '.join(BUILT_IN)}")
    try:
        return PromptSpec.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise ConfigError(f"prompt file {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt file {path}: not valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "(whole file)"
        raise ConfigError(f"prompt file {path}: key '{key}': {first['msg']}") from error
