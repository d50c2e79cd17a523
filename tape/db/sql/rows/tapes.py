"""Rows of tapes, their heads and their forks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tape.db.schema.found import check_revision

__all__ = [
    "HEAD_COLUMNS",
    "TAPE_COLUMNS",
    "ChildRow",
    "CountRow",
    "ForkRow",
    "HeadRow",
    "InfoRow",
    "LayerRow",
    "ListedRow",
    "TapeRow",
    "UsedRow",
]


class HeadRow(NamedTuple):
    """A tape's number, status and head: everything that an append needs; and the revision of the database.

    ``anchored``, ``prompted`` and ``compacted`` tell whether the tape itself has ever had an anchor, a block or frozen
    prompt, and a summary: most have none, and a context need not ask for them.
    """

    number: int
    owner: str | None
    tape_status: str
    reason: str | None
    completed_at: int | None
    hidden: str | None
    lineage: bytes | None
    anchored: int
    prompted: int
    compacted: int
    revision: str
    seq: int
    hash: bytes
    stamp: int
    head_tape: int
    lane: int
    ordinal: int
    lo: int
    tip: int
    cleared: int
    messages: int
    last_message: int
    aliased: int
    view: int

    @classmethod
    def checked(cls, values: Sequence[Any]) -> HeadRow:
        """Return the row.

        Raises SchemaTooNew or SchemaTooOld when another process has given the database another revision.
        """
        row = cls._make(values)
        check_revision(row.revision)
        return row


HEAD_COLUMNS = HeadRow._fields[HeadRow._fields.index("seq") :]
"""What every append changes of a tape."""


class UsedRow(NamedTuple):
    """An entry that counted usage."""

    number: int
    tape: str
    seq: int
    version: int
    payload: bytes | None
    meta: bytes | None
    stamp: int


class TapeRow(NamedTuple):
    """A tape whatever became of its head."""

    number: int
    owner: str | None
    status: str
    reason: str | None
    completed_at: int | None
    seq: int


class InfoRow(NamedTuple):
    """All columns of a tape and of its head."""

    id: int
    tape: str
    owner: str | None
    agent: str | None
    name: str | None
    labels: bytes | None
    meta: bytes | None
    status: str
    reason: str | None
    created_at: int
    completed_at: int | None
    redirect: str | None
    hidden: str | None
    head_seq: int
    head_hash: bytes
    head_stamp: int
    head_tape: int
    head_lane: int
    head_ordinal: int
    head_lo: int
    head_tip: int
    head_cleared: int
    head_messages: int
    head_last_message: int
    head_aliased: int
    head_view: int


TAPE_COLUMNS = InfoRow._fields[:13]
"""What rarely changes of a tape."""


class ListedRow(NamedTuple):
    """A tape in a listing, with where it was forked off and the entry that holds its usage."""

    info: InfoRow
    parent: str | None
    forked_at: int | None
    usage_kind: str | None
    usage_version: int | None
    usage: bytes | None

    @classmethod
    def of(cls, row: Sequence[Any]) -> ListedRow:
        """Return the row of a listing."""
        width = len(InfoRow._fields)
        return cls(InfoRow._make(row[:width]), *row[width:])


class ForkRow(NamedTuple):
    """A fork's parent, the seq it was forked at, its state, and up to where and by which entry it was merged."""

    parent: str
    seq: int
    state: str
    merged: int
    merge_seq: int


class ChildRow(NamedTuple):
    """A fork of a tape."""

    tape: str
    number: int
    seq: int
    state: str
    merge_seq: int
    hidden: str | None


class LayerRow(NamedTuple):
    """A tape of a lineage, up to where it is seen, and the clear behind which nothing of it is."""

    tape_id: int
    asof: int
    cleared: int


class CountRow(NamedTuple):
    """How much the tapes of one status hold."""

    status: str
    tapes: int
    entries: int
    messages: int
