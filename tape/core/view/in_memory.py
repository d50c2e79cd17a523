"""The view in memory: the same rows as in the tables, built by the same fold.

Used to verify and rebuild the tables, and to replay a tape without a database.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field, structs

from tape.core.entries.chain import ZERO
from tape.core.entries.payloads import ROOT, ForkPoint, Payload, Place
from tape.core.view import fold as f
from tape.core.view.fold import Head, Op
from tape.errors import Corrupt

__all__ = ["Held", "Past", "View"]


class Held(Struct, frozen=True, gc=False):
    """A live row: the entry that placed the message, the seq since when, and the entry with the body."""

    placed: int
    since: int
    body: int


class Past(Struct, frozen=True, gc=False):
    """A body that was shown until another seq, and why that ended."""

    placed: int
    body: int
    until: int
    why: str


class Cleared(Struct, frozen=True, gc=False):
    """A clear: the place of the head, how many messages it still hides, until when, and whether some were restored."""

    place: Place
    hidden: int
    until: int | None = None
    touched: bool = False


class Override(Struct, frozen=True, gc=False):
    """A fork's override of an inherited message: another body, or none."""

    placed: int
    body: int | None
    of: str | None
    until: int | None
    why: str


class Compacted(Struct, frozen=True, gc=False):
    """A compaction: where its run begins and ends (unless inherited), and the state of its sources."""

    place: Place
    lo: int
    gone: int
    revised: bool
    loose: bool
    until: int | None


