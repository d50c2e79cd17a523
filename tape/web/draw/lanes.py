"""The graph of forks and merges: the lanes of ``tape log --graph``, each row as a small drawing. Pure.

Rows stand on top of each other without a gap, so that the lines of one go on in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tape.web.draw.svg import Element, element

__all__ = ["row_drawings"]

_STEP = 9
"""Pixels between two characters of a drawn row; a lane is two characters wide."""
_HEIGHT, _BETWEEN = 32, 18
"""Pixels of a row with an entry, and of one that only leads lanes on."""
_COLOURS = 6


def row_drawings(rows: Sequence[tuple[str, bool]]) -> list[Element]:
    """Return a drawing for each row, given as the text that ``draw`` makes and whether an entry stands in it."""
    width = max((len(text) for text, _ in rows), default=1) * _STEP + _STEP
    drawings = []
    for place, (text, entry) in enumerate(rows):
        above = rows[place - 1][0] if place else ""
        below = rows[place + 1][0] if place + 1 < len(rows) else ""
        height = _HEIGHT if entry else _BETWEEN
        drawn = [shape for at, mark in enumerate(text) for shape in _shapes(mark, at, height, above, below)]
        size = f"0 0 {width} {height}"
        drawings.append(
            element("svg", *drawn, viewBox=size, width=width, height=height, class_="lanes", aria_hidden="true")
        )
    return drawings


def _shapes(mark: str, at: int, height: int, above: str, below: str) -> Iterator[Element]:
    x, colour = _STEP + at * _STEP, f"lane-{at // 2 % _COLOURS}"
    match mark:
        case "|":
            yield _line(x, 0, x, height, colour)
        case "/":
            yield _line(x + _STEP, 0, x - _STEP, height, colour)
        case "\\":
            yield _line(x - _STEP, 0, x + _STEP, height, colour)
        case "_":
            yield _line(x - _STEP, height, x + _STEP, height, colour)
        case "*":
            if _leads(above, at, "|*", "/", "\\"):
                yield _line(x, 0, x, height // 2, colour)
            if _leads(below, at, "|*", "\\", "/"):
                yield _line(x, height // 2, x, height, colour)
            yield element("circle", cx=x, cy=height // 2, r=5, class_=f"node {colour}")


def _leads(row: str, at: int, straight: str, right: str, left: str) -> bool:
    """Whether something in the row above or below leads to this place."""
    return row[at : at + 1] in tuple(straight) or row[at + 1 : at + 2] == right or (at > 0 and row[at - 1 : at] == left)


def _line(x1: int, y1: int, x2: int, y2: int, colour: str) -> Element:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=colour)
