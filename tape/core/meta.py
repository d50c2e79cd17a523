"""Meta: what a caller says beside an entry, and the names in it that the store keeps for facts of its own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tape.core import strict
from tape.core.records import FIRST_STAMP, LAST_STAMP, micros
from tape.errors import InvalidEntry
from tape.errors.base import shown

__all__ = ["CLOCK", "OCCURRED", "MetaAndTime", "encode", "joined", "of_entry", "of_message", "occurred_stamp"]

CLOCK = "tape.clock"
"""What the clock said, of an entry that would otherwise be older than the one before it."""
OCCURRED = "tape.occurred_at"
"""When that happened of which the entry tells, in microseconds since 1970. Never shown under this name."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode

MetaAndTime = tuple[dict[str, Any] | None, int | None]
"""What the caller said, and when that happened of which the entry tells."""


def encode(meta: Any, occurred_at: Any = None, field: str = "meta") -> bytes | None:
    """Return what is stored as meta; raises InvalidEntry unless it is a dict of strict JSON, with no name of ours."""
    if meta is None and occurred_at is None:
        return None
    fields = {} if meta is None else meta
    if not isinstance(fields, dict):
        raise InvalidEntry(field, f"must be a dict, not {type(fields).__name__}")
    if OCCURRED in fields:
        raise InvalidEntry(f"{field}.{OCCURRED}", "is reserved for the store; pass occurred_at= instead")
    if CLOCK in fields:
        # Taken, it would be hidden from Message.meta, and be lost when the clock has to be held back.
        raise InvalidEntry(f"{field}.{CLOCK}", "is reserved for the store; leave it out")
    raw = strict.encode(fields, field)
    if occurred_at is None:
        return raw
    stamp = b'"%b":%d}' % (OCCURRED.encode(), occurred_stamp(occurred_at))
    return b"{" + stamp if raw == b"{}" else b"%b,%b" % (raw[:-1], stamp)


def occurred_stamp(occurred_at: Any) -> int:
    """Return the moment that a caller gave, an aware datetime or microseconds since 1970, as the latter."""
    if isinstance(occurred_at, datetime):
        if occurred_at.utcoffset() is None:
            raise InvalidEntry("occurred_at", "must have a time zone")
        stamp = micros(occurred_at)
        if not FIRST_STAMP <= stamp <= LAST_STAMP:
            raise InvalidEntry("occurred_at", f"must be within the years 1 to 9999 in UTC, not {shown(occurred_at)}")
        return stamp
    if type(occurred_at) is not int or not FIRST_STAMP <= occurred_at <= LAST_STAMP:
        raise InvalidEntry("occurred_at", f"must be a datetime or microseconds since 1970, not {shown(occurred_at)}")
    return occurred_at


def joined(own: bytes | None, of_call: bytes | None) -> bytes | None:
    """Return what is said of one entry together with what is said of the whole call; the former wins."""
    if own is None or of_call is None or own == of_call:
        return of_call if own is None else own
    return msgspec.json.encode(_decode(of_call) | _decode(own))


def of_entry(raw: bytes | None) -> MetaAndTime:
    """Return what was said beside an entry, and when that happened of which it tells."""
    if raw is None:
        return None, None
    meta = _decode(raw)
    if OCCURRED not in meta:
        return meta, None
    occurred = meta.pop(OCCURRED)
    # A file from elsewhere may say anything under our names.
    valid = type(occurred) is int and FIRST_STAMP <= occurred <= LAST_STAMP
    return meta or None, occurred if valid else None


def of_message(raw: bytes | None) -> MetaAndTime:
    """Return what a caller said beside a message, and when it was said: nothing else."""
    meta, occurred = of_entry(raw)
    if meta and CLOCK in meta:
        del meta[CLOCK]
        return meta or None, occurred
    return meta, occurred
