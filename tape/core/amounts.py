"""Numbers as a person reads them."""

from __future__ import annotations

__all__ = ["count", "size"]


def count(number: int, noun: str) -> str:
    """Return ``1 entry``, ``2 entries``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def size(number: int) -> str:
    """Return a number of bytes as a person reads it."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