class View(Struct):
    """Every row of one tape's view."""

    head: Head = field(default_factory=lambda: Head.blank(ZERO))
    live: dict[tuple[int, int], Held] = field(default_factory=dict)
    """By lane and depth: what holds there."""
    past: dict[tuple[int, int, int], Past] = field(default_factory=dict)
    lanes: dict[int, Place] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    calls: set[tuple[str, int, Place]] = field(default_factory=set)
    answers: set[tuple[Place, str, Place]] = field(default_factory=set)
    anchors: dict[int, tuple[str, Place]] = field(default_factory=dict)
    events: dict[int, str] = field(default_factory=dict)
    clears: dict[int, Cleared] = field(default_factory=dict)
    slots: dict[tuple[str, int], int | None] = field(default_factory=dict)
    """(slot, since) to the seq at which another value took its place."""
    overrides: dict[tuple[Place, int], Override] = field(default_factory=dict)
    """(inherited place, since) to what holds there for this tape."""
    compactions: dict[tuple[str | None, int, int], Compacted] = field(default_factory=dict)
    """(tape that made it, seq, since) to what is known of a compaction."""
    _compaction_since: dict[tuple[str | None, int], int] = field(default_factory=dict)
    fork: tuple[ForkPoint, str, int, int] | None = None
    """The fork point, the fork's state, the seq up to which it was merged, and the parent's entry for that."""
    name: str | None = None
    labels: list[str] = field(default_factory=list)
    redirect: str | None = None
    _override_since: dict[Place, int] = field(default_factory=dict)
    _last: dict[tuple[int, int], int] = field(default_factory=dict)
    """The since of the newest past row at a place, so that marking it needs no search."""
    _slot_since: dict[str, int] = field(default_factory=dict)

    def fold(self, seq: int, hash: bytes, stamp: int, place: Place, payload: Payload) -> None:
        """Fold one more entry into the rows."""
        self.head, ops = f.fold(self.head, seq, hash, stamp, place, payload)
        self.apply(ops)

    def apply(self, ops: Iterable[Op]) -> None:
        """Change the rows as the fold says."""
        for op in ops:
            match op:
                case f.OpenRow():
                    self._open(op)
                case f.Close():
                    self._close(op)
                case f.Mark():
                    self._mark(op)
                case f.LaneRow():
                    self.lanes[op.lane] = op.base
                case f.AliasRow():
                    self.aliases[op.id] = op.seq
                case f.CallRow():
                    self.calls.add((op.call, op.seq, op.place))
                case f.AnswerRow():
                    self.answers.add((op.maker, op.call, op.place))
                case f.AnchorRow():
                    self.anchors[op.seq] = (op.name, op.place)
                case f.EventRow():
                    self.events[op.seq] = op.name
                case f.ClearRow():
                    self.clears[op.seq] = Cleared(op.place, op.hidden)
                case f.Touch():
                    self._touch(op)
                case f.Uncleared():
                    self.clears[op.seq] = structs.replace(self.clears[op.seq], until=op.until)
                case f.SlotRow():
                    self._slot(op)
                case f.CompactRow():
                    self._compact(op)
                case f.ForkRow():
                    self.fork = (op.parent, "open", 0, 0)
                case f.ForkState() if self.fork is not None:
                    self.fork = (self.fork[0], op.state, op.merged or self.fork[2], op.merge_seq)
                case f.Renamed():
                    self.name = op.name
                case f.Labelled():
                    self.labels = op.labels
                case f.Redirected():
                    self.redirect = op.to

    def path(self) -> list[Held]:
        """Return what the tape itself holds on the path from the root to the head, root first."""
        place, rows = self.head.place, []
        while place != ROOT and place.tape is None:
            base = self._base(place)
            for ordinal in range(place.ordinal, base.ordinal, -1):
                row = self.live.get((place.lane, ordinal))
                if row is not None and row.since > self.head.cleared:
                    rows.append(row)
            place = base
        return rows[::-1]

    def anchor(self) -> int | None:
        """Return the seq of the latest anchor on the path to the head: the deepest, then the newest."""
        place, on_path = self.head.place, {(0, 0)}
        while place != ROOT and place.tape is None:
            base = self._base(place)
            on_path.update((place.lane, ordinal) for ordinal in range(base.ordinal + 1, place.ordinal + 1))
            place = base
        standing = [
            (at.ordinal, seq)
            for seq, (_, at) in self.anchors.items()
            if seq > self.head.cleared and (at.lane, at.ordinal) in on_path
        ]
        return max(standing)[1] if standing else None

    def _base(self, place: Place) -> Place:
        base = self.lanes[place.lane]
        if base.ordinal >= place.ordinal:
            raise Corrupt("", place.lane, "the branch point of the lane is not before its messages")
        return base

    def _override(self, place: Place, since: int, placed: int, body: int | None, of: str | None, why: str) -> None:
        before = self._override_since.get(place)
        if before is not None:
            row = self.overrides[place, before]
            self.overrides[place, before] = structs.replace(row, until=since)
        self.overrides[place, since] = Override(placed, body, of, None, why)
        self._override_since[place] = since

    def _open(self, op: f.OpenRow) -> None:
        if op.place.tape is not None:
            self._override(op.place, op.since, op.placed, op.body, op.of, "")
            return
        self.live[op.place.lane, op.place.ordinal] = Held(op.placed, op.since, op.body)

    def _close(self, op: f.Close) -> None:
        if op.place.tape is not None:
            self._override(op.place, op.until, 0, None, None, op.why)
            return
        row = self.live.pop((op.place.lane, op.place.ordinal))
        self.past[op.place.lane, op.place.ordinal, row.since] = Past(row.placed, row.body, op.until, op.why)
        self._last[op.place.lane, op.place.ordinal] = row.since

    def _mark(self, op: f.Mark) -> None:
        if op.place.tape is not None:
            self._override(op.place, op.seq, 0, None, None, op.why)
            return
        # A row of zero length: the rows before it stay true for forks made before it.
        spot = (op.place.lane, op.place.ordinal)
        row = self.past[(*spot, self._last[spot])]
        self.past[(*spot, op.seq)] = Past(row.placed, row.body, op.seq, op.why)
        self._last[spot] = op.seq

    def _touch(self, op: f.Touch) -> None:
        row = self.clears[op.seq]
        self.clears[op.seq] = structs.replace(row, hidden=row.hidden - op.own)
        for seq, row in self.clears.items():
            if row.until is None:
                self.clears[seq] = structs.replace(row, touched=True)

    def _compact(self, op: f.CompactRow) -> None:
        place, lo, which = op.place or ROOT, op.lo, (op.tape, op.seq)
        before = self._compaction_since.get(which)
        if before is not None:
            row = self.compactions[(*which, before)]
            place, lo = row.place, row.lo
            self.compactions[(*which, before)] = structs.replace(row, until=op.since)
        self.compactions[(*which, op.since)] = Compacted(place, lo, op.gone, op.revised, op.loose, None)
        self._compaction_since[which] = op.since

    def _slot(self, op: f.SlotRow) -> None:
        before = self._slot_since.get(op.slot)
        if before is not None:
            self.slots[op.slot, before] = op.seq
        self._slot_since.pop(op.slot, None)
        if not op.ended:
            self.slots[op.slot, op.seq] = None
            self._slot_since[op.slot] = op.seq
