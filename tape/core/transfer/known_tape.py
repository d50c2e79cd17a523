"""What an import knows of a tape: all that later entries may refer to.

Little is kept: 16 bytes per message, and more only for messages that were changed.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from tape.core.entries import payloads as p
from tape.core.entries.chain import ZERO
from tape.core.entries.payloads import ROOT, Payload, Place
from tape.core.view import fold as f
from tape.core.view.fold import Head, Op

__all__ = ["KnownTape", "Lane", "Unsound"]

Where = tuple[str, int, int]
"""A place by the tape that it is on, its lane and its depth."""


class Unsound(Exception):
    """An entry that no store can have recorded."""


class Lane:
    """A lane: where it branches off, and for each depth the seq that placed the message and a hash of its id."""

    __slots__ = ("base", "ids", "placed")

    def __init__(self) -> None:
        self.base = ROOT
        self.placed = array("q")
        self.ids = array("q")


class KnownClear(Struct):
    """A clear: how many messages it still hides, and the seq that undid it, or 0."""

    hidden: int
    undone: int = 0


class KnownTape:
    """All of a tape that later entries may refer to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.head = Head.blank(ZERO)
        self.layers: list[p.Layer] = []
        """What the tape inherits from, nearest first."""
        self.ancestors: dict[str | None, tuple[KnownTape, int]] = {}
        """Those tapes by name, each with the seq up to which it is inherited."""
        self.lanes: dict[int, Lane] = defaultdict(Lane)
        self.changed: dict[tuple[int, int], bool] = {}
        """By lane and depth: whether a message of the tape that was changed is among the live rows; all others are."""
        self.revisions: dict[int, Where] = {}
        self.clears: dict[int, KnownClear] = {}
        self.anchors: set[int] = set()
        self.compactions: set[int] = set()
        self.merges: dict[int, str] = {}
        """The merges of other tapes into this one."""
        self.overridden = 0
        """The first seq that changed an inherited message, or 0."""
        self.totals = [0, 0, 0, 0, 0]
        self._ids: set[int] | None = None
        self._inherited_ids: set[int] | None = None

    @property
    def seq(self) -> int:
        """The seq of the last entry added."""
        return self.head.seq

    # -- adding entries

    def apply(self, head: Head, payload: Payload, ops: Iterable[Op]) -> None:
        """Add an entry, with the row changes of its fold."""
        self.head = head
        seq = head.seq
        for op in ops:
            self._change(op)
        match payload:
            case p.Append():
                own = hash(payload.id)
                # The lane is that of the row which the fold opened just now.
                self._lane.ids.append(own)
                if self._ids is not None:
                    self._ids.add(own)
            case p.Revise():
                self.revisions[seq] = self._where(payload.place)
            case p.Usage():
                self.totals = payload.totals
            case p.Merge() if payload.into:
                self.merges[seq] = payload.tape
                if payload.usage:
                    self.totals = payload.totals
            case p.Open() if payload.parent is not None:
                self.layers = payload.parent.layers

    def _change(self, op: Op) -> None:
        match op:
            case f.OpenRow() | f.Close() | f.Mark() if op.place.tape is not None:
                self.overridden = self.overridden or self.head.seq
            case f.OpenRow() if op.placed == op.since:
                self._lane = self.lanes[op.place.lane]
                self._lane.placed.append(op.placed)
            case f.OpenRow() | f.Close():
                self.changed[op.place.lane, op.place.ordinal] = isinstance(op, f.OpenRow)
            case f.LaneRow():
                self.lanes[op.lane].base = op.base
            case f.AnchorRow():
                self.anchors.add(op.seq)
            case f.ClearRow():
                self.clears[op.seq] = KnownClear(op.hidden)
            case f.Touch():
                self.clears[op.seq].hidden -= op.own
            case f.Uncleared():
                self.clears[op.seq].undone = op.until
            case f.CompactRow() if op.place is not None:
                self.compactions.add(op.seq)

    # -- what is there

    def _where(self, place: Place) -> Where:
        return place.tape or self.name, place.lane, place.ordinal

    def holder(self, tape: str | None) -> tuple[KnownTape, int]:
        """Return the tape itself or an ancestor, and the seq up to which it is seen."""
        if tape is None:
            return self, self.seq
        ancestor = self.ancestors.get(tape)
        if ancestor is None:
            raise Unsound(f"the entry refers to tape {tape!r}, which the tape does not inherit from")
        return ancestor

    def lane(self, place: Place) -> Lane:
        """Return the lane of a place at which there is a message that the tape sees."""
        tape, upto = self.holder(place.tape)
        lane = tape.lanes.get(place.lane)
        index = place.ordinal - lane.base.ordinal - 1 if lane is not None else -1
        if lane is None or not 0 <= index < len(lane.placed):
            raise Unsound(f"the entry refers to lane {place.lane}, depth {place.ordinal}, which has no message")
        if lane.placed[index] > upto:
            raise Unsound(f"the entry refers to seq {lane.placed[index]}, which the tape cannot see")
        return lane

    def placed(self, place: Place) -> int:
        """Return the seq that placed the message at a place."""
        lane = self.lane(place)
        return lane.placed[place.ordinal - lane.base.ordinal - 1]

    def id_at(self, place: Place) -> int:
        """Return the hash of the id of the message at a place."""
        lane = self.lane(place)
        return lane.ids[place.ordinal - lane.base.ordinal - 1]

    def live(self, place: Place) -> bool:
        """Whether a message of the tape's own is among the live rows."""
        return self.changed.get((place.lane, place.ordinal), True)

    def body(self, place: Place, seq: int, of: str | None) -> None:
        """Check that an entry, of the tape or an ancestor, holds a body of the message at a place."""
        tape, upto = self.holder(of)
        if not 0 < seq <= upto:
            raise Unsound(f"the entry refers to seq {seq}, which the tape cannot see")
        placing = of == place.tape and seq == self.placed(place)
        if not placing and tape.revisions.get(seq) != self._where(place):
            raise Unsound(f"seq {seq} does not contain the message that the entry refers to")

    def at_depth(self, place: Place, depth: int) -> Place:
        """Return the place at a depth on the path to another."""
        while True:
            base = self.lane(place).base
            if depth > base.ordinal:
                return Place(place.lane, depth, place.tape)
            if base == ROOT:
                raise Unsound(f"the path has no depth {depth}")
            place = Place(base.lane, base.ordinal, base.tape or place.tape)

    def run(self, place: Place, lo: int) -> set[int]:
        """Return the hashes of the ids of all messages from a depth to a place."""
        message_ids: set[int] = set()
        while True:
            lane = self.lane(place)
            start = lane.base.ordinal
            message_ids.update(lane.ids[max(lo - start - 1, 0) : place.ordinal - start])
            if lo > start or lane.base == ROOT:
                return message_ids
            place = Place(lane.base.lane, start, lane.base.tape or place.tape)

    def owns(self, message_id: str) -> bool:
        """Whether a message of the tape itself has an id."""
        # Only entries that name messages by id need the set, so most tapes never build it.
        if self._ids is None:
            self._ids = {own for lane in self.lanes.values() for own in lane.ids}
        return hash(message_id) in self._ids

    def knows(self, message_id: str) -> bool:
        """Whether a message of the tape has an id, or one that it inherits."""
        if self.owns(message_id):
            return True
        if self._inherited_ids is None:
            self._inherited_ids = {
                own
                for tape, upto in self.ancestors.values()
                for lane in tape.lanes.values()
                for own, placed in zip(lane.ids, lane.placed, strict=True)
                if placed <= upto
            }
        return hash(message_id) in self._inherited_ids

    def cleared_at(self, seq: int) -> int:
        """Return the clear that was in force after a seq, or 0."""
        held = (at for at, clear in self.clears.items() if at <= seq and not 0 < clear.undone <= seq)
        return max(held, default=0)

    def in_force(self) -> list[int]:
        """Return the clears in force, oldest first."""
        return [at for at, clear in self.clears.items() if not clear.undone]
