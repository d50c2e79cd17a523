"""What model calls cost by a table of prices, and usage added up by model, day, tape or turn. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from tape.core import typed
from tape.core.entries import payloads
from tape.errors import InvalidEntry

__all__ = ["Price", "Prices", "UsageRow", "added_up", "parse_prices"]

UNKNOWN = "(unknown)"
"""The group of calls without a recorded model."""

_PROVIDER = re.compile(r"^(?:[\w-]+/)*(?:(?:us|eu|apac|global)\.)?(?:anthropic\.|models/)?")
_RELEASE = "-@:["
"""The separators of a model's name and its release: ``-20250929``, ``@20250929``, ``:latest``, ``[1m]``."""
T = TypeVar("T")


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """The price of a million tokens of one model. Without a price of its own, cached input costs as other input."""

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of prices: its currency, the day it was true, and a price for each model."""

    models: dict[str, Price]
    currency: str = "USD"
    as_of: str | None = None

    def price(self, model: str | None) -> Price | None:
        """Return the price of a model, or None.

        A provider before the name and a release after it are ignored: ``anthropic/claude-sonnet-4-5-20250929`` is
        ``claude-sonnet-4-5``. If several names match, the longest is used.
        """
        if model is None:
            return None
        name = _PROVIDER.sub("", model.lower())
        fitting = [
            known for known in self.models if name == known or (name.startswith(known) and name[len(known)] in _RELEASE)
        ]
        return self.models[max(fitting, key=len)] if fitting else None

    def cost(self, used: payloads.Usage) -> int | None:
        """Return what a call costs in millionths of the currency, or None when its model has no price.

        ``input_tokens`` counts all of the input, whether it was read from the cache, written to it, or neither.
        """
        price = self.price(used.model)
        if price is None:
            return None
        cached, written = used.cached_tokens, used.cache_write_tokens
        plain = max(used.input_tokens - cached - written, 0)
        cached_price = price.input if price.cached_input is None else price.cached_input
        write_price = price.input if price.cache_write is None else price.cache_write
        # A price per million tokens is a price in millionths per token.
        return round(
            plain * price.input + cached * cached_price + written * write_price + used.output_tokens * price.output
        )


def parse_prices(raw: bytes, name: str) -> Prices:
    """Return the table of prices in a JSON document; raises InvalidEntry, which names the file, for any other."""
    try:
        return typed.decode(raw, Prices)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidEntry("prices", f"{name} is not a valid price table: {error}") from error


class UsageRow(Struct, frozen=True, kw_only=True):
    """What the calls of one model, day, tape or turn used together. Cost is in millionths of ``currency``."""

    key: str
    """The model, the day (UTC), the tape, or the id of the message with which the turn begins."""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cost: int = 0
    """The recorded costs of the calls; for a call without one, the cost by the table of prices."""
    unpriced: int = 0
    """Calls whose cost was not recorded and whose model has no price: they are not in ``cost``."""
    currency: str = "USD"


class _Sum:
    """A row in the making."""

    def __init__(self) -> None:
        self.calls = self.cost = self.unpriced = 0
        self.tokens = [0, 0, 0, 0]

    def add(self, used: payloads.Usage, prices: Prices) -> None:
        counts = (used.input_tokens, used.output_tokens, used.cached_tokens, used.cache_write_tokens)
        self.calls += 1
        self.tokens = [before + more for before, more in zip(self.tokens, counts, strict=True)]
        cost = used.cost or prices.cost(used)
        self.cost += cost or 0
        self.unpriced += cost is None and any(counts)


def added_up(
    uses: Iterable[tuple[T, payloads.Usage]], key: Callable[[T, payloads.Usage], str], prices: Prices
) -> list[UsageRow]:
    """Return a row for each key, in the order in which they are met."""
    sums: dict[str, _Sum] = {}
    for fact, used in uses:
        sums.setdefault(key(fact, used), _Sum()).add(used, prices)
    return [
        UsageRow(
            key=name,
            calls=total.calls,
            input_tokens=total.tokens[0],
            output_tokens=total.tokens[1],
            cached_tokens=total.tokens[2],
            cache_write_tokens=total.tokens[3],
            cost=total.cost,
            unpriced=total.unpriced,
            currency=prices.currency,
        )
        for name, total in sums.items()
    ]
