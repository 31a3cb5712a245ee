"""A table of a configuration that is one of several models, told apart by one key (`credit.rule`).

Each model of the choice has that key as a Literal with its own default; the first model is the one meant where the key
is absent. A layer that sets the key anew drops what the layers below it said to keys that the new model lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel


class Choice(NamedTuple):
    """The key that tells the models apart, and the models by its values, the default one first."""

    key: str
    models: dict[str, type[BaseModel]]

    def model_of(self, table: Mapping[str, Any]) -> type[BaseModel] | None:
        """The model that a table means; None where it names one that does not exist."""
        name = table.get(self.key, next(iter(self.models)))
        return self.models.get(name) if isinstance(name, str) else None

    def known(self, name: object) -> str:
        """What the author may write instead of an unknown name."""
        near = get_close_matches(str(name), self.models, n=1)
        return (f"did you mean '{near[0]}'? " if near else "") + f"known are {', '.join(self.models)}"


def choice_of(annotation: object) -> Choice | None:
    """The choice that an annotation offers; None where it is a single model or none."""
    models = _models_of(annotation)
    if len(models) < 2:
        return None
    for key in models[0].model_fields:
        names = [_own_name(model, key) for model in models]
        if None not in names and len(set(names)) == len(names):
            return Choice(key, {str(name): model for name, model in zip(names, models, strict=True)})
    return None


def carried_over(annotation: object, below: Mapping[str, Any], over: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of the table `below` holds once `over` comes on top: all of it, unless `over` names another model."""
    choice = choice_of(annotation)
    if choice is None or choice.key not in over:
        return below
    new = choice.model_of(over)
    if new is None or new is choice.model_of(below):
        return below
    return {key: value for key, value in below.items() if key in new.model_fields}


def _models_of(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for argument in get_args(annotation) for model in _models_of(argument)]


def _own_name(model: type[BaseModel], key: str) -> str | None:
    """The value of `key` that stands for this model: the default of a Literal string."""
    info = model.model_fields.get(key)
    return info.default if info is not None and get_args(info.annotation) == (info.default,) else None
