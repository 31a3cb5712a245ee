"""Groups as JSON records and back, exactly.

Written by declaration: a dataclass becomes an object with its fields, a triple a list of three strings, an action an
object with its kind, a float that JSON lacks one of the strings "nan", "inf", "-inf". Reading follows the types of
`factagent.types`, so a wrong type, a missing or an unknown field is a `DataError` that names its place. Credit is
written the same way from whatever dataclasses it is made of, and read back as plain dicts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

import orjson

from factagent.errors import DataError
from factagent.types import Answer, Assert, Group, Invalid, Search

SCHEMA = 1
"""Version on every line; a reader for each released version stays (reliability.md R10)."""

_KIND_OF: dict[type, str] = {Search: "search", Assert: "assert", Answer: "answer", Invalid: "invalid"}
_ACTION_OF = {kind: action for action, kind in _KIND_OF.items()}
_ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def group_to_record(
    group: Group,
    credit: object = None,
    *,
    step: int = 0,
    token_ids: bool = True,
    passage_text: bool = True,
    messages: bool = True,
) -> dict[str, Any]:
    """A group with its credit as one JSON object.

    Args:
        group: the trajectories of one question.
        credit: any dataclass, mapping or None; see `to_plain`.
        step: training step, 0 outside training.
        token_ids: keep token ids and log-probabilities (what makes the record trainable, and most of its size).
        passage_text: keep the text of the passages, not only id, title and score.
        messages: keep the prompts as messages.

    Returns:
        `{"schema", "step", "question", "trajectories", "credit"}`; equal groups give equal records.
    """
    record = to_plain(group)
    for trajectory in record["trajectories"]:
        if not messages:
            trajectory["messages"] = []
        for one in trajectory["steps"]:
            if not token_ids:
                _drop_ids(one["generation"])
            if not passage_text and one["observation"] is not None:
                for passage in one["observation"]["passages"]:
                    passage["text"] = ""
    return {"schema": SCHEMA, "step": step, **record, "credit": to_plain(credit)}


def _drop_ids(generation: dict[str, Any]) -> None:
    """Leave the ids out of a written generation, and keep their number."""
    if generation["response_ids"]:
        generation["response_tokens"] = len(generation["response_ids"])
    generation |= {"prompt_ids": [], "response_ids": [], "logprobs": []}


def record_to_group(record: object) -> Group:
    """The group of a record: `record_to_group(group_to_record(g)) == g` where nothing was left out.

    Raises:
        DataError: if the schema is unknown or a field is missing, unknown or of a wrong type; the message names it.
    """
    if not isinstance(record, dict):
        raise DataError(f"a record must be a JSON object, not {_name(record)}")
    if record.get("schema") != SCHEMA:
        raise DataError(f"field 'schema': {record.get('schema')!r}; this version reads {SCHEMA}: update factagent")
    group = {key: value for key, value in record.items() if key not in ("schema", "step", "credit")}
    return typing.cast(Group, _decode(Group, group, ""))


def to_plain(value: object) -> Any:
    """Dataclasses, named tuples, enums, mappings, sequences, sets and numpy values as what JSON holds.

    Raises:
        DataError: if a value has no JSON form.
    """
    if value is None or (isinstance(value, bool | int) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {"action": _KIND_OF[type(value)]} if type(value) in _KIND_OF else {}
        later = _later_fields(type(value))
        named = ((name, getattr(value, name)) for name in _field_names(type(value)))
        return kind | {name: to_plain(item) for name, item in named if name not in later or item != later[name]}
    if isinstance(value, Mapping):
        return {_key(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        kinds = set(map(type, value))  # tokens and log-probabilities are most of a record: copy them in one go
        if kinds <= {int, str} or (kinds == {float} and all(map(math.isfinite, value))):
            return list(value)
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(to_plain(item) for item in value)
    if hasattr(value, "tolist"):  # numpy arrays and scalars, without importing numpy
        return to_plain(value.tolist())
    raise DataError(f"a value of type {_name(value)} has no JSON form: {value!r}")


def dumps(value: object) -> bytes:
    """One line of JSON without its end; floats by their shortest exact form, keys in the order given.

    Raises:
        DataError: if an integer is beyond 64 bits or a value has no JSON form.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        if "surrogates" not in str(error):
            raise DataError(f"cannot be written as JSON: {error}") from error
    # A policy may write a lone surrogate ("\\ud800"): the standard library escapes it where orjson refuses.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def loads(line: bytes) -> Any:
    """The inverse of `dumps`.

    Raises:
        DataError: if the line is no JSON.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not JSON: {error}") from error


def _key(key: object) -> str:
    """A mapping's key as text; numbers stay recognisable, anything else is refused."""
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key))
    raise DataError(f"a mapping's key must be a string or an integer, not {_name(key)}: {key!r}")


