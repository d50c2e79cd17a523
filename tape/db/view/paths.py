"""Finding the way through the view: which tape as of which seq, and the rows that hold on a path.

A path is read as ranges: one per lane that it crosses. What a read costs depends on what it returns, not on how long
the tape is or how often its messages were revised. On a fork the same ranges lead into the ancestors, each as of the
seq at which it was forked off, and what the fork made of inherited messages is laid over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from tape.core import strict
from tape.core.entries import ids, payloads
from tape.core.entries.payloads import ROOT, Place
from tape.core.records import Message, micros
from tape.core.view.fold import CLOSED, Head
from tape.db.engine.transaction import Database, Transaction
from tape.db.sql.rows import HeadRow, PlaceRow
from tape.db.view.lineage import Family, place_at
from tape.db.view.rows import entry_from_row, head_from_row, message_from_row
from tape.errors import Corrupt, InvalidEntry, UnknownMessage

__all__ = ["ALL", "Paths", "Point", "Row", "Scope"]

Point = int | datetime | str | None
ALL = 2**31 - 1
"""As many rows as there are."""
_FIRST_STRETCH = 512
_MANY = 16
"""So many tapes are asked in one statement rather than one by one."""

Row = Sequence[Any]


class Scope(msgspec.Struct):
    """A tape as of a seq: where its head stood, which clear was in force, and what it inherits."""

    tape: str
    id: int
    seq: int
    now: bool
    head: Head
    clear: tuple[int, Place, bool] | None
    """The clear in force: its seq, where the head stood, and whether messages came back from under it."""
    family: Family | None = None

    @property
    def cleared(self) -> int:
        """The seq up to which nothing holds."""
        return self.clear[0] if self.clear is not None else 0

    def beside_head(self, place: Place) -> bool:
        """Whether a place is in the head's lane, whose start the head knows."""
        head = self.head.place
        return place.lane == head.lane and place.tape == head.tape

    def number(self, place: Place) -> int:
        """Return the number of the tape that a place is on."""
        return self.id if place.tape is None or self.family is None else self.family.number(place.tape)

    def at(self, lane: int, ordinal: int, number: int) -> Place:
        """Return the place that a row names, where 0 and the tape's own number both mean this tape."""
        return place_at(lane, ordinal, 0 if number == self.id else number, self.family)

    def layers(self) -> list[tuple[int, int, int, int]]:
        """Return this tape and its ancestors, nearest first: number, seen up to, cleared up to, with overrides.

        What lies behind a clear of a nearer tape is gone with it, so the list ends there.
        """
        found = [(self.id, self.seq, self.cleared, 1)]
        for member in self.family.members if self.family is not None else ():
            if found[-1][2]:
                break
            found.append((member.number, member.asof, member.cleared, int(member.overriding)))
        return found

    def tapes(self) -> list[tuple[int, int]]:
        """Return this tape and all of its ancestors, nearest first: number, seen up to.

        Also what lies behind a clear has its place: a single message of it may be back.
        """
        members = self.family.members if self.family is not None else ()
        return [(self.id, self.seq), *((member.number, member.asof) for member in members)]

    def lineage(self) -> str:
        """Return the layers as statements take them."""
        return msgspec.json.encode(self.layers()).decode()

    def name(self, number: int) -> str:
        """Return the name of this tape or of an ancestor."""
        return self.tape if number == self.id or self.family is None else self.family.name(number) or self.tape

    def placed_on(self, row: Row) -> int:
        """Return the number of the tape that placed the message in a row; rows of the tape itself do not say."""
        return int(row[8]) if len(row) > 8 else self.id


