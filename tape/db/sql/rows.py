"""The rows that statements return, each with the names of its columns. The lists of columns are taken from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "BARE_COLUMNS",
    "ENTRY_COLUMNS",
    "HEAD_COLUMNS",
    "LIVE_COLUMNS",
    "TAPE_COLUMNS",
    "AnchorAt",
    "AskedBody",
    "BodyRow",
    "BranchRow",
    "BuriedRow",
    "BuriedTape",
    "ChangeRow",
    "CheckRow",
    "ChildRow",
    "ClearRow",
    "CompactionMark",
    "CompactionRow",
    "ConsumerRow",
    "CountRow",
    "EdgeRow",
    "EntryRow",
    "FeedRow",
    "FirstBranch",
    "ForkRow",
    "FoundRow",
    "HeadRow",
    "HeldRow",
    "IndexedBody",
    "InfoRow",
    "LaneBase",
    "LayerRow",
    "LineageLane",
    "LinkRow",
    "ListedRow",
    "OverrideRow",
    "OwnPlace",
    "PastRow",
    "PathRow",
    "PlaceRow",
    "SlotRow",
    "Span",
    "TapeRow",
    "TextKept",
    "TextRow",
    "Tombstone",
    "WalkRow",
]


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
    stamp: int
    version: int
    hash: bytes
    head_tape: int
    lane: int
    ordinal: int
    xid: int


ENTRY_COLUMNS = EntryRow._fields[1:-1]
"""What is written of an entry; the database gives it its position and its transaction."""
BARE_COLUMNS = tuple(name for name in ENTRY_COLUMNS if name not in ("actor", "source_tape", "source_seq", "meta"))
"""What every entry has. SQLite's driver takes longer to bind a NULL than a number, so most are written without."""


class HeadRow(NamedTuple):
    """A tape's number, status and head: everything that an append needs."""

    number: int
    owner: str | None
    tape_status: str
    reason: str | None
    completed_at: int | None
    lineage: bytes | None
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


HEAD_COLUMNS = HeadRow._fields[6:]
"""What every append changes of a tape."""


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


TAPE_COLUMNS = InfoRow._fields[:12]
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


class BodyRow(NamedTuple):
    """The payload of an entry and what is needed to decode it."""

    kind: str
    version: int
    payload: bytes | None
    stamp: int


class OwnPlace(NamedTuple):
    """Where a message was placed on a tape, and by which entry."""

    lane: int
    ordinal: int
    seq: int


class PlaceRow(NamedTuple):
    """Where a message was placed in a lineage: by which entry of which tape, and how far up that is."""

    lane: int
    ordinal: int
    seq: int
    tape_id: int
    n: int


class WalkRow(NamedTuple):
    """A lane that a path crosses: its tape, and the depths between which the path is in it."""

    tape_id: int
    lane: int
    lo: int
    hi: int


class PathRow(NamedTuple):
    """A body on a path: its depth, the entry that placed the message, and the entry that holds the body.

    Rows of an ancestor also say which tape placed the message; those of an override, since when and by which tape the
    body is another, and which tape it lies in. 0 is the tape that is read.
    """

    ordinal: int
    placed: int
    body: int
    kind: str
    version: int
    payload: bytes
    stamp: int
    lane: int
    tape_id: int = 0
    since: int = 0
    by: int = 0
    body_tape: int = 0

    @classmethod
    def of(cls, row: Sequence[Any]) -> PathRow:
        """Return the row of a statement that has the first columns or all of them."""
        return cls(*row)


class HeldRow(NamedTuple):
    """What holds at a place."""

    placed: int
    since: int
    body: int


class PastRow(NamedTuple):
    """What held at a place, until when, and why it ended."""

    placed: int
    since: int
    body: int
    why: str
    until: int


class OverrideRow(NamedTuple):
    """What a tape of a lineage made of an inherited message."""

    n: int
    placed: int
    body_tape: int
    body: int | None
    since: int
    why: str


class LaneBase(NamedTuple):
    """Where a lane branches off."""

    base_tape: int
    base_lane: int
    base_ordinal: int


class AnchorAt(NamedTuple):
    """An anchor on a path: its seq, its depth and its tape, and how far up the lineage that is."""

    seq: int
    ordinal: int
    tape_id: int
    n: int


class LayerRow(NamedTuple):
    """A tape of a lineage, up to where it is seen, and the clear behind which nothing of it is."""

    tape_id: int
    asof: int
    cleared: int


