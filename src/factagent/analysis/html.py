"""HTML that is safe by construction.

`tag` escapes every string that it is given, as content and as attribute value; only what `tag` itself made (`Html`)
goes in as it is. So text of a model or a corpus can show up on a page but never become part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

_VOID = frozenset({"meta", "img", "br"})
# Shapes of an inline drawing have no content either, but there the parser wants the slash.
_SHAPES = frozenset({"line", "rect", "circle"})
_ELEMENTS = (
    _VOID
    | _SHAPES
    | frozenset(
        re.findall(
            r"\w+",
            "html head body title style main header footer section article h1 h2 h3 h4 p div span ol ul li dl dt dd "
            "table caption thead tbody tr th td pre code em strong small details summary figure figcaption svg",
        )
    )
)
_ATTRIBUTES = frozenset(
    re.findall(
        r"[\w-]+",
        "class style id colspan scope title alt lang charset name content http-equiv open src width height x1 x2 y1 y2 "
        "cx cy r fill stroke stroke-width role aria-label",
    )
)
# Characters that could reorder or hide what stands around them, and controls that HTML does not allow.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


class Html(str):
    """Markup that `tag` or `join` made. Never build one from foreign text."""

    __slots__ = ()


Content = str | int | float | None | Iterable["Content"]


def tag(element: str, *contents: Content, **attributes: str | int | float | bool | None) -> Html:
    """An element. Strings in it are escaped, `Html` is kept, None vanishes, iterables are flattened.

    Attribute names: `class_` is `class`, `_` is `-`; None and False leave the attribute out.

    Raises:
        ValueError: an element or attribute outside the short list that our pages use (script is not on it).
    """
    if element not in _ELEMENTS:
        raise ValueError(f"element '{element}' is not one that reports use")
    written = "".join(_attribute(name, value) for name, value in attributes.items() if value not in (None, False))
    if element in _VOID:
        return Html(f"<{element}{written}>")
    if element in _SHAPES:
        return Html(f"<{element}{written}/>")
    return Html(f"<{element}{written}>{join(contents)}</{element}>")


def join(contents: Content) -> Html:
    """Contents one after the other, escaped as in `tag`."""
    if contents is None:
        return Html("")
    if isinstance(contents, Html):
        return contents
    if isinstance(contents, str | int | float):
        return Html(escape(visible(str(contents)), quote=True))
    return Html("".join(join(content) for content in contents))


def visible(text: str) -> str:
    """`text` with control, bidirectional and invisible characters shown as their code, such as [U+202E]."""
    return _UNSEEN.sub(lambda found: f"[U+{ord(found.group()):04X}]", text)


def stylesheet(css: str) -> Html:
    """A style element with our own style sheet.

    Raises:
        ValueError: the style sheet holds "<", which could end the element.
    """
    if "<" in css:
        raise ValueError("a style sheet must not hold '<'")
    return Html(f"<style>{css}</style>")


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    written = name.rstrip("_").replace("_", "-")
    if written not in _ATTRIBUTES:
        raise ValueError(f"attribute '{written}' is not one that reports use")
    return f" {written}" if value is True else f' {written}="{escape(visible(str(value)), quote=True)}"'
