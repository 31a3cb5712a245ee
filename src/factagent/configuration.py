"""Layered configuration: the model's defaults < TOML files < overrides from the command line.

A file may name another one that it builds on: `extends = "base.toml"`, relative to itself. Tables are merged key by
key; everything else replaces. Unknown keys and wrong values are errors that name the key, where it was set, and what
would be right. Where a table is one of several models (`config_choices`), its keys are those of the model that the
layers up to there name. A `method` brings a layer of its own (`config_presets`). `dump_toml` writes the result so that
reading it gives an equal configuration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from factagent.config_choices import Choice, carried_over, choice_of
from factagent.config_presets import RESOLVED, Layer, is_resolved, take_resolved, with_preset
from factagent.errors import ConfigError
from factagent.toml_text import toml_text

Model = TypeVar("Model", bound=BaseModel)

EXTENDS = "extends"
"""The top-level key of a file that names the file it builds on."""


def load_config(
    model: type[Model],
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    base: Model | None = None,
    tables: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> Model:
    """The configuration of `model` from a TOML file (if any) and overrides such as `learner.kl_coef=0.01`.

    The value of an override is read as TOML, and as a plain string where it is none; `null` unsets. A `base` takes the
    place of the defaults. Settings in `tables` (each with the name under which errors speak of it) go over the files.

    Raises:
        ConfigError: a file cannot be read, files extend each other in a circle, a key is unknown, a value is refused.
    """
    layers = [] if base is None else [Layer("the base", base.model_dump(mode="json"), "the base", resolved=True)]
    layers += [] if path is None else _file_layers(path, ())
    layers += [Layer(source, dict(table), "tables") for source, table in tables]
    layers += [_override_layer(override) for override in overrides]
    layers = with_preset(model, layers)
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer.table, model)
        _check_keys(model, model, layer.table, layer.source, (), merged)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(problem, layers, model) for problem in error.errors())) from error


def dump_toml(config: BaseModel) -> str:
    """The configuration as TOML, every key written out. None, which TOML lacks, is left out.

    Raises:
        ConfigError: a key is None although its default is not, so that leaving it out would change it.
    """
    _check_none(config, ())
    text = toml_text(config.model_dump(mode="json"))
    return f"{RESOLVED} = true\n{text}" if is_resolved(config) else text


def _file_layers(path: Path, extended_by: tuple[Path, ...]) -> list[Layer]:
    """The file's layer after those of the files that it extends."""
    place = path.resolve()
    if place in extended_by:
        raise ConfigError(f"{path}: key '{EXTENDS}' leads back to {place.name}; configurations must not form a circle")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # tomllib.TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"configuration {path} is not TOML: {error}") from error
    base = table.pop(EXTENDS, None)
    own = Layer(str(path), table, str(path), take_resolved(str(path), table))
    if base is None:
        return [own]
    if not isinstance(base, str):
        raise ConfigError(f"{path}: key '{EXTENDS}' must be the path of a TOML file, found {base!r}")
    return [*_file_layers(path.parent / base, (*extended_by, place)), own]


def _override_layer(override: str) -> Layer:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override '{override}' must look like table.key=value")
    table: dict[str, Any] = {parts[-1]: _override_value(text.strip())}
    for part in reversed(parts[:-1]):
        table = {part: table}
    return Layer("the command line", table, "the command line")


def _override_value(text: str) -> object:
    if text == "null":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _merge(base: Mapping[str, Any], over: Mapping[str, Any], kind: object = None) -> dict[str, Any]:
    merged = dict(carried_over(kind, base, over))
    known = _fields_of(kind, {**merged, **over}) or {}
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            value = _merge(below, value, known.get(key))
        merged[key] = value
    return merged


def _check_keys(
    root: type, kind: object, table: Mapping[str, Any], source: str, at: tuple[str, ...], merged: Mapping[str, Any]
) -> None:
    """Refuse keys that the model lacks; pydantic alone would let those of nested dataclasses pass.

    `merged` is the same table with the layers below, which may be the ones that say what model it is.
    """
    if (tables := _tables_of(kind)) is not None:
        for key, value in table.items():
            if isinstance(value, dict):
                _check_keys(root, tables, value, source, (*at, key), merged[key])
        return
    choice = choice_of(kind)
    if choice is not None and choice.model_of(merged) is None:
        name = merged[choice.key]
        raise ConfigError(f"{source}: key '{_dotted((*at, choice.key))}' = {name!r} is refused: {choice.known(name)}")
    known = _fields_of(kind, merged)
    if known is None:
        return
    for key, value in table.items():
        if key not in known:
            owners = [name for name, model in choice.models.items() if key in model.model_fields] if choice else []
            near = f"it is one of {' and '.join(owners)}" if owners else _nearest(root, key, known, at)
            raise ConfigError(f"{source}: unknown key '{_dotted((*at, key))}'{_of(choice, merged)}; {near}")
        if isinstance(value, dict):
            _check_keys(root, known[key], value, source, (*at, key), merged[key])