def _name(value: object) -> str:
    return type(value).__name__


@functools.cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _later_fields(cls: type) -> dict[str, object]:
    """Default of each field that records of the first release lack."""
    return {field.name: field.default for field in dataclasses.fields(cls) if field.metadata.get("later")}


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    """Names and resolved types of a dataclass or a named tuple."""
    return typing.get_type_hints(cls)


def _decode(kind: Any, value: Any, where: str) -> Any:
    """`value` as an instance of the annotated type `kind`, or a DataError that names `where`."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(typing.get_args(kind), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        inner = typing.get_args(kind)[0]
        if inner in (int, float, str):
            return _decode_flat(inner, value, where)
        return tuple(_decode(inner, item, f"{where}[{index}]") for index, item in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _decode_fields(typing.cast(type, kind), value, where)
    if issubclass(kind, tuple):  # a named tuple, written as a list
        names = _field_types(kind)
        if not isinstance(value, list) or len(value) != len(names):
            raise _wrong(where, f"a list of {len(names)}", value)
        return kind(*(_decode(names[name], item, f"{where}.{name}") for name, item in zip(names, value, strict=True)))
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise _wrong(where, f"one of {', '.join(str(item.value) for item in kind)}", value) from error
    return _decode_flat(kind, [value], where)[0]


def _decode_flat(kind: type, values: list[Any], where: str) -> tuple[Any, ...]:
    """A list of plain values: the fast path for tokens and log-probabilities."""
    if set(map(type, values)) <= {kind}:
        return tuple(values)
    if kind is float:
        values = [_ODD_FLOATS.get(value, value) if isinstance(value, str) else value for value in values]
        values = [float(value) if type(value) is int else value for value in values]
    for index, value in enumerate(values):
        if type(value) is not kind:
            raise _wrong(where if len(values) == 1 else f"{where}[{index}]", f"of type {kind.__name__}", value)
    return tuple(values)


def _decode_union(members: tuple[Any, ...], value: Any, where: str) -> Any:
    """An optional value, or one of the actions by its kind."""
    if type(None) in members:
        if value is None:
            return None
        return _decode(next(member for member in members if member is not type(None)), value, where)
    kind = value.get("action") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _ACTION_OF:
        raise _wrong(f"{where}.action", f"one of {', '.join(_ACTION_OF)}", kind)
    return _decode_fields(_ACTION_OF[kind], {key: item for key, item in value.items() if key != "action"}, where)


def _decode_fields(cls: type, value: Any, where: str) -> Any:
    """A dataclass from an object: every field present but those that came later, none unknown."""
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    hints = _field_types(cls)
    prefix = f"{where}." if where else ""
    unknown = [key for key in value if key not in hints]
    missing = [name for name in _field_names(cls) if name not in value and name not in _later_fields(cls)]
    if unknown or missing:
        raise DataError(f"field '{prefix}{(unknown + missing)[0]}': {'unknown' if unknown else 'missing'}")
    return cls(**{name: _decode(hints[name], item, f"{prefix}{name}") for name, item in value.items()})


def _wrong(where: str, wanted: str, value: object) -> DataError:
    shown = repr(value)
    return DataError(f"field '{where}': must be {wanted}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")
