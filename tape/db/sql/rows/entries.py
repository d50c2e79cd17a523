"""Rows of entries."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BARE_COLUMNS", "ENTRY_COLUMNS", "AskedBody", "BodyRow", "EntryRow", "Holder", "OwnPlace"]


class EntryRow(NamedTuple):
    """An entry as it is stored."""

    position: int
    tape_id: int
    seq: int
    kind: str
    key: str
    actor: str | None
    source_tape: str | None
    source_seq: int | None
    payload: bytes | None
    meta: bytes | None
    salt: bytes | None
    stamp: int
    version: int
    hash: bytes
    head_tape: int
    lane: int
    ordinal: int
    xid: int
    commitment: bytes | None
    """Of an erased entry: what its hash covers instead of salt, payload and meta."""


ENTRY_COLUMNS = EntryRow._fields[1:-2]
"""The columns that a writer fills; the database adds the position and the transaction."""
BARE_COLUMNS = tuple(name for name in ENTRY_COLUMNS if name not in ("actor", "source_tape", "source_seq", "meta"))
"""What every entry has. SQLite's driver takes longer to bind a NULL than a number, so most are written without."""


class BodyRow(NamedTuple):
    """The payload of an entry and what is needed to decode it."""

    kind: str
    version: int
    payload: bytes | None
    stamp: int
    key: str


class Holder(NamedTuple):
    """A tape that holds a message."""

    number: int
    tape: str


class OwnPlace(NamedTuple):
    """Where a message was placed on a tape, and by which entry."""

    lane: int
    ordinal: int
    seq: int


class AskedBody(NamedTuple):
    """The payload of the n-th entry that was asked for."""

    n: int
    kind: str
    version: int
    payload: bytes
    stamp: int
    key: str
    meta: bytes | None