def _of(choice: Choice | None, table: Mapping[str, Any]) -> str:
    """Which model of a choice lacks a key, unless it is the default one."""
    if choice is None or choice.key not in table:
        return ""
    return f" of {choice.key} = '{table[choice.key]}'"


def _nearest(root: type, key: str, known: Mapping[str, object], at: tuple[str, ...]) -> str:
    """What the author may have meant: this key elsewhere, else the nearest key here, else the nearest anywhere."""
    everywhere: dict[str, tuple[str, ...]] = {}
    for path in _all_keys(root, ()):
        everywhere.setdefault(path[-1], path)
    if key in everywhere:
        return f"did you mean '{_dotted(everywhere[key])}'?"
    if near := get_close_matches(key, known, n=1):
        return f"did you mean '{_dotted((*at, near[0]))}'?"
    if near := get_close_matches(key, everywhere, n=1):
        return f"did you mean '{_dotted(everywhere[near[0]])}'?"
    return f"known here are {', '.join(known)}"


def _all_keys(kind: object, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    choice = choice_of(kind)
    for model in choice.models.values() if choice else ():
        yield from _all_keys(model, at)
    for name, annotation in (_fields_of(kind) or {}).items():
        yield (*at, name)
        yield from _all_keys(annotation, (*at, name))


def _fields_of(annotation: object, table: Mapping[str, Any] = MappingProxyType({})) -> dict[str, object] | None:
    """Name -> annotation of a model or dataclass, also inside a union or Annotated; None for anything else.

    Of a choice among models, those of the one that `table` means.
    """
    if (choice := choice_of(annotation)) is not None:
        return _fields_of(choice.model_of(table))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {name: info.annotation for name, info in annotation.model_fields.items()}
    if isinstance(annotation, type) and is_dataclass(annotation):
        hints = get_type_hints(annotation)
        return {field.name: hints[field.name] for field in dataclass_fields(annotation)}
    candidates = [_fields_of(argument) for argument in get_args(annotation)]
    return next((fields for fields in candidates if fields is not None), None)


def _tables_of(annotation: object) -> object | None:
    """What the values of a table with free names are (`dict[str, Model]`); None for anything else."""
    return get_args(annotation)[1] if get_origin(annotation) is dict else None


def _explain(problem: Mapping[str, Any], layers: Sequence[Layer], root: type) -> str:
    keys = _without_choices(tuple(problem["loc"]), root)
    source = next((layer.source for layer in reversed(layers) if _holds(layer.table, keys)), "configuration")
    found = "" if isinstance(problem["input"], dict | BaseModel) else f" = {problem['input']!r}"
    message = problem["msg"].removeprefix("Value error, ")
    what = f"key '{_dotted(keys)}'{found}" if keys else "the configuration"  # keys that do not fit each other
    return f"{source}: {what} is refused: {message[:1].lower()}{message[1:]}"


def _without_choices(keys: tuple[str | int, ...], root: object) -> tuple[str | int, ...]:
    """The keys as they are written: pydantic also names the model that it chose among several."""
    written: list[str | int] = []
    kind = root
    for key in keys:
        if (choice := choice_of(kind)) is not None and key in choice.models:
            kind = choice.models[str(key)]
            continue
        written.append(key)
        tables = _tables_of(kind)
        kind = tables if tables is not None else (_fields_of(kind) or {}).get(str(key))
    return tuple(written)


def _holds(table: object, keys: tuple[str | int, ...]) -> bool:
    """True where the layer sets the key (or the list that holds it)."""
    for key in keys:
        if not isinstance(table, dict) or isinstance(key, int):
            break
        if key not in table:
            return False
        table = table[key]
    return True


def _dotted(keys: Sequence[str | int]) -> str:
    return ".".join(str(key) for key in keys)


def _check_none(config: BaseModel, at: tuple[str, ...]) -> None:
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if value is None and info.get_default(call_default_factory=True, validated_data={}) is not None:
            raise ConfigError(f"key '{_dotted((*at, name))}' is none, which a TOML file cannot say")
        if isinstance(value, BaseModel):
            _check_none(value, (*at, name))
