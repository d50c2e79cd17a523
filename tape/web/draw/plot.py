"""Plots: a sparkline of activity, lines of totals over time, bars by model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tape.web.draw.svg import Element, element, number

__all__ = ["bars", "lines", "sparkline"]

_BUCKETS = 24
_WIDTH, _HEIGHT = 460, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 10, 26


def sparkline(stamps: Sequence[int]) -> Element:
    """Draw how many of some moments fall into each part of the time that they span."""
    counts = [0] * _BUCKETS
    if stamps:
        first, last = min(stamps), max(stamps)
        for stamp in stamps:
            counts[min((stamp - first) * _BUCKETS // max(last - first, 1), _BUCKETS - 1)] += 1
    most = max(counts, default=0) or 1
    drawn = [
        element("rect", x=at * 4, y=20.0 - height, width=3, height=height)
        for at, count in enumerate(counts)
        if (height := max(2.0, 20.0 * count / most) if count else 1.0)
    ]
    return element("svg", *drawn, viewBox="0 0 96 20", class_="spark", aria_hidden="true")


def lines(title: str, points: Sequence[tuple[int, float]], unit: str = "") -> Element:
    """Draw a total over time as an area under a line; ``points`` are microseconds since 1970 and values."""
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    first, last = (points[0][0], points[-1][0]) if points else (0, 1)
    top = _ceiling(max((value for _, value in points), default=0.0))
    span = max(last - first, 1)
    places = [
        (_LEFT + inner_width * (stamp - first) / span, _TOP + inner_height * (1 - value / top))
        for stamp, value in points
    ]
    base = number(_TOP + inner_height)
    drawn = [element("title", title)]
    for step in range(5):
        y = _TOP + inner_height * (1 - step / 4)
        drawn.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        drawn.append(element("text", _short(top * step / 4, unit), x=_LEFT - 8, y=y + 4, text_anchor="end"))
    if places:
        # A total stays where it is until the next call.
        path = f"M{number(places[0][0])} {number(places[0][1])}" + "".join(
            f"H{number(x)}V{number(y)}" for x, y in places[1:]
        )
        drawn.append(element("path", d=f"{path}V{base}H{number(places[0][0])}Z", class_="area"))
        drawn.append(element("path", d=path, class_="line"))
        for stamp, x, anchor in ((first, _LEFT, "start"), (last, _WIDTH - _RIGHT, "end")):
            drawn.append(element("text", _moment(stamp), x=x, y=_HEIGHT - 8, text_anchor=anchor))
    return element("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", class_="plot", role="img", aria_label=title)


def bars(title: str, values: Sequence[tuple[str, float]], unit: str = "") -> Element:
    """Draw a bar for each named value, with the name and the number beside it."""
    top = max((value for _, value in values), default=0.0) or 1.0
    drawn = [element("title", title)]
    for at, (name, value) in enumerate(values):
        y = 8 + at * 44
        shown = name if len(name) <= 60 else f"{name[:59]}…"
        drawn.append(element("text", shown, x=0, y=y + 10, class_="name"))
        drawn.append(element("rect", x=0, y=y + 16, width=max(2.0, 360.0 * value / top), height=14, class_="bar"))
        drawn.append(element("text", _short(value, unit), x=max(2.0, 360.0 * value / top) + 8, y=y + 28))
    height = 8 + len(values) * 44
    return element("svg", *drawn, viewBox=f"0 0 {_WIDTH} {height}", class_="plot", role="img", aria_label=title)


def _ceiling(value: float) -> float:
    """Return the next round number that is not below a value."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 1.0
    while scale > value:
        scale /= 10
    return next((scale * step for step in (1, 2, 4, 5, 8, 10) if scale * step >= value), scale * 10)


def _short(value: float, unit: str) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{unit}{value / size:.3g}{letter}"
    return f"{unit}{value:.3g}"


def _moment(stamp: int) -> str:
    return datetime.fromtimestamp(stamp / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M")
