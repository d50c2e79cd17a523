"""Rows of the feed and of its readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tape.db.sql.rows.entries import EntryRow

__all__ = ["AskedRow", "ConsumerRow", "FeedPlace", "FeedRow", "Snapshot", "XidState"]


class FeedRow(NamedTuple):
    """An entry in the feed, with its tape's name and owner and, of a purged tape, the last seq."""

    entry: EntryRow
    tape: str
    owner: str | None
    buried_at: int | None

    @classmethod
    def of(cls, row: Sequence[Any]) -> FeedRow:
        """Return the row of a page of the feed."""
        width = len(EntryRow._fields)
        return cls(EntryRow._make(row[:width]), *row[width:])


class AskedRow(NamedTuple):
    """The entry of an open request, with its tape's name and the slot that it holds."""

    entry: EntryRow
    tape: str
    slot: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> AskedRow:
        """Return the row of a page of open requests."""
        width = len(EntryRow._fields)
        return cls(EntryRow._make(row[:width]), *row[width:])


class FeedPlace(NamedTuple):
    """Where an entry stands in the feed."""

    xid: int
    position: int


class Snapshot(NamedTuple):
    """On PostgreSQL: the oldest transaction that is running, and the next one."""

    oldest: int
    next: int


class XidState(NamedTuple):
    """On PostgreSQL: the oldest transaction that is running, the newest that is stored, and the next one."""

    oldest: int
    newest: int | None
    next: int


class ConsumerRow(NamedTuple):
    """How far a named reader of the feed has come."""

    xid: int
    position: int
    version: int
