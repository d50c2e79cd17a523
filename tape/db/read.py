"""Reading the view: the current one, or the one that held at an earlier seq, by the same indexed queries.

A path is read as ranges: one per lane that it crosses. What a read costs depends on what it returns, not on how
long the tape is or how often its messages were revised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tape.core import context as contexts
from tape.core import ids, payloads
from tape.core.fold import Head
from tape.core.payloads import ROOT, Place
from tape.core.records import Anchor, Entry, Message, Page, TapeInfo, micros, moment
from tape.db.rows import anchor_from, entry_from_row, head_from_row, message_from_row
from tape.db.statements import HEAD_COLUMNS, TAPE_COLUMNS
from tape.db.transaction import Database, Transaction
from tape.errors import Corrupt, InvalidEntry, TapeNotFound, UnknownMessage

__all__ = ["Point", "Reader", "Scope"]

Point = int | datetime | str | None
_ALL = 2**31 - 1
_FIRST_STRETCH = 512

Row = Sequence[Any]


class Scope(msgspec.Struct):
    """A tape as of a seq: where its head stood, and which clear was in force."""

    tape: str
    id: int
    seq: int
    now: bool
    head: Head
    clear: tuple[int, int, int, bool] | None
    """The clear in force: its seq, lane, ordinal, and whether messages came back from under it."""

    @property
    def cleared(self) -> int:
        """The seq up to which nothing holds."""
        return self.clear[0] if self.clear is not None else 0


class Reader:
    """Answers every question about tapes of one database."""

    def __init__(self, database: Database, *, owner: str | None) -> None:
        self._db = database
        self._sql = database.statements
        self._owner = owner

    # -- what to read

    def scope(self, tx: Transaction, tape: str, point: Point = None) -> Scope | None:
        """Return the tape as of ``point``, or None when there is no such tape."""
        row = tx.one(self._sql.head, (tape,))
        if row is None or row[2] == "purged" or (self._owner is not None and row[1] != self._owner):
            return None
        tape_id, head = row[0], head_from_row(row)
        if isinstance(point, str):
            point = self._named(tx, tape, tape_id, head, point)
        seq = head.seq if point is None else self._seq_at(tx, tape, tape_id, head, point)
        clear = None
        if point is not None and seq < head.seq:
            head = self._head_at(tx, tape, tape_id, seq)
            found = tx.one(self._sql.clear_at, (tape_id, seq))
            clear = (found[0], found[1], found[2], bool(found[3])) if found is not None else None
            head.cleared = clear[0] if clear is not None else 0
            return Scope(tape, tape_id, seq, False, head, clear)
        if head.cleared:
            found = tx.one(self._sql.clear_at, (tape_id, seq))
            clear = (found[0], found[1], found[2], bool(found[3])) if found is not None else None
        return Scope(tape, tape_id, seq, True, head, clear)

    def _head_at(self, tx: Transaction, tape: str, tape_id: int, seq: int) -> Head:
        """Return what is known of the head after ``seq``: every entry records where it stood."""
        head = Head.blank(b"")
        row = tx.one(self._sql.entry, (tape_id, seq))
        if row is None:
            return head
        head.seq, head.hash, head.stamp, head.place = seq, bytes(row[12]), row[10], Place(row[14], row[15])
        head.lo = self._lo(tx, tape, tape_id, head.place.lane)
        status = tx.one(self._sql.slot_at, (tape_id, "status", seq))
        if status is not None:
            payload = entry_from_row(tape, status).payload
            if isinstance(payload, payloads.Status):
                head.status, head.reason = payload.status, payload.reason
        return head

    def _seq_at(self, tx: Transaction, tape: str, tape_id: int, head: Head, point: Point) -> int:
        """Return the seq that a point names."""
        if isinstance(point, bool) or not isinstance(point, int | datetime):
            raise InvalidEntry("point", f"must be a seq, a datetime or a name, not {type(point).__name__}")
        if isinstance(point, int):
            if not 0 <= point <= head.seq:
                raise InvalidEntry("point", f"seq {point} is not between 0 and the head, {head.seq}")
            return point
        if point.tzinfo is None:
            raise InvalidEntry("point", "must be a datetime with a time zone")
        # Stamps never fall along a tape, so the last entry at or before a moment is found by halving.
        stamp, low, high = micros(point), 0, head.seq
        while low < high:
            middle = (low + high + 1) // 2
            row = tx.one(self._sql.stamp_at, (tape_id, middle))
            if row is None:
                raise Corrupt(tape, middle, "the entry is missing")
            low, high = (middle, high) if row[0] <= stamp else (low, middle - 1)
        return low

    def _named(self, tx: Transaction, tape: str, tape_id: int, head: Head, name: str) -> int | None:
        """Return the seq of the newest anchor of that name; or move the head to the message of that id."""
        anchor = tx.one(self._sql.anchor_named, (tape_id, name, head.seq))
        message = tx.one(self._sql.place_by_key, (tape_id, ids.message_key(name)))
        if message is None:
            message = tx.one(self._sql.place_by_alias, (tape_id, name))
        if anchor is not None and message is not None:
            raise InvalidEntry("point", f"{name!r} is both an anchor and a message; give a seq")
        if anchor is not None:
            return int(anchor[0])
        if message is None:
            raise InvalidEntry("point", f"tape {tape!r} has no anchor or message {name!r}")
        head.place = Place(message[0], message[1])
        head.lo = self._lo(tx, tape, tape_id, head.place.lane)
        return None

    def _lo(self, tx: Transaction, tape: str, tape_id: int, lane: int) -> int:
        if lane == ROOT.lane:
            return 0
        row = tx.one(self._sql.lane, (tape_id, lane))
        if row is None:
            raise Corrupt(tape, lane, "the lane is missing")
        return int(row[2])

    # -- paths

    def _lane_lo(self, tx: Transaction, scope: Scope, end: Place) -> int:
        if end == scope.head.place:
            return scope.head.lo
        return self._lo(tx, scope.tape, scope.id, end.lane)

    def _floor(self, tx: Transaction, scope: Scope, end: Place) -> int:
        """Return the depth up to which nothing on the path can hold because of a clear."""
        if scope.clear is None:
            return 0
        _, lane, ordinal, touched = scope.clear
        if touched or ordinal > end.ordinal:
            return 0
        if lane == end.lane:
            return ordinal
        walk = tx.all(self._sql.walk, (scope.id, end.lane, end.ordinal, max(ordinal - 1, 0)))
        return ordinal if any(at == lane and lo < ordinal <= hi for at, lo, hi in walk) else 0

    def _rows(
        self,
        tx: Transaction,
        scope: Scope,
        lane: int,
        lo: int,
        hi: int,
        most: int = _ALL,
        *,
        last: bool = False,
    ) -> list[Row]:
        """Return the rows that hold in a stretch of a lane: the first ones ascending, or the last ones descending."""
        if scope.now:
            statement = self._sql.last_rows_now if last else self._sql.rows_now
            return tx.all(statement, (scope.id, lane, lo, hi, scope.cleared, most))
        statement = self._sql.last_rows_then if last else self._sql.rows_then
        return tx.all(statement, (scope.id, lane, lo, hi, scope.cleared, scope.seq, most))

    def _path(self, tx: Transaction, scope: Scope, end: Place, floor: int) -> list[Row]:
        """Return the rows on the path to ``end`` below ``floor``, root first."""
        if end == ROOT:
            return []
        floor = max(floor, self._floor(tx, scope, end))
        lo = self._lane_lo(tx, scope, end)
        if lo <= floor:
            return self._rows(tx, scope, end.lane, floor, end.ordinal)
        params = (scope.id, end.lane, end.ordinal, floor, scope.cleared)
        if scope.now:
            rows = tx.all(self._sql.path_now, params)
        else:
            rows = tx.all(self._sql.path_then, (*params, scope.seq))
        rows.sort(key=_ordinal)
        return rows

    def _last(self, tx: Transaction, scope: Scope, end: Place, count: int) -> list[Row]:
        """Return the last ``count`` rows on the path to ``end``, deepest first."""
        found: list[Row] = []
        floor = self._floor(tx, scope, end)
        lane, hi = end.lane, end.ordinal
        while lane != ROOT.lane and hi > floor and len(found) < count:
            base = tx.one(self._sql.lane, (scope.id, lane))
            if base is None:
                raise Corrupt(scope.tape, lane, "the lane is missing")
            found += self._rows(tx, scope, lane, max(base[2], floor), hi, count - len(found), last=True)
            lane, hi = base[1], base[2]
        return found

    def _first(self, tx: Transaction, scope: Scope, end: Place, above: int, count: int) -> list[Row]:
        """Return the first ``count`` rows on the path to ``end`` deeper than ``above``."""
        found: list[Row] = []
        above = max(above, self._floor(tx, scope, end))
        if end == ROOT:
            return found
        for lane, lo, hi in reversed(tx.all(self._sql.walk, (scope.id, end.lane, end.ordinal, above))):
            if len(found) >= count:
                break
            found += self._rows(tx, scope, lane, max(lo, above), hi, count - len(found))
        return found

    def _messages(self, tx: Transaction, scope: Scope, rows: list[Row]) -> list[Message]:
        """Return rows of a path as messages, each with the one before it as its parent."""
        if not rows:
            return []
        parent = None
        ordinal, lane = rows[0][0], rows[0][7]
        if ordinal > 1:
            above = self._last(tx, scope, Place(lane, ordinal - 1), 1) if ordinal - 1 > 0 else []
            if above:
                parent = message_from_row(scope.tape, above[0], None).id
        found = []
        tape = scope.tape
        for row in rows:
            message = message_from_row(tape, row, parent)
            parent = message.id
            found.append(message)
        return found

    def _place(self, tx: Transaction, scope: Scope, message_id: str) -> Place:
        """Return the place of a message that was on the tape by then."""
        row = None
        if isinstance(message_id, str):
            row = tx.one(self._sql.place_by_key, (scope.id, ids.message_key(message_id)))
            if row is None:
                row = tx.one(self._sql.place_by_alias, (scope.id, message_id))
        if row is None or row[2] > scope.seq:
            raise UnknownMessage(scope.tape, message_id)
        return Place(row[0], row[1])

    def _held(self, tx: Transaction, scope: Scope, place: Place, message_id: str) -> Row:
        rows = self._rows(tx, scope, place.lane, place.ordinal - 1, place.ordinal)
        if not rows:
            raise UnknownMessage(scope.tape, message_id, retracted=True)
        return rows[0]

    def _end(self, tx: Transaction, scope: Scope, branch: str | None) -> Place:
        """Return the head, or the message that a caller named as the end of a branch."""
        if branch is None:
            return scope.head.place
        place = self._place(tx, scope, branch)
        self._held(tx, scope, place, branch)
        return place

    # -- questions

    def messages(self, tape: str, point: Point, branch: str | None) -> list[Message]:
        """Return the whole path from the root to the head or to ``branch``."""

        def work(tx: Transaction) -> list[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, branch, point)
                return []
            return self._messages(tx, scope, self._path(tx, scope, self._end(tx, scope, branch), 0))

        return self._db.read(work)

    def page(
        self,
        tape: str,
        point: Point,
        branch: str | None,
        limit: int | None,
        before: str | None,
        after: str | None,
        max_bytes: int | None,
    ) -> Page[Message]:
        """Return a stretch of the path: the last messages, those before one, or those after one."""
        for name, value in (("limit", limit), ("max_bytes", max_bytes)):
            if value is not None and (type(value) is not int or value <= 0):
                raise InvalidEntry(name, f"must be a positive number, not {value!r}")
        if before is not None and after is not None:
            raise InvalidEntry("after", "give before= or after=, not both")
        count = limit if limit is not None else _ALL - 1

        def work(tx: Transaction) -> Page[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, branch or before or after, point)
                return Page([])
            end = self._end(tx, scope, branch)
            if after is not None:
                at = self._on_path(tx, scope, end, after)
                rows = self._first(tx, scope, end, at.ordinal, count + 1)
                rows, more = self._fit(rows, count, max_bytes)
            else:
                if before is not None:
                    at = self._on_path(tx, scope, end, before)
                    end = Place(at.lane, at.ordinal - 1) if at.ordinal > 1 else ROOT
                    if end != ROOT and end.ordinal <= self._lo(tx, scope.tape, scope.id, end.lane):
                        base = tx.one(self._sql.lane, (scope.id, end.lane))
                        end = Place(base[1], base[2]) if base is not None else ROOT
                rows, more = self._fit(self._tail(tx, scope, end, count, max_bytes), count, max_bytes)
                rows.reverse()
            found = self._messages(tx, scope, rows)
            cursor = None
            if more and found:
                cursor = found[-1].id if after is not None else found[0].id
            return Page(found, cursor, more)

        return self._db.read(work)

    def _on_path(self, tx: Transaction, scope: Scope, end: Place, message_id: str) -> Place:
        place = self._place(tx, scope, message_id)
        walk = tx.all(self._sql.walk, (scope.id, end.lane, end.ordinal, max(place.ordinal - 1, 0)))
        if not any(lane == place.lane and lo < place.ordinal <= hi for lane, lo, hi in walk):
            raise InvalidEntry("before" if end else "after", f"message {message_id!r} is not on this path")
        return place

    def _tail(self, tx: Transaction, scope: Scope, end: Place, count: int, max_bytes: int | None) -> list[Row]:
        """Return the last rows of a path, deepest first, one more than asked for; by bytes, as few as tell."""
        if max_bytes is None:
            return self._last(tx, scope, end, count + 1)
        stretch = 32
        while True:
            rows = self._last(tx, scope, end, min(stretch, count + 1))
            size = sum(len(row[5] or b"") for row in rows)
            if size > max_bytes or len(rows) < stretch or len(rows) > count:
                return rows
            stretch *= 4

    def _fit(self, rows: list[Row], count: int, max_bytes: int | None) -> tuple[list[Row], bool]:
        """Return as many rows as count and bytes allow, at least one, and whether some were left out."""
        kept = rows[:count]
        if max_bytes is not None:
            size = 0
            for index, row in enumerate(kept):
                size += len(row[5] or b"")
                if size > max_bytes and index:
                    return kept[:index], True
        return kept, len(rows) > len(kept)

    def message(self, tape: str, point: Point, message_id: str) -> Message:
        """Return one message; raises UnknownMessage when it is not in the view."""

        def work(tx: Transaction) -> Message:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, None, point)
                raise UnknownMessage(tape, message_id)
            place = self._place(tx, scope, message_id)
            return self._messages(tx, scope, [self._held(tx, scope, place, message_id)])[0]

        return self._db.read(work)

    def children(self, tape: str, point: Point, message_id: str) -> list[Message]:
        """Return the messages that follow one directly in the view, oldest branch first."""

        def work(tx: Transaction) -> list[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, None, point)
                raise UnknownMessage(tape, message_id)
            place = self._place(tx, scope, message_id)
            parent = self._held(tx, scope, place, message_id)
            rows = self._below(tx, scope, place)
            rows.sort(key=lambda row: row[1])
            name = message_from_row(tape, parent, None).id
            return [message_from_row(tape, row, name) for row in rows]

        return self._db.read(work)

    def _below(self, tx: Transaction, scope: Scope, place: Place) -> list[Row]:
        """Return the nearest rows that hold below a place, in its lane and in those that branch off before the next."""
        found: list[Row] = []
        queue = [(place.lane, place.ordinal)]
        while queue:
            lane, ordinal = queue.pop()
            following = self._rows(tx, scope, lane, ordinal, 2**62, 1)
            found += following
            stop = following[0][0] if following else 2**62
            branches = tx.all(self._sql.branches, (scope.id, lane, ordinal, stop, scope.seq))
            for (branch,) in branches:
                queue.append((branch, self._lo(tx, scope.tape, scope.id, branch)))
        return found

    def heads(self, tape: str, point: Point) -> list[Message]:
        """Return the last message of every branch, in the order in which they were placed."""

        def work(tx: Transaction) -> list[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, None, point)
                return []
            lanes = tx.all(self._sql.lane_list, (scope.id, scope.seq))
            # A lane's last message is a head unless a lane that branches off at or below it holds something.
            ends: dict[int, Row] = {}
            for lane, _, base in lanes:
                rows = self._rows(tx, scope, lane, base, 2**62, 1, last=True)
                if rows:
                    ends[lane] = rows[0]
            continued: set[int] = set()
            # Lanes are numbered in the order in which they were opened, so children come after their parents.
            for lane, up, at in reversed(lanes):
                if (lane in ends or lane in continued) and (up not in ends or at >= ends[up][0]):
                    continued.add(up)
            found = [row for lane, row in ends.items() if lane not in continued]
            found.sort(key=lambda row: row[1])
            return [self._messages(tx, scope, [row])[0] for row in found]

        return self._db.read(work)

    def context(self, tape: str, point: Point, branch: str | None, budget: int | None) -> contexts.Context:
        """Return the messages after the latest anchor on the path, and that anchor."""

        def work(tx: Transaction) -> tuple[list[Message], Anchor | None, int]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, branch, point)
                return [], None, 0
            end = self._end(tx, scope, branch)
            anchor, floor = self._anchor(tx, scope, end)
            return self._messages(tx, scope, self._path(tx, scope, end, floor)), anchor, scope.seq

        messages, anchor, head = self._db.read(work)
        return contexts.build(messages, anchor, head, budget)

    def _anchor(self, tx: Transaction, scope: Scope, end: Place) -> tuple[Anchor | None, int]:
        """Return the latest anchor on the path to ``end`` (deepest, then newest) and its depth."""
        row = None
        if end != ROOT:
            # Most often it stands in the lane of the head; otherwise look further and further up the path.
            lo = self._lane_lo(tx, scope, end)
            row = tx.one(self._sql.anchor_in_lane, (scope.id, end.lane, end.ordinal, lo, scope.cleared, scope.seq))
            stretch = _FIRST_STRETCH
            while row is None and lo > 0:
                floor = max(end.ordinal - stretch, 0)
                row = tx.one(
                    self._sql.anchor_on_path,
                    (scope.id, end.lane, end.ordinal, floor, scope.cleared, scope.seq),
                )
                if floor == 0:
                    break
                stretch *= 4
        if row is None:
            # An anchor set before the first message stands above every path.
            row = tx.one(self._sql.anchor_in_lane, (scope.id, ROOT.lane, 0, -1, scope.cleared, scope.seq))
        if row is None:
            return None, 0
        entry = tx.one(self._sql.entry, (scope.id, row[0]))
        if entry is None:
            raise Corrupt(scope.tape, row[0], "the anchor's entry is missing")
        return self._anchor_of(tx, scope, entry_from_row(scope.tape, entry)), row[1]

    def _anchor_of(self, tx: Transaction, scope: Scope, entry: Entry) -> Anchor:
        """Return an anchor, marked stale when a message it was made from has changed or gone since."""
        anchor = anchor_from(entry, stale=False)
        for message_id in anchor.source_ids:
            place = self._place(tx, scope, message_id)
            rows = self._rows(tx, scope, place.lane, place.ordinal - 1, place.ordinal)
            if not rows or rows[0][2] > entry.seq:
                return msgspec.structs.replace(anchor, stale=True)
        return anchor

    def anchors(self, tape: str, point: Point, limit: int, before: int | None) -> list[Anchor]:
        """Return the last anchors of the tape, newest last."""
        if type(limit) is not int or limit <= 0:
            raise InvalidEntry("limit", f"must be a positive number, not {limit!r}")

        def work(tx: Transaction) -> list[Anchor]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, None, point)
                return []
            end = scope.seq + 1 if before is None else min(before, scope.seq + 1)
            rows = tx.all(self._sql.anchor_list, (scope.id, scope.cleared, end, limit))
            return [self._anchor_of(tx, scope, entry_from_row(tape, row)) for row in reversed(rows)]

        return self._db.read(work)

    def entries(
        self, tape: str, point: Point, after: int, kinds: frozenset[str] | None, limit: int | None
    ) -> Iterator[Entry]:
        """Yield the tape's own entries in order, a page at a time, holding nothing open in between."""
        left = limit if limit is not None else _ALL

        def work(tx: Transaction) -> tuple[list[Row], bool]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                _absent(tape, None, point)
                return [], False
            most = min(500, left) if kinds is None else 500
            rows = tx.all(self._sql.entries_after, (scope.id, after, scope.seq, most))
            return rows, len(rows) == most

        more = True
        while more and left > 0:
            rows, more = self._db.read(work)
            for row in rows:
                after = row[2]
                if kinds is None or row[3] in kinds:
                    yield entry_from_row(tape, row)
                    left -= 1
                    if left == 0:
                        return

    def info(self, tape: str, point: Point) -> TapeInfo | None:
        """Return what is known of a tape without reading it."""

        def work(tx: Transaction) -> TapeInfo | None:
            scope = self.scope(tx, tape, point)
            if scope is None:
                return None
            row = tx.one(self._sql.info, (tape,))
            if row is None:
                return None
            facts = dict(zip((*TAPE_COLUMNS, *(f"head_{name}" for name in HEAD_COLUMNS)), row, strict=True))
            head = scope.head
            if not scope.now:
                head.messages = int((tx.one(self._sql.count_then, (scope.id, scope.seq, scope.cleared)) or [0])[0])
            return TapeInfo(
                id=tape,
                name=facts["name"],
                owner=facts["owner"],
                agent=facts["agent"],
                labels=msgspec.json.decode(facts["labels"]) if facts["labels"] is not None else [],
                meta=msgspec.json.decode(facts["meta"]) if facts["meta"] is not None else None,
                status=head.status,
                reason=head.reason,
                head=scope.seq,
                head_hash=head.hash.hex(),
                message_count=head.messages,
                entry_count=scope.seq,
                last_message_at=moment(head.last_message) if head.last_message else None,
                created_at=moment(facts["created_at"]),
                updated_at=moment(head.stamp),
                completed_at=moment(head.completed) if head.completed else None,
            )

        return self._db.read(work)

    def placed(self, tape: str, message_id: str) -> int | None:
        """Return the seq that placed a message, in the view or not, or None."""

        def work(tx: Transaction) -> int | None:
            scope = self.scope(tx, tape)
            try:
                place = self._place(tx, scope, message_id) if scope is not None else None
            except UnknownMessage:
                return None
            if scope is None or place is None:
                return None
            row = tx.one(self._sql.held, (scope.id, place.lane, place.ordinal))
            row = row or tx.one(self._sql.held_last, (scope.id, place.lane, place.ordinal))
            return None if row is None else int(row[0])

        return self._db.read(work)

    def exists(self, tape: str) -> bool:
        """Whether there is such a tape for this owner."""
        return self._db.read(lambda tx: self.scope(tx, tape)) is not None


def _ordinal(row: Row) -> Any:
    return row[0]


def _absent(tape: str, message_id: str | None, point: Point) -> None:
    """A tape that was never written reads as empty; but a point or a message on it is not there."""
    if message_id is not None:
        raise UnknownMessage(tape, message_id)
    if point is not None and point != 0:
        raise TapeNotFound(tape)
