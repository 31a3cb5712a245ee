"""The settings of a world: how large it is and how hard."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from factagent.errors import ConfigError

QuestionType = Literal["chain", "comparison", "bridge_comparison", "selection", "shared"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]

SKIPPED = "skipped"
"""The split that is drawn, first of all, and not written."""

HOPS_OF_TYPE: dict[QuestionType, tuple[int, ...]] = {
    "chain": (1, 2, 3, 4),
    "comparison": (3, 4),
    "bridge_comparison": (3, 4),
    "selection": (2, 3),
    "shared": (2, 3, 4),
}
"""The numbers of evidences that each type comes with. A comparison of two is left out: a guess wins half."""


def default_weights() -> dict[QuestionType, float]:
    """The share of each type: at most two fifths are chains."""
    return {"chain": 0.4, "comparison": 0.12, "bridge_comparison": 0.18, "selection": 0.12, "shared": 0.18}


class WorldConfig(BaseModel):
    """Every setting of the generator; the same settings give the same bytes.

    Difficulty rises with `hops`, `distractors`, `namesakes`, `negated`, `candidates`, and falls with `canonical_share`
    and `year_gap`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    entities: int = Field(2400, ge=600, le=6000)
    """Pages of the encyclopaedia."""
    namesakes: float = Field(0.05, ge=0.0, le=0.5)
    """Share of people (and of books) that bear the name of another person (the title of a film)."""
    distractors: int = Field(1, ge=0, le=3)
    """Statements a page may make in relations that no question asks for (died in, lived in, edited by, ...)."""
    negated: Share = 0.05
    """Share of pages with a negated sentence."""
    mirrored: Share = 0.5
    """Chance that the page of a fact's object states the fact too, in a wording of its own."""
    canonical_share: Share = 0.4
    """Chance that a sentence uses the canonical wording; otherwise any wording, drawn evenly."""
    hops: tuple[int, ...] = (1, 2, 3, 4)
    hop_weights: dict[int, float] = Field(default_factory=dict)
    """Relative share of a number of hops within each type; 1 where it is not named."""
    type_weights: dict[QuestionType, float] = Field(default_factory=default_weights)
    candidates: int = Field(4, ge=3, le=6)
    """Names that a selection question offers."""
    closed_share: Share = 0.15
    """Share of bridge comparisons that offer the answer ("which film has the older director, A or B?")."""
    year_gap: int = Field(3, ge=1, le=20)
    """Smallest difference between two years that a question compares."""
    reject_joint: bool = True
    """Leave out many-observation questions that one joint BM25 query (top 3) would answer."""
    train: int = Field(6000, ge=0)
    dev: int = Field(600, ge=0)
    test: int = Field(600, ge=0)
    skip: int = Field(0, ge=0)
    """Questions to draw first and leave out. Another build of the same seed that asked for no more than these shares no
    question with this one (nearly so where types or hops differ: evidences belong to the type that is drawn first)."""

    @field_validator("hops")
    @classmethod
    def _hops_in_range(cls, hops: tuple[int, ...]) -> tuple[int, ...]:
        if not hops or not set(hops) <= {1, 2, 3, 4}:
            raise ValueError(f"hops must be some of 1, 2, 3, 4; got {hops}")
        return tuple(sorted(set(hops)))

    @field_validator("hop_weights", "type_weights")
    @classmethod
    def _weights_not_negative(cls, weights: dict[str, float]) -> dict[str, float]:
        if any(weight < 0 for weight in weights.values()):
            raise ValueError(f"weights must not be negative; got {weights}")
        return weights

    @property
    def splits(self) -> dict[str, int]:
        """Questions wanted in each split."""
        return {"train": self.train, "dev": self.dev, "test": self.test, SKIPPED: self.skip}

    def cells(self) -> dict[tuple[QuestionType, int], float]:
        """The share of questions of each (type, hops); the shares sum to 1, or there is no cell at all."""
        weights: dict[tuple[QuestionType, int], float] = {}
        for kind, weight in sorted(self.type_weights.items()):
            chosen = {hops: self.hop_weights.get(hops, 1.0) for hops in HOPS_OF_TYPE[kind] if hops in self.hops}
            total = sum(chosen.values())
            weights |= {(kind, hops): weight * value / total for hops, value in chosen.items() if weight * value > 0}
        total = sum(weights.values())
        return {cell: weight / total for cell, weight in weights.items()}


def parse_config(*, hops: str, types: str = "", **settings: Any) -> WorldConfig:
    """A config from the command line's texts: `hops` as "1,2", `types` as "chain=0.4,shared=0.6" (empty: the defaults).

    Raises:
        ConfigError: a value is malformed or out of range; the message names the setting and the value.
    """
    values = dict(settings)
    try:
        values["hops"] = tuple(int(part) for part in hops.split(","))
        if types:
            pairs = [part.split("=") for part in types.split(",")]
            values["type_weights"] = {name.strip(): float(weight) for name, weight in pairs}
    except ValueError as error:
        advice = "write e.g. 1,2 and chain=1"
        raise ConfigError(f"hops {hops!r} or types {types!r} is malformed ({error}); {advice}") from error
    try:
        return WorldConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        setting = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"world setting '{setting}': {first['msg']}; got {first['input']!r}") from error
