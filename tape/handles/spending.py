"""Usage of a whole store or of one tape, by model, day, tape or turn."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tape.core import strict
from tape.core.context.turns import turn_facts
from tape.core.entries import payloads
from tape.core.memory.prices import UNKNOWN, Prices, UsageRow, added_up
from tape.core.records import Entry, micros, moment
from tape.db.read.catalog import Catalog, Use
from tape.errors import InvalidEntry
from tape.handles.tape import Tape

__all__ = ["spending"]

_KEYS = {
    "model": lambda use, used: used.model or UNKNOWN,
    "day": lambda use, used: moment(use.stamp).date().isoformat(),
    "tape": lambda use, used: use.tape,
    "turn": lambda use, used: use.turn,
}


def spending(
    catalog: Catalog,
    chat: Tape | None,
    by: str,
    since: datetime | None,
    until: datetime | None,
    prices: Prices | None,
) -> list[UsageRow]:
    """Return usage as a row for each key: days and turns in their order, all others by cost, the highest first."""
    by = strict.one_of(by, tuple(_KEYS), "by")
    if by == "turn" and chat is None:
        raise InvalidEntry("by", "'turn' needs tape=: turns are counted on one tape")
    if prices is None:
        from tape.prices import load_prices

        prices = load_prices()
    elif not isinstance(prices, Prices):
        raise InvalidEntry("prices", f"must be Prices, not {type(prices).__name__}")
    first, last = _bound(since, "since"), _bound(until, "until")
    uses = catalog.uses() if chat is None else _of_tape(chat, turns=by == "turn")
    counted = (
        (use, used)
        for use, used in uses
        if (first is None or use.stamp >= first) and (last is None or use.stamp <= last)
    )
    rows = added_up(counted, _KEYS[by], prices)
    if by == "turn":
        return rows
    return sorted(rows, key=lambda row: row.key if by == "day" else (-row.cost, -row.input_tokens, row.key))


def _bound(at: datetime | None, field: str) -> int | None:
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidEntry(field, "must be a datetime with a time zone")
    return micros(at)


def _of_tape(chat: Tape, *, turns: bool) -> Iterator[tuple[Use, payloads.Usage]]:
    """Yield the usage of the tape itself, with ``turns`` each with the message that began its turn."""
    turn = ""
    for entry in chat.entries(kinds=("append", "usage") if turns else ("usage",)):
        payload = entry.payload
        if isinstance(payload, payloads.Append) and turn_facts(payload.message).begins:
            turn = payload.id
        elif isinstance(payload, payloads.Usage):
            yield Use(entry.tape, _stamp(entry), turn), payload


def _stamp(entry: Entry) -> int:
    return entry.stamp if entry.occurred is None else entry.occurred