class Paths:
    """Reads rows of the view for one owner, inside a transaction that the caller holds."""

    def __init__(self, database: Database, *, owner: str | None) -> None:
        self._db = database
        self._sql = database.statements
        self.owner = owner

    # -- what to read

    def row(self, tx: Transaction, tape: str) -> HeadRow | None:
        """Return the row of a tape that this owner sees, or None."""
        row = tx.one(self._sql.head, (tape,))
        if row is None or row.tape_status == "purged" or (self.owner is not None and row.owner != self.owner):
            return None
        return row

    def scope(self, tx: Transaction, tape: str, point: Point = None, *, until: int | None = None) -> Scope | None:
        """Return the tape as of ``point``, or None when there is no such tape; ``until`` a seq, as was told then."""
        row = self.row(tx, tape)
        if row is None:
            return None
        scope = self.standing(tx, tape, *head_from_row(row))
        if until is not None:
            self._freeze(tx, scope, until)
        if isinstance(point, str):
            point = self._named(tx, scope, point)
        if point is not None:
            self._freeze(tx, scope, self._seq_at(tx, scope, point))
        return scope

    def standing(self, tx: Transaction, tape: str, number: int, head: Head, family: Family | None) -> Scope:
        """Return a tape as it stands, given its head."""
        scope = Scope(tape, number, head.seq, True, head, None, family)
        if head.cleared:
            self._find_clear(tx, scope)
        return scope

    def _freeze(self, tx: Transaction, scope: Scope, seq: int) -> None:
        """Go back to an earlier seq."""
        if seq < scope.seq:
            scope.seq, scope.now = seq, False
            if seq == 0:
                # Before its first entry a fork was nobody's child.
                scope.family = None
            self._rewind(tx, scope)
            self._find_clear(tx, scope)

    def _find_clear(self, tx: Transaction, scope: Scope) -> None:
        """Find the clear that is in force."""
        found = tx.one(self._sql.clear_at, (scope.id, scope.seq))
        scope.clear = None
        if found is not None:
            scope.clear = (found[0], place_at(found[2], found[3], found[1], scope.family), bool(found[4]))
        scope.head.cleared = scope.cleared

    def _rewind(self, tx: Transaction, scope: Scope) -> None:
        """Set the head to what is known of it after an earlier seq: every entry records where it stood."""
        scope.head = head = Head.blank(b"")
        row = tx.one(self._sql.entry, (scope.id, scope.seq))
        if row is None:
            return
        entry = entry_from_row(scope.tape, row, scope.family)
        head.seq, head.hash, head.stamp = scope.seq, bytes(row[12]), entry.stamp
        head.lo = self._lo(tx, scope, entry.head)
        head.place = entry.head
        status = tx.one(self._sql.slot_at, (scope.id, "status", scope.seq))
        if status is not None:
            payload = entry_from_row(scope.tape, status, scope.family).payload
            if isinstance(payload, payloads.Status):
                head.status, head.reason = payload.status, payload.reason
            elif isinstance(payload, payloads.Discard):
                head.status, head.reason = "discarded", payload.reason
            head.completed = status[10] if head.status in CLOSED else 0

    def _named(self, tx: Transaction, scope: Scope, name: str) -> int | None:
        """Return the seq of the newest anchor of that name; or move the head to the message of that id."""
        if not strict.is_identifier(name):
            raise InvalidEntry("point", f"tape {scope.tape!r} has no anchor or message {strict.shown(name)}")
        anchor = tx.one(self._sql.anchor_named, (scope.id, name, scope.seq))
        try:
            message, _ = self._place(tx, scope, name)
        except UnknownMessage:
            message = None
        if anchor is not None and message is not None:
            raise InvalidEntry("point", f"{name!r} is both an anchor and a message; give a seq")
        if anchor is not None:
            return int(anchor[0])
        if message is None:
            raise InvalidEntry("point", f"tape {scope.tape!r} has no anchor or message {strict.shown(name)}")
        self._held(tx, scope, message, name)
        scope.head.lo = self._lo(tx, scope, message)
        scope.head.place = message
        scope.head.tip = False
        return None

    def _seq_at(self, tx: Transaction, scope: Scope, point: Point) -> int:
        """Return the seq that a point names."""
        if isinstance(point, bool) or not isinstance(point, int | datetime):
            raise InvalidEntry("point", f"must be a seq, a datetime or a name, not {type(point).__name__}")
        if isinstance(point, int):
            if not 0 <= point <= scope.seq:
                raise InvalidEntry("point", f"seq {strict.shown(point)} is not between 0 and the head, {scope.seq}")
            return point
        if point.tzinfo is None:
            raise InvalidEntry("point", "must be a datetime with a time zone")
        # Stamps never fall along a tape, so the last entry at or before a moment is found by halving.
        stamp, low, high = micros(point), 0, scope.seq
        while low < high:
            middle = (low + high + 1) // 2
            row = tx.one(self._sql.stamp_at, (scope.id, middle))
            if row is None:
                raise Corrupt(scope.tape, middle, "the entry is missing")
            low, high = (middle, high) if row[0] <= stamp else (low, middle - 1)
        return low

    # -- paths

    def _base(self, tx: Transaction, scope: Scope, place: Place) -> Place:
        """Return where a place's lane branches off."""
        number = scope.number(place)
        row = tx.one(self._sql.lane, (number, place.lane))
        if row is None:
            raise Corrupt(scope.tape, place.lane, "the lane is missing")
        if 0 < place.ordinal <= row[2]:
            # Whoever follows the path up would never arrive.
            raise Corrupt(scope.tape, place.lane, "the lane branches off below its own messages")
        return scope.at(row[1], row[2], row[0] or number) if row[1] else ROOT

    def _lo(self, tx: Transaction, scope: Scope, place: Place) -> int:
        """Return the depth at which a place's lane branches off."""
        if place.lane == ROOT.lane:
            return 0
        return scope.head.lo if scope.beside_head(place) else self._base(tx, scope, place).ordinal

    def _walk(self, tx: Transaction, scope: Scope, end: Place, floor: int) -> list[tuple[Place, int]]:
        """Return the lanes crossed from ``end`` down to the floor, nearest first: each its last place and its start."""
        if end == ROOT:
            return []
        rows = tx.all(self._sql.walk, (scope.number(end), end.lane, end.ordinal, max(floor, 0)))
        return [(scope.at(lane, hi, number), lo) for number, lane, lo, hi in rows]

    def _on_path(self, tx: Transaction, scope: Scope, end: Place, place: Place) -> bool:
        """Whether ``place`` is on the path from the root to ``end``."""
        if place == ROOT or (place.lane == end.lane and place.tape == end.tape):
            return place.ordinal <= end.ordinal
        return any(
            last.lane == place.lane and last.tape == place.tape and lo < place.ordinal <= last.ordinal
            for last, lo in self._walk(tx, scope, end, place.ordinal - 1)
        )

    def _floor(self, tx: Transaction, scope: Scope, end: Place) -> int:
        """Return the depth up to which nothing on the path can hold because of a clear."""
        if scope.clear is None:
            return 0
        _, place, touched = scope.clear
        if touched or place.ordinal > end.ordinal or not self._on_path(tx, scope, end, place):
            return 0
        return place.ordinal

    def _rows(
        self, tx: Transaction, scope: Scope, end: Place, lo: int, most: int = ALL, *, last: bool = False
    ) -> list[Row]:
        """Return the rows that hold in a lane from ``lo`` to ``end``: the first ascending, or the last descending."""
        if end.tape is not None and scope.family is not None:
            return self._inherited_rows(tx, scope, end, lo, most, last=last)
        if scope.now:
            statement = self._sql.last_rows_now if last else self._sql.rows_now
            return tx.all(statement, (scope.id, end.lane, lo, end.ordinal, scope.cleared, most))
        statement = self._sql.last_rows_then if last else self._sql.rows_then
        return tx.all(statement, (scope.id, end.lane, lo, end.ordinal, scope.cleared, scope.seq, most))

    def _inherited_rows(
        self, tx: Transaction, scope: Scope, end: Place, lo: int, most: int, *, last: bool
    ) -> list[Row]:
        """Return the rows that hold in a stretch of an ancestor's lane, as this tape sees them."""
        layers, number = scope.layers(), scope.number(end)
        overrides = tx.all(self._sql.overrides_in, (scope.lineage(), number, end.lane, lo, end.ordinal))
        found: dict[int, Row] = {}
        for layer in layers:
            if layer[0] == number:
                statement = self._sql.last_rows_then if last else self._sql.rows_then
                # Every override can take away one of the rows, so that many more are asked for.
                wanted = min(most + len(overrides), ALL)
                base = tx.all(statement, (number, end.lane, lo, end.ordinal, layer[2], layer[1], wanted))
                found = {row[0]: (*row, number) for row in base}
        rows = _overridden(layers, found, overrides)
        rows.sort(key=_ordinal, reverse=last)
        return rows[:most]

    def _path(self, tx: Transaction, scope: Scope, end: Place, floor: int) -> list[Row]:
        """Return the rows on the path to ``end`` below ``floor``, root first."""
        if end == ROOT:
            return []
        floor = max(floor, self._floor(tx, scope, end))
        if self._lo(tx, scope, end) <= floor:
            return self._rows(tx, scope, end, floor)
        params = (scope.number(end), end.lane, end.ordinal, floor)
        if scope.family is None:
            if scope.now:
                rows = tx.all(self._sql.path_now, (*params, scope.cleared))
            else:
                rows = tx.all(self._sql.path_then, (*params, scope.cleared, scope.seq))
        else:
            lineage = scope.lineage()
            base = tx.all(self._sql.family_path, (*params, lineage))
            overrides = tx.all(self._sql.family_overrides, (*params, lineage))
            # On one path no two rows have the same depth, so depth tells them apart.
            rows = _overridden(scope.layers(), {row[0]: row for row in base}, overrides)
        rows.sort(key=_ordinal)
        return rows

    def _last(self, tx: Transaction, scope: Scope, end: Place, count: int) -> list[Row]:
        """Return the last ``count`` rows on the path to ``end``, deepest first."""
        found: list[Row] = []
        floor = self._floor(tx, scope, end)
        while end != ROOT and end.ordinal > floor and len(found) < count:
            if end.tape is not None:
                return found + self._last_inherited(tx, scope, end, floor, count - len(found))
            base = None if scope.beside_head(end) else self._base(tx, scope, end)
            lo = scope.head.lo if base is None else base.ordinal
            found += self._rows(tx, scope, end, max(lo, floor), count - len(found), last=True)
            if lo <= floor or len(found) >= count:
                break
            end = base or self._base(tx, scope, end)
        return found

    def _last_inherited(self, tx: Transaction, scope: Scope, end: Place, floor: int, count: int) -> list[Row]:
        """Return the last ``count`` rows on the path to a place in an ancestor, deepest first.

        A deep family has a lane per level, so the path is read by stretches of depth and not lane by lane.
        """
        stretch = count
        while True:
            above = max(end.ordinal - stretch, floor)
            rows = self._path(tx, scope, end, above)
            if len(rows) >= count or above <= floor:
                return rows[::-1][:count]
            stretch *= 4

    def _first(self, tx: Transaction, scope: Scope, end: Place, above: int, count: int) -> list[Row]:
        """Return the first ``count`` rows on the path to ``end`` deeper than ``above``."""
        found: list[Row] = []
        above = max(above, self._floor(tx, scope, end))
        for last, lo in reversed(self._walk(tx, scope, end, above)):
            if len(found) >= count:
                break
            found += self._rows(tx, scope, last, max(lo, above), count - len(found))
        return found

    def _before(self, tx: Transaction, scope: Scope, place: Place) -> Place:
        """Return the place above another on its path."""
        if place.ordinal - 1 > self._lo(tx, scope, place):
            return Place(place.lane, place.ordinal - 1, place.tape)
        return self._base(tx, scope, place)

    def anchor_row(self, tx: Transaction, scope: Scope, end: Place) -> tuple[int, int, int] | None:
        """Return seq, depth and tape of the latest anchor on the path to ``end``."""
        row = None
        if end != ROOT:
            # Most often it stands in the lane of the head; otherwise look further and further up the path.
            lo = self._lo(tx, scope, end)
            if end.tape is None:
                row = tx.one(self._sql.anchor_in_lane, (scope.id, end.lane, end.ordinal, lo, scope.cleared, scope.seq))
            if row is not None:
                return row[0], row[1], scope.id
            stretch = _FIRST_STRETCH
            while lo > 0 or end.tape is not None:
                floor = max(end.ordinal - stretch, 0)
                params = (scope.number(end), end.lane, end.ordinal, floor)
                if scope.family is not None:
                    row = tx.one(self._sql.family_anchor, (*params, scope.lineage()))
                else:
                    row = tx.one(self._sql.anchor_on_path, (*params, scope.cleared, scope.seq))
                if row is not None:
                    return row[0], row[1], row[2] if scope.family is not None else scope.id
                if floor == 0 or (stretch == _FIRST_STRETCH and not self._anchored(tx, scope)):
                    break
                stretch *= 4
        # An anchor set before the first message stands above every path.
        if scope.family is not None:
            row = tx.one(self._sql.root_anchor, (scope.lineage(),))
            return None if row is None else (row[0], row[1], row[2])
        row = tx.one(self._sql.anchor_in_lane, (scope.id, ROOT.lane, 0, -1, scope.cleared, scope.seq))
        return None if row is None else (row[0], row[1], scope.id)

    def _anchored(self, tx: Transaction, scope: Scope) -> bool:
        """Whether there may be an anchor in the view at all: cheaper to ask than to walk a path of many lanes."""
        layers = scope.layers()
        return len(layers) > _MANY or any(
            tx.one(self._sql.anchor_list, (number, cleared, asof + 1, 1)) is not None
            for number, asof, cleared, _ in layers
        )

    def _messages(
        self, tx: Transaction, scope: Scope, rows: list[Row], first: Place | None = None, *, whole: bool = False
    ) -> list[Message]:
        """Return rows of a path as messages, each with the one before it as its parent; above a whole path is none."""
        if not rows:
            return []
        parent = None
        if rows[0][0] > 1 and not whole:
            if first is None:
                first = scope.at(rows[0][7], rows[0][0], scope.placed_on(rows[0]))
            above = self._last(tx, scope, self._before(tx, scope, first), 1)
            if above:
                parent = message_from_row(scope.tape, above[0], None).id
        found = []
        tape, family = scope.tape, scope.family
        for row in rows:
            if family is not None:
                tape = scope.name(scope.placed_on(row))
            message = message_from_row(tape, row, parent)
            parent = message.id
            found.append(message)
        return found

    def _place(self, tx: Transaction, scope: Scope, message_id: str) -> tuple[Place, int]:
        """Return the place of a message that was on the tape by then, and the entry that placed it."""
        row = None
        if strict.is_identifier(message_id):
            key = ids.message_key(message_id)
            if scope.family is None:
                own = tx.one(self._sql.place_by_key, (scope.id, key))
                own = own or tx.one(self._sql.place_by_alias, (scope.id, message_id))
                row = None if own is None or own.seq > scope.seq else PlaceRow(*own, 0, 0)
            else:
                # Also what lies behind a clear is a known message, so ask the whole family.
                lineage = scope.family.parameter((scope.id, scope.seq, 0, 1))
                found = tx.all(self._sql.family_place, (lineage, key, message_id))
                row = min(found, key=lambda one: one.n, default=None)
        if row is None:
            raise UnknownMessage(scope.tape, message_id)
        return scope.at(row.lane, row.ordinal, row.tape_id), row.seq

    def _held(self, tx: Transaction, scope: Scope, place: Place, message_id: str) -> Row:
        rows = self._rows(tx, scope, place, place.ordinal - 1)
        if not rows:
            raise UnknownMessage(scope.tape, message_id, retracted=True)
        return rows[0]

    def _end(self, tx: Transaction, scope: Scope, branch: str | None) -> Place:
        """Return the head, or the message that a caller named as the end of a branch."""
        if branch is None:
            return scope.head.place
        place, _ = self._place(tx, scope, branch)
        self._held(tx, scope, place, branch)
        return place


def _ordinal(row: Row) -> Any:
    return row[0]


def _overridden(layers: list[tuple[int, int, int, int]], found: dict[int, Row], overrides: list[Row]) -> list[Row]:
    """Return inherited rows, each as the nearest tape that says something of it has it.

    ``found`` is what the ancestors held by depth, ``overrides`` what forks in the lineage made of it, nearest
    first. On one path no two rows have the same depth.
    """
    decided: set[int] = set()
    cleared = {layer[0]: layer[2] for layer in layers}
    for row in overrides:
        ordinal = row[0]
        if ordinal not in decided:
            decided.add(ordinal)
            if row[2] is None or row[9] <= cleared[row[10]]:
                found.pop(ordinal, None)
            else:
                found[ordinal] = row
    return list(found.values())
