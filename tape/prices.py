"""The table of prices: the one that ships with the package, or another that a program or a person puts in its place."""

from __future__ import annotations

import os
from pathlib import Path

from tape.core.memory.prices import Price, Prices, UsageRow, parse_prices
from tape.errors import InvalidEntry

__all__ = ["VARIABLE", "Price", "Prices", "UsageRow", "load_prices"]

VARIABLE = "TAPE_PRICES"
"""The environment variable that names another table."""
_SHIPPED = Path(__file__).with_name("prices.json")


def load_prices(file: str | os.PathLike[str] | None = None) -> Prices:
    """Return the prices in a JSON file, else in the one that ``TAPE_PRICES`` names, else those of the package.

    The file says ``{"currency": "USD", "as_of": "2026-02-01", "models": {"gpt-5": {"input": 1.25, "output": 10,
    "cached_input": 0.125, "cache_write": 1.25}}}``, each per million tokens. Raises InvalidEntry for one that cannot be
    read or says anything else.
    """
    chosen = Path(file or os.environ.get(VARIABLE) or _SHIPPED)
    try:
        raw = chosen.read_bytes()
    except OSError as error:
        raise InvalidEntry("prices", f"{chosen} cannot be read: {error.strerror}") from error
    return parse_prices(raw, str(chosen))
