"""What a merge finds: the child's messages that its parent has not, and those that both have but that differ now."""

from __future__ import annotations

import copy
from typing import Any

from msgspec import Struct

from tape.core.entries import ids, payloads
from tape.core.entries.payloads import ROOT, Place
from tape.core.merge import divergence
from tape.core.messages import toolcalls
from tape.db.engine.transaction import Transaction
from tape.db.read.reader import Reader
from tape.db.record.lookup import TapeLookup, as_of
from tape.db.record.writing import Writing
from tape.db.view.paths import Point, Scope
from tape.errors import Corrupt, TapeNotFound

__all__ = ["New", "Taking"]


_FIRST_PAGE = 8


class New(Struct, frozen=True):
    """A message of the child's that the parent has not: where it stands on the child, and what it says now."""

    id: str
    placed: int
    message: dict[str, Any]
    generated: bool
    tokens: int


class Taking:
    """One look at a parent and its child, both locked, before a merge writes anything."""

    def __init__(self, reader: Reader, tx: Transaction, parent: Writing, young: Writing, fork: Any) -> None:
        _, forked_at, _, self.merged, self.merge_seq = fork
        self.parent = parent
        self.young = young
        self.before = self._merge_at(tx, self.merge_seq)
        """The last merge, of whatever strategy."""
        if self.before is None:
            self.merged = self.merge_seq = 0
        self._reader = reader
        self._tx = tx
        self._sql = tx.statements
        # A link takes nothing: what came before it is still to be taken.
        self.since, agreed, last = self.merged, self.merge_seq, self.before
        """The child's seq up to which it was taken."""
        while last is not None and last.strategy == "link":
            before, (self.since, agreed) = agreed, (last.since, last.previous)
            last = self._merge_at(tx, agreed) if agreed < before else None
        self._agreed = agreed or forked_at
        """The parent's seq at which the two last agreed; the child's is ``since``, or its first entry."""
        self.squashed = last.squashed if last is not None else 0
        """The child's seq up to which a squash stands for it."""
        self._moved = self.since == 0
        """Whether messages from before the last merge may have come onto the child's path since."""
        self._touched = self._read_changes()
        self._new: list[New] | None = None
        self._scopes: dict[tuple[str, Point], Scope] = {}
        self._divergences: list[divergence.Divergence] | None = None

    def _merge_at(self, tx: Transaction, seq: int) -> payloads.Merge | None:
        """Return a merge of the child; none when the family was imported without the part of the parent that has it."""
        row = tx.one(tx.statements.body, (self.parent.tape_id, seq)) if seq else None
        payload = payloads.decode(row[0], row[1], row[2]) if row is not None and row[2] is not None else None
        return payload if isinstance(payload, payloads.Merge) and payload.tape == self.young.tape else None

    def anything(self, strategy: str) -> bool:
        """Whether there is anything that the last merge did not take."""
        if strategy == "link":
            return bool(self.young.head.seq > self.merged)
        return bool(self.new() or any(divergence.differs(one) for one in self.divergences()))

    def _scope(self, tape: str, point: Point = None) -> Scope:
        scope = self._scopes.get((tape, point)) or self._reader.scope(self._tx, tape, point)
        if scope is None:
            raise TapeNotFound(tape)
        self._scopes[tape, point] = scope
        return scope

    def _now(self, tape: Writing) -> Scope:
        """Return one of the two as it stands, of which the head was read already."""
        scope = self._scopes.get((tape.tape, None))
        if scope is None:
            scope = self._reader.standing(self._tx, tape.tape, tape.tape_id, copy.copy(tape.head), tape.family)
            self._scopes[tape.tape, None] = scope
        return scope

    def _read_changes(self) -> dict[Place, int]:
        """Return the places of the messages that the child revised, retracted or restored, each with the last seq.

        Only of those that an entry names: what goes or returns along with a tool call does so in the parent as well.
        A clear of the child's, and undoing it, is its own affair.
        """
        found: dict[Place, int] = {}
        after = self.since
        newest = self.young.head.seq
        while after < newest and (
            rows := self._tx.all(self._sql.entries_after, (self.young.tape_id, after, newest, 500))
        ):
            for row in rows:
                after = row[2]
                if row[3] not in ("append", "revise", "retract", "restore", "switch") or row[8] is None:
                    continue
                entry = payloads.decode(row[3], row[11], row[8])
                places: list[Place] = []
                match entry:
                    case payloads.Append():
                        # A lane has the number of its first entry: here another branch begins, be it at the root.
                        begins = row[14] == row[2]
                        self._moved = self._moved or begins or entry.lo is not None
                    case payloads.Revise():
                        places = [entry.place]
                        self._moved = self._moved or bool(entry.shows)
                    case payloads.Retract():
                        places = [*entry.places, *entry.marks]
                    case payloads.Restore():
                        named = entry.shows[: max(len(entry.ids) - len(entry.marks), 0)]
                        places = [back.place for back in (*named, *entry.marks)]
                        self._moved = True
                    case _:
                        self._moved = True
                for place in places:
                    found[place] = after
        return found

    # -- what is new

    def new(self) -> list[New]:
        """Return the messages on the child's active path that were never taken, root first."""
        if self._new is None:
            scope = self._now(self.young)
            floor = 0
            if not self._moved:
                # Then all up to where the head stood at the last merge is as it was, and was taken.
                row = self._tx.one(self._sql.entry, (self.young.tape_id, self.since))
                floor = row[15] if row is not None else 0
            rows: list[Any] = []
            end = scope.head.place
            while end != ROOT and end.tape is None and end.ordinal > floor:
                # The head knows where its lane begins; most often that is all there is to know.
                base = None if scope.beside_head(end) else self._reader._base(self._tx, scope, end)
                lo = scope.head.lo if base is None else base.ordinal
                rows[:0] = self._reader._rows(self._tx, scope, end, max(lo, floor))
                if lo <= floor:
                    break
                end = base or self._reader._base(self._tx, scope, end)
            self._new = [self._found(row) for row in rows if self._is_new(row[1])]
        return self._new

    def _is_new(self, placed: int) -> bool:
        if placed <= self.squashed:
            return False
        return placed > self.since or self._copy_of(placed) is None

    def _found(self, row: Any) -> New:
        body = payloads.body_of(row[3], row[4], row[5])
        kind, version, raw = row[3], row[4], row[5]
        if row[2] != row[1]:
            first = self._tx.one(self._sql.body, (self.young.tape_id, row[1]))
            if first is None or first[2] is None:
                raise Corrupt(self.young.tape, row[1], "the entry that placed the message is missing")
            kind, version, raw = first[0], first[1], first[2]
        placing = payloads.decode(kind, version, raw)
        generated = not isinstance(placing, payloads.Append) or placing.generated
        return New(body.id, row[1], body.message, generated, body.tokens)

    def _copy_of(self, placed: int) -> Place | None:
        """Return the place of the parent's copy of a message that the child placed at a seq."""
        row = self._tx.one(self._sql.entry_by_key, (self.parent.tape_id, ids.copy_key(self.young.tape, placed)))
        return Place(row[14], row[15]) if row is not None and row[3] == "append" else None

    def last(self) -> dict[str, Any] | None:
        """Return the last message on the child's active path."""
        scope = self._now(self.young)
        rows = self._reader._last(self._tx, scope, scope.head.place, 1)
        return payloads.body_of(rows[0][3], rows[0][4], rows[0][5]).message if rows else None

    def unsettled(self) -> list[str]:
        """Return the tool calls that the parent's path still waits for.

        Read from the end, a few messages first and then more and more, until the last round of calls and results is
        known: most often the last message tells.
        """
        scope = self._now(self.parent)
        calls, end, count = divergence.OpenCalls(), scope.head.place, _FIRST_PAGE
        while rows := self._reader._last(self._tx, scope, end, count):
            for row in rows:
                if not calls.add(*toolcalls.find(payloads.body_of(row[3], row[4], row[5]).message)):
                    return calls.open
            if len(rows) < count:
                break
            last = rows[-1]
            end = self._reader._before(self._tx, scope, scope.at(last[7], last[0], scope.placed_on(last)))
            count *= 8
        return calls.open

    # -- what differs

    def divergences(self) -> list[divergence.Divergence]:
        """Return the messages that both have and that the child named since the two last agreed."""
        if self._divergences is None:
            self._divergences = []
            if self._touched:
                parent_then = as_of(self._tx, self._scope(self.parent.tape, self._agreed))
                # A clear of the child's is its own affair, so look through it.
                child_then = as_of(self._tx, self._scope(self.young.tape, self.since or 1), clears=False)
                for place, seq in self._touched.items():
                    found = self._in_parent(place)
                    if found is not None:
                        self._divergences.append(self._compare(place, found, seq, parent_then, child_then))
        return self._divergences

    def _compare(
        self, own: Place, place: Place, seq: int, parent_then: TapeLookup, child_then: TapeLookup
    ) -> divergence.Divergence:
        """Compare how a message stands and stood, at its place in the child and at its place in the parent."""
        young, parent = self.young.view(), self.parent.view()
        stands, holds = young.standing(own), parent.standing(place)
        written = stands.body if stands.of is None else 0
        named = parent.body(holds.body, holds.of).id
        base, _ = _state(child_then, _inherited(own, self.young.tape), 0, named)
        theirs, _ = _state(young, own, 0, named)
        before, was_hidden = _state(parent_then, _inherited(place, self.parent.tape), 0, named)
        ours, hidden = _state(parent, place, parent.head.cleared, named)
        return divergence.Divergence(named, seq, written, base, theirs, before, ours, was_hidden, hidden)

    def _in_parent(self, place: Place) -> Place | None:
        """Return the place in the parent of what the child inherited or what was taken from it before."""
        if place.tape is not None:
            return Place(place.lane, place.ordinal, None if place.tape == self.parent.tape else place.tape)
        return self._copy_of(self.young.view().standing(place).placed)


def _inherited(place: Place, tape: str) -> Place:
    """Return a place of a tape as a fork of it calls it."""
    return Place(place.lane, place.ordinal, place.tape or tape)


def _state(look: TapeLookup, place: Place, cleared: int, named: str) -> tuple[dict[str, Any] | None, bool]:
    """Return what a message says (None if it is out) under the parent's name for it, and whether it is hidden."""
    standing = look.standing(place)
    if standing.out(cleared):
        return None, False
    message = look.body(standing.body, standing.of).message
    if "id" in message:
        message = {**message, "id": named}
    return message, not standing.visible(cleared)
