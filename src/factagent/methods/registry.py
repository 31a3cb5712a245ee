"""The methods by name: each is a preset, a TOML file in this package, and nothing else.

A preset holds what the method sets (`[rollout]`, `[credit]`, `[learner]`, ...), then what it sets in one mode only
(`[matched.rollout]`, `[faithful.learner]`, ...), and in `[about]` what it is. It may build on another one (`extends`,
by name); a credit rule of its own then takes the place of the other's whole `[credit]` table. `NAME+MODIFIER` lays a
modifier's tables over a method's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from factagent.config_presets import MODES, Mode, Preset
from factagent.errors import ConfigError

Tables = Mapping[str, Any]

ABOUT, EXTENDS = "about", "extends"

MODIFIERS = "modifier/"
"""Where the presets lie that go over another one."""

FIXED = (("rollout", "protocol"), ("credit", "rule"))
"""Keys that make a method what it is."""


@dataclass(frozen=True)
class Method:
    """A method: what it is, and what it sets in each mode."""

    name: str
    title: str
    paper: str
    summary: str
    departures: tuple[str, ...] = ()
    """In which respects `faithful` is not what was published, or what was not."""
    tables: Mapping[Mode, Tables] = field(default_factory=dict, repr=False)

    def table(self, mode: Mode) -> Tables:
        """The tables of a configuration that the method sets in this mode.

        Raises:
            ConfigError: it has no such mode.
        """
        if mode not in self.tables:
            raise ConfigError(
                f"method '{self.name}' has no mode '{mode}': nothing is published of the combination; use 'matched'"
            )
        return self.tables[mode]


@cache
def method_names() -> tuple[str, ...]:
    """Every method that has a preset, modifiers apart: the methods first, then variants by folder."""
    names = sorted(_names(_folder(), ""))
    return tuple(sorted((name for name in names if not name.startswith(MODIFIERS)), key=lambda name: "/" in name))


def modifier_names() -> tuple[str, ...]:
    """What may stand behind a `+`."""
    return tuple(sorted(_names(_folder() / MODIFIERS, "")))


def load_method(name: str) -> Method:
    """The method of this name, such as "gigpo", "credit/vine" or "gigpo+llds".

    Raises:
        ConfigError: there is no such method or modifier.
    """
    base, *modifiers = name.split("+")
    if base not in method_names():
        raise ConfigError(f"method '{base}' is unknown; {_nearest(base, method_names())}")
    method = _read(base)
    for modifier in modifiers:
        if modifier not in modifier_names():
            raise ConfigError(
                f"method '{name}': modifier '{modifier}' is unknown; {_nearest(modifier, modifier_names())}"
            )
        method = _modified(method, _read(MODIFIERS + modifier))
    return method


def preset_of(method: str, mode: Mode, known: Mapping[str, frozenset[str]] | None = None) -> Preset:
    """The preset as a layer of a configuration, which may hold only the keys in `known`, by table (all where None).

    Raises:
        ConfigError: there is no such method, or it has no such mode.
    """
    kept = {name: dict(settings) for name, settings in load_method(method).table(mode).items()}
    if known is not None:
        tables = {name: table for name, table in kept.items() if name in known}
        kept = {name: {key: table[key] for key in table if key in known[name]} for name, table in tables.items()}
    fixed = tuple((name, key) for name, key in FIXED if key in kept.get(name, {}))
    return Preset(kept, fixed)


def _folder() -> Traversable:
    return resources.files("factagent.methods") / "presets"


def _names(folder: Traversable, prefix: str) -> list[str]:
    names = []
    for entry in folder.iterdir():
        if entry.is_dir():
            names += _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            names.append(prefix + entry.name.removesuffix(".toml"))
    return names


@cache
def _read(name: str) -> Method:
    """A preset of this package after the one that it builds on."""
    raw = tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    about, base = raw.pop(ABOUT), raw.pop(EXTENDS, None)
    own: dict[Mode, Tables] = {mode: raw.pop(mode, {}) for mode in MODES}
    below = {} if base is None else _read(base).tables
    tables = {mode: _merge(_merge(below.get(mode, {}), raw), own[mode]) for mode in MODES}
    departures = tuple(about.pop("departures", ()))
    return Method(name, about["title"], about["paper"], about["summary"], departures, tables)


def _modified(method: Method, modifier: Method) -> Method:
    """The method with a modifier's tables over its own; of the combination nothing is published."""
    return Method(
        f"{method.name}+{modifier.name.removeprefix(MODIFIERS)}",
        f"{method.title} with {modifier.title}",
        f"{method.paper}; {modifier.paper}",
        f"{method.summary} {modifier.summary}",
        tables={"matched": _merge(method.tables["matched"], modifier.tables["matched"])},
    )


def _merge(below: Tables, over: Tables) -> dict[str, Any]:
    """Key by key; a table that names another rule takes the place of the one below."""
    merged = dict(below)
    for name, settings in over.items():
        under = merged.get(name, {})
        other_rule = settings.get("rule", under.get("rule")) != under.get("rule")
        merged[name] = dict(settings) if other_rule else {**under, **settings}
    return merged


def _nearest(name: str, names: tuple[str, ...]) -> str:
    near = get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(names)}"
