"""Writing TOML, which the standard library only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from factagent.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, object]) -> str:
    """A table as TOML: its own keys first, then its subtables. None, which TOML lacks, is left out.

    Raises:
        ConfigError: a value is of no kind that TOML knows.
    """
    return "\n".join(_toml_table(table, ())).strip("\n") + "\n"


def _toml_table(table: Mapping[str, object], at: tuple[str, ...]) -> Iterator[str]:
    """Lines of a table: its own keys first, then its subtables under their headers."""
    subtables = {key: value for key, value in table.items() if isinstance(value, dict)}
    if at:
        yield from ("", f"[{'.'.join(map(_toml_key, at))}]")
    for key, value in table.items():
        if value is not None and key not in subtables:
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in subtables.items():
        yield from _toml_table(value, (*at, key))


def _toml_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON escapes what TOML wants escaped, except for DEL.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
        case list():
            return f"[{', '.join(map(_toml_value, value))}]"
        case dict():
            pairs = (f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items() if item is not None)
            return f"{{{', '.join(pairs)}}}"
        case _:
            raise ConfigError(f"a {type(value).__name__} cannot be written as TOML")


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_value(key)
