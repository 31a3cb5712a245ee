"""A table that is one of several models: which one is meant, what is carried over, which keys errors name."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from factagent.config_choices import carried_over, choice_of
from factagent.configuration import load_config
from factagent.errors import ConfigError


class Round(BaseModel):
    model_config = ConfigDict(extra="forbid")
    shape: Literal["round"] = "round"
    colour: str = "red"
    radius: float = Field(default=1.0, gt=0)


class Square(BaseModel):
    model_config = ConfigDict(extra="forbid")
    shape: Literal["square"] = "square"
    colour: str = "blue"
    side: float = 1.0


class Plain(BaseModel):
    side: float = 1.0


AnyShape = Annotated[Round | Square, Field(discriminator="shape")]


class Drawing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    first: AnyShape = Round()
    named: dict[str, AnyShape] = {}


def test_the_choice_is_found_by_its_key() -> None:
    choice = choice_of(AnyShape)
    assert choice is not None
    assert (choice.key, list(choice.models)) == ("shape", ["round", "square"])
    assert choice.model_of({}) is Round
    assert choice.model_of({"shape": "square"}) is Square
    assert choice.model_of({"shape": "oval"}) is choice.model_of({"shape": ["square"]}) is None


@pytest.mark.parametrize("annotation", [Round, Round | None, Round | Plain, int | str, dict[str, int], None])
def test_other_annotations_offer_no_choice(annotation: object) -> None:
    assert choice_of(annotation) is None


def test_only_another_model_drops_keys() -> None:
    below = {"shape": "round", "radius": 2.0, "colour": "green"}
    assert carried_over(AnyShape, below, {"colour": "red"}) == below
    assert carried_over(AnyShape, below, {"shape": "round"}) == below
    assert carried_over(AnyShape, below, {"shape": "oval"}) == below
    assert carried_over(AnyShape, below, {"shape": "square"}) == {"shape": "round", "colour": "green"}
    assert carried_over(AnyShape, {"radius": 2.0}, {"shape": "round"}) == {"radius": 2.0}
    assert carried_over(Round, below, {"shape": "square"}) == below


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["first.side=1"], r"unknown key 'first\.side'; it is one of square"),
        (["first.shape=square", "first.radius=1"], r"unknown key 'first\.radius' of shape = 'square'; it is one of ro"),
        (["first.shape=sqare"], r"'first\.shape' = 'sqare' is refused: did you mean 'square'\? known are round, sq"),
        (["first.shape=square", "first.sid=1"], r"unknown key 'first\.sid' of shape = 'square'; .* 'first\.side'\?"),
        (
            ["first.shape=round", "first.radius=0"],
            r"key 'first\.radius' = 0 is refused: input should be greater than 0",
        ),
        (["named.a.side=1"], r"unknown key 'named\.a\.side'; it is one of square"),
    ],
)
def test_errors(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(Drawing, None, overrides)


def test_layers_join_within_one_model() -> None:
    drawing = load_config(Drawing, None, ["first.shape=square", "first.side=3", "first.colour=green"])
    assert drawing.first == Square(side=3.0, colour="green")
    again = load_config(Drawing, None, ["first.shape=round"], base=drawing)
    assert again.first == Round(colour="green")
    named = load_config(Drawing, None, ["named.a.shape=square", "named.a.side=2"])
    assert named.named == {"a": Square(side=2.0)}
