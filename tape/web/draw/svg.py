"""SVG as plain data: an element is a list of its name, its attributes and its children; a text is a string.

The page makes nodes of it, one by one, so that no text in it can become markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

__all__ = ["Element", "element", "markup", "number"]

Element = list[Any]


def number(value: float) -> str:
    """Return a coordinate as short as it can be."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, /, *children: Any, **attributes: Any) -> Element:
    """Return an element; ``class_`` and names with ``_`` are written as SVG has them, None is left out."""
    written = {
        title.rstrip("_").replace("_", "-"): number(value) if isinstance(value, float) else str(value)
        for title, value in attributes.items()
        if value is not None
    }
    return [name, written, *children]


def markup(drawing: Element | str) -> str:
    """Return a drawing as text, every text in it escaped."""
    if isinstance(drawing, str):
        return escape(drawing)
    name, attributes, *children = drawing
    written = "".join(f' {title}="{escape(value)}"' for title, value in attributes.items())
    return f"<{name}{written}>{_joined(children)}</{name}>"


def _joined(children: Iterable[Any]) -> str:
    return "".join(markup(child) for child in children)