class LineageLane(NamedTuple):
    """A lane of a tape of a lineage, and where it branches off."""

    tape_id: int
    lane: int
    base_tape: int
    base_lane: int
    base_ordinal: int


class BranchRow(NamedTuple):
    """A lane that branches off, and at which depth."""

    tape_id: int
    lane: int
    base_ordinal: int


class ChangeRow(NamedTuple):
    """What a tape made of an inherited message, and whether that is in its view."""

    origin: int
    lane: int
    ordinal: int
    placed: int
    body_tape: int
    body: int | None
    holds: bool


class EdgeRow(NamedTuple):
    """The first or last message of the n-th stretch that was asked about."""

    n: int
    ordinal: int
    placed: int
    body: int


class AskedBody(NamedTuple):
    """The payload of the n-th entry that was asked for."""

    n: int
    kind: str
    version: int
    payload: bytes
    stamp: int


class Span(NamedTuple):
    """From when to when something held."""

    since: int
    until: int


class FirstBranch(NamedTuple):
    """A lane that branches off from a given one, and at which depth."""

    lane: int
    base_ordinal: int


class ClearRow(NamedTuple):
    """A clear: its seq, where the head stood, and whether messages came back from under it."""

    seq: int
    head_tape: int
    lane: int
    ordinal: int
    touched: int


class SlotRow(NamedTuple):
    """What a slot holds: the entry that set it."""

    slot: str
    since: int
    kind: str
    version: int
    payload: bytes


class CompactionRow(NamedTuple):
    """A compaction: who made it, where its run lies, and what became of its sources."""

    tape_id: int
    origin: int
    seq: int
    head_tape: int
    lane: int
    ordinal: int
    lo: int
    gone: int
    revised: int
    loose: int


class CompactionMark(NamedTuple):
    """What a fork did to the sources of an inherited compaction."""

    origin: int
    seq: int
    gone: int
    revised: int
    loose: int


LIVE_COLUMNS = ("tape_id", "lane", "ordinal", "placed", "since", "body")


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


class ConsumerRow(NamedTuple):
    """How far a named reader of the feed has come."""

    xid: int
    position: int
    version: int


class TextRow(NamedTuple):
    """An entry that may have a text to search, with its tape."""

    position: int
    xid: int
    tape_id: int
    seq: int
    kind: str
    version: int
    payload: bytes | None
    stamp: int
    lane: int
    ordinal: int
    tape: str
    owner: str | None
    status: str


class IndexedBody(NamedTuple):
    """The payload of an entry that was indexed, and its tape's owner."""

    kind: str
    version: int
    payload: bytes | None
    owner: str | None


class FoundRow(NamedTuple):
    """A text that has the words of a query, and whether its tape shows it."""

    position: int
    xid: int
    tape_id: int
    seq: int
    kind: str
    version: int
    payload: bytes | None
    stamp: int
    origin: int
    lane: int
    ordinal: int
    tape: str
    owner: str | None
    status: str
    holds: bool
    size: int | None
    """Bytes of the payload, which comes with its page only if it is small."""
    excerpt: bytes | None


class TextKept(NamedTuple):
    """What the index holds of a text; on SQLite the words are found by word only."""

    position: int
    seq: int
    origin: int
    lane: int
    ordinal: int
    excerpt: bytes | None
    xid: int
    words: list[str] | None


class Tombstone(NamedTuple):
    """What is left of a purged tape."""

    tape_id: int
    owner: str | None
    seq: int
    hash: bytes
    stamp: int
    emptied: int


class BuriedTape(NamedTuple):
    """A tombstone with what the tape, its head and its last entry say."""

    tape_id: int
    tape: str
    owner: str | None
    seq: int
    hash: bytes
    stamp: int
    emptied: int
    row_tape: str
    row_owner: str | None
    row_status: str
    head_seq: int | None
    head_hash: bytes | None
    entry_hash: bytes | None
    entry_stamp: int | None
    entry_kind: str | None
    entry_version: int | None
    entry_payload: bytes | None


class BuriedRow(NamedTuple):
    """A purged tape whose rows are not all gone."""

    tape_id: int
    tape: str
    seq: int
    owner: str | None


class LinkRow(NamedTuple):
    """A tape that a fork was merged into or linked to, and the entry that says so."""

    parent_id: int
    tape: str
    merge_seq: int


class CheckRow(NamedTuple):
    """Up to where a tape was last verified, and when."""

    tape: str
    seq: int
    hash: bytes
    stamp: int


class CountRow(NamedTuple):
    """How much the tapes of one status hold."""

    status: str
    tapes: int
    entries: int
    messages: int
