"""A method's preset as a layer of a configuration.

A configuration that names a `method` gets the method's preset right below the place that names it: a file and what
lies over it change the preset, and the preset changes what the file extends. So `--set method=gigpo` makes any file's
run one of GiGPO, and a file of one's own that names it may set whatever it likes beside it, except for the keys that
make the method what it is.

Where a method is named again further up, the last one counts, and of the others nothing is left.

A run directory holds the configuration as it was resolved, every key written out and marked so: no preset is laid below
it, whatever the presets of a later version say.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel

from factagent.errors import ConfigError

RESOLVED = "resolved"
"""The top-level key of a file that holds every key, the preset's among them."""

Mode = Literal["matched", "faithful"]
MODES: tuple[Mode, ...] = get_args(Mode)


class Layer(NamedTuple):
    """Settings, the place they come from as errors name it, and what they belong to (a file, the command line)."""

    source: str
    table: dict[str, Any]
    block: str
    resolved: bool = False


class Preset(NamedTuple):
    """What a method sets, and the keys among it that no layer over it may change."""

    table: dict[str, Any]
    fixed: tuple[tuple[str, str], ...]


class PresetModel(BaseModel):
    """A configuration that may name a method."""

    method: str = ""
    """A method of `factagent methods`, whose preset lies below the place that names it; "" is none."""
    mode: Mode = "matched"
    """The preset's variant. "matched": protocol, credit, reward and environment, the rest as the run says; "faithful":
    the published settings too."""

    @classmethod
    @abstractmethod
    def preset(cls, method: str, mode: Mode) -> Preset:
        """What the method sets in a configuration of this kind (ConfigError where it is unknown)."""


def with_preset(model: type[BaseModel], layers: Sequence[Layer]) -> list[Layer]:
    """The layers, lowest first, with that of the preset where one is named.

    Raises:
        ConfigError: the method is unknown, a layer over the preset changes a key that makes the method, a mode is given
            to a file that is resolved for the other, or no method to a file that names one.
    """
    named, mode = _last(layers, "method"), _mode(layers)
    if not issubclass(model, PresetModel) or named is None or mode is None:
        return list(layers)
    if named.resolved:
        _check_mode(layers, named)
    placed: list[Layer] = []
    fixed: Preset | None = None
    for layer in layers:
        if layer.block not in {each.block for each in placed}:
            method = _method_of(layers, layer.block)
            preset = model.preset(method, mode) if method else None
            if preset is not None:
                is_last = layer.block == named.block
                if named.table["method"] == "":
                    raise ConfigError(
                        f"{named.source}: key 'method' = '' comes too late: {layer.source} says '{method}'"
                    )
                fixed = preset if is_last else None
                placed.append(_layer_of(preset, method, mode, whole=is_last))
        if fixed is not None:
            _check_fixed(layer, fixed, named.table["method"])
        placed.append(layer)
    return placed


def is_resolved(config: BaseModel) -> bool:
    """Whether the configuration, written out, must be marked as resolved."""
    return isinstance(config, PresetModel) and bool(config.method)


def take_resolved(source: str, table: dict[str, Any]) -> bool:
    """Remove the mark from a file's table; whether it was there.

    Raises:
        ConfigError: the key is no boolean.
    """
    mark = table.pop(RESOLVED, False)
    if not isinstance(mark, bool):
        raise ConfigError(f"{source}: key '{RESOLVED}' must be true or false, found {mark!r}")
    return mark


def _method_of(layers: Sequence[Layer], block: str) -> str:
    """The method that a block names and wants the preset of; "" where there is none."""
    named = _last([layer for layer in layers if layer.block == block], "method")
    method = "" if named is None or named.resolved else named.table["method"]
    return method if isinstance(method, str) else ""


def _layer_of(preset: Preset, method: str, mode: Mode, *, whole: bool) -> Layer:
    """The preset as a layer. Of a method that a later one replaces, only what tells which keys its file may have."""
    source = f"the preset of method '{method}' ({mode})"
    table = preset.table
    if not whole:
        table = {name: {key: preset.table[name][key]} for name, key in preset.fixed}
    return Layer(source, table, source)


def _last(layers: Sequence[Layer], key: str) -> Layer | None:
    return next((layer for layer in reversed(layers) if key in layer.table), None)


def _mode(layers: Sequence[Layer]) -> Mode | None:
    """The mode that the layers come to; None where it is none, which the model refuses with its own words."""
    layer = _last(layers, "mode")
    wanted = "matched" if layer is None else layer.table["mode"]
    return next((mode for mode in MODES if mode == wanted), None)


def _check_mode(layers: Sequence[Layer], named: Layer) -> None:
    layer, own = _last(layers, "mode"), named.table.get("mode", "matched")
    if layer is not None and layer.table["mode"] != own:
        raise ConfigError(
            f"{layer.source}: key 'mode' = {layer.table['mode']!r} comes too late: {named.source} is resolved for "
            f"'{own}'; name the method beside the mode, as in --set method={named.table['method']}"
        )


def _check_fixed(layer: Layer, preset: Preset, method: str) -> None:
    for table, key in preset.fixed:
        settings, wanted = layer.table.get(table), preset.table[table][key]
        if isinstance(settings, Mapping) and settings.get(key, wanted) != wanted:
            raise ConfigError(
                f"{layer.source}: key '{table}.{key}' = {settings[key]!r} contradicts method '{method}', which means "
                f"'{wanted}'; leave out the key, or the method"
            )
