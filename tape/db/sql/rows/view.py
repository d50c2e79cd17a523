"""Rows of the view: places and bodies of messages, lanes, anchors, clears, slots and compactions."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

__all__ = [
    "LIVE_COLUMNS",
    "AnchorAt",
    "BranchRow",
    "ChangeRow",
    "ClearRow",
    "CompactionMark",
    "CompactionRow",
    "EdgeRow",
    "FirstBranch",
    "HeldRow",
    "LaneBase",
    "LineageLane",
    "OverrideRow",
    "PastRow",
    "PathRow",
    "PlaceRow",
    "SlotRow",
    "Span",
    "WalkRow",
]


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


class PathRow(Struct, frozen=True, gc=False):
    """A body on a path: its depth, the entry that placed the message, and the entry that holds the body.

    Rows of an ancestor also say which tape placed the message; those of a changed message, since when and by which tape
    it is another, and which tape its body lies in. 0 is the tape that is read. A path may have very many of them, so
    they are structs that the garbage collector does not look at.
    """

    ordinal: int
    placed: int
    body: int | None
    kind: str
    version: int
    payload: bytes
    stamp: int
    lane: int
    key: str
    meta: bytes | None
    tape_id: int = 0
    since: int = 0
    by: int = 0
    body_tape: int = 0


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
    tape_id: int


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
