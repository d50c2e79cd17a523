"""One plot as SVG, written by hand: what the n-th message costs, on two logarithmic axes."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from benchmarks.report import Series

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 300, 50, 60
COLOURS = ("#c0392b", "#2c6fbb", "#2e8b57", "#b8860b", "#7d3c98", "#16828a", "#555555")
_FONT = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12" fill="#222"'


def svg(series: list[Series], conditions: dict[str, str]) -> str:
    """Draw the curves, ours first and thickest, each with its name and where it stopped."""
    points = [point for one in series for point in one.points]
    across = _decades([n for n, _ in points])
    up = _decades([cost for _, cost in points])

    def x(n: float) -> float:
        return LEFT + (math.log10(n) - across[0]) / (across[-1] - across[0]) * (WIDTH - LEFT - RIGHT)

    def y(cost: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(cost) - up[0]) / (up[-1] - up[0]) * (HEIGHT - TOP - BOTTOM)

    where = ", ".join(conditions[name] for name in ("machine", "date") if name in conditions)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {_FONT} role="img">',
        "<title>What the n-th message costs</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">What the n-th message costs: one durable append</text>',
        f'<text x="{LEFT}" y="40" fill="#666">{escape("SQLite, WAL, synchronous=FULL; " + where)}</text>',
    ]
    for power in across:
        parts += _line(x(10**power), TOP, x(10**power), HEIGHT - BOTTOM)
        parts.append(f'<text x="{x(10**power):.1f}" y="{HEIGHT - 38}" text-anchor="middle">{_count(power)}</text>')
    for power in up:
        parts += _line(LEFT, y(10**power), WIDTH - RIGHT, y(10**power))
        parts.append(f'<text x="{LEFT - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{_time(power)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">messages already held</text>')
    # Ours comes first and is drawn last, on top of the others.
    for number, one in reversed(list(enumerate(series))):
        parts += _curve(number, one, [(x(n), y(cost)) for n, cost in one.points])
    return "\n".join([*parts, "</svg>", ""])


def _decades(values: list[float] | list[int]) -> list[int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return list(range(low, max(high, low + 1) + 1))


def _line(x1: float, y1: float, x2: float, y2: float) -> list[str]:
    return [f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e3e3e3"/>']


def _curve(number: int, series: Series, places: list[tuple[float, float]]) -> list[str]:
    colour, thick = COLOURS[number % len(COLOURS)], 3 if number == 0 else 1.5
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{thick}"/>']
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{thick + 0.5}" fill="{colour}"/>' for x, y in places]
    left, top = WIDTH - RIGHT + 24, TOP + 14 + number * 38
    parts.append(f'<rect x="{left - 14}" y="{top - 9}" width="9" height="9" fill="{colour}"/>')
    parts.append(f'<text x="{left}" y="{top}">{escape(series.name)}</text>')
    if series.note:
        style = 'font-size="11" fill="#777"'
        parts.append(f'<text x="{left}" y="{top + 15}" {style}>{escape(series.note)}</text>')
    return parts


def _count(power: int) -> str:
    return f"{10**power:,}".replace(",", " ")


def _time(power: int) -> str:
    size, unit = ((power - 6, "s") if power >= 6 else (power - 3, "ms")) if power >= 3 else (power, "µs")
    return f"{10**size:g} {unit}"
