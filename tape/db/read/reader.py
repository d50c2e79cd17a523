"""Reading: every question that a handle can ask of a tape, each answered against one unchanging state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tape.core import strict
from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.memory.state import Usage, usage_of
from tape.core.records import (
    Ancestor,
    Anchor,
    Descendant,
    Entry,
    Lineage,
    MergeReceipt,
    Message,
    Page,
    Source,
    TapeInfo,
)
from tape.db.engine.transaction import Transaction
from tape.db.sql import HEAD_COLUMNS, TAPE_COLUMNS
from tape.db.sql.rows import EntryRow
from tape.db.view.branches import Branches
from tape.db.view.lineage import Family
from tape.db.view.memory import Recall
from tape.db.view.paths import ALL, Point, Row, Scope
from tape.db.view.rows import anchor_from, entry_from_row, info_from_facts, merge_receipt
from tape.errors import Corrupt, InvalidEntry, TapeNotFound, UnknownMessage

__all__ = ["Reader", "absent"]


class Reader(Branches, Recall):
    """Answers every question about tapes of one database."""

    def freeze(self, tape: str, point: Point) -> tuple[int, str | None]:
        """Return the seq that a point names now, and the message if it names one.

        A name or a moment looked up again at every read would follow what is recorded later.
        """

        def work(tx: Transaction) -> tuple[int, str | None]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                return 0, None
            if isinstance(point, str) and tx.one(self._sql.anchor_named, (scope.id, point, scope.seq)) is None:
                return scope.seq, point
            return scope.seq, None

        return self._db.read(work)

    def messages(self, tape: str, point: Point, branch: str | None) -> list[Message]:
        """Return the whole path from the root to the head or to ``branch``."""

        def work(tx: Transaction) -> list[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, branch, point)
                return []
            return self._messages(tx, scope, self._path(tx, scope, self._end(tx, scope, branch), 0), whole=True)

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
        count = ALL - 1 if limit is None else strict.limit(limit)
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
            raise InvalidEntry("max_bytes", f"must be a positive number, not {strict.shown(max_bytes)}")
        if before is not None and after is not None:
            raise InvalidEntry("after", "give before= or after=, not both")

        def work(tx: Transaction) -> Page[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, branch or before or after, point)
                return Page([])
            end = self._end(tx, scope, branch)
            if after is not None:
                above = self._cursor(tx, scope, end, after, "after").ordinal
                rows, more = _bounded(lambda most: self._first(tx, scope, end, above, most), count, max_bytes)
            else:
                if before is not None:
                    end = self._before(tx, scope, self._cursor(tx, scope, end, before, "before"))
                rows, more = _bounded(lambda most: self._last(tx, scope, end, most), count, max_bytes)
                rows.reverse()
            found = self._messages(tx, scope, rows)
            cursor = None
            if more and found:
                cursor = found[-1].id if after is not None else found[0].id
            return Page(found, cursor, more)

        return self._db.read(work)

    def _cursor(self, tx: Transaction, scope: Scope, end: Place, message_id: str, field: str) -> Place:
        """Return the place of the message at which a page begins; it may be retracted, but must be on the path."""
        place, _ = self._place(tx, scope, message_id)
        if not self._on_path(tx, scope, end, place):
            raise InvalidEntry(field, f"message {message_id!r} is not on this path")
        return place

    def message(self, tape: str, point: Point, message_id: str) -> Message:
        """Return one message; raises UnknownMessage when it is not in the view."""

        def work(tx: Transaction) -> Message:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                raise UnknownMessage(tape, message_id)
            place, _ = self._place(tx, scope, message_id)
            return self._messages(tx, scope, [self._held(tx, scope, place, message_id)], place)[0]

        return self._db.read(work)

    def children(self, tape: str, point: Point, message_id: str) -> list[Message]:
        """Return the messages that follow one directly in the view, oldest branch first."""

        def work(tx: Transaction) -> list[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                raise UnknownMessage(tape, message_id)
            place, _ = self._place(tx, scope, message_id)
            self._held(tx, scope, place, message_id)
            return self._children(tx, scope, place, message_id)

        return self._db.read(work)

    def heads(self, tape: str, point: Point) -> list[Message]:
        """Return the last message of every branch, in the order in which they were placed."""

        def work(tx: Transaction) -> list[Message]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                return []
            return self._heads(tx, scope)

        return self._db.read(work)

    def _anchor(self, tx: Transaction, scope: Scope, end: Place) -> tuple[Anchor | None, int]:
        """Return the latest anchor on the path to ``end`` (deepest, then newest) and its depth."""
        row = self.anchor_row(tx, scope, end)
        if row is None:
            return None, 0
        seq, ordinal, number = row
        entry = tx.one(self._sql.entry, (number, seq))
        tape = scope.at(0, 0, number).tape or scope.tape
        if entry is None:
            raise Corrupt(tape, seq, "the anchor's entry is missing")
        return self._anchor_at(tx, scope, tape, entry), ordinal

    def _anchor_at(self, tx: Transaction, scope: Scope, tape: str, row: Row) -> Anchor:
        return self._anchor_of(tx, scope, entry_from_row(tape, row, scope.family))

    def _anchor_of(self, tx: Transaction, scope: Scope, entry: Entry) -> Anchor:
        """Return an anchor, marked stale when a message it was made from has changed or gone since."""
        anchor = anchor_from(entry, stale=False)
        for message_id in anchor.source_ids:
            place, _ = self._place(tx, scope, message_id)
            rows = self._rows(tx, scope, place, place.ordinal - 1)
            if not rows or self._newer(scope, place, rows[0], entry):
                return msgspec.structs.replace(anchor, stale=True)
        return anchor

    def _newer(self, scope: Scope, place: Place, row: Row, entry: Entry) -> bool:
        """Whether the body in a row was recorded after an entry; what a nearer tape recorded is always newer."""
        body_tape = scope.name(row[11]) if len(row) > 11 else place.tape or scope.tape
        if body_tape == entry.tape:
            return bool(row[2] > entry.seq)
        tapes = [scope.name(number) for number, _ in scope.tapes()]
        return tapes.index(body_tape) < tapes.index(entry.tape)

    def anchors(self, tape: str, point: Point, limit: int, before: int | Anchor | None) -> list[Anchor]:
        """Return the last anchors of the tape, newest last."""
        limit = strict.limit(limit)
        end = _before(tape, before)

        def work(tx: Transaction) -> list[Anchor]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                return []
            layers: list[tuple[int, int, int, int]] = []
            for number, asof, cleared, overriding in scope.layers():
                if end is not None and scope.name(number) == end[0]:
                    layers.append((number, min(end[1] - 1, asof), cleared, overriding))
                elif end is None or layers:
                    layers.append((number, asof, cleared, overriding))
            found: list[Anchor] = []
            for number, asof, cleared in tx.all(self._sql.family_anchored, (msgspec.json.encode(layers).decode(),)):
                name = scope.name(number)
                rows = tx.all(self._sql.anchor_list, (number, cleared, asof + 1, limit - len(found)))
                found += [self._anchor_of(tx, scope, entry_from_row(name, row, scope.family)) for row in rows]
                if len(found) == limit:
                    break
            return found[::-1]

        return self._db.read(work)

    def entries(
        self, tape: str, point: Point, after: int, kinds: frozenset[str] | None, limit: int | None
    ) -> Iterator[Entry]:
        """Yield the tape's own entries in order, a page at a time, holding nothing open in between."""
        left = limit if limit is not None else ALL

        def work(tx: Transaction) -> tuple[list[EntryRow], bool, Family | None]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                return [], False, None
            most = min(500, left) if kinds is None else 500
            rows = tx.all(self._sql.entries_after, (scope.id, after, scope.seq, most))
            return rows, len(rows) == most, scope.family

        more = True
        while more and left > 0:
            rows, more, family = self._db.read(work)
            for row in rows:
                after = row[2]
                if kinds is None or row[3] in kinds:
                    yield entry_from_row(tape, row, family)
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
            fork = tx.one(self._sql.fork, (scope.id,)) if scope.family is not None else None
            used = self.slot(tx, scope, "usage", inherited=False)
            totals = Usage() if used is None else usage_of(used[1], tape, used[0])
            if not scope.now:
                self._facts_then(tx, scope, facts)
            facts["tokens"], facts["cost"] = totals.input_tokens + totals.output_tokens, totals.cost
            return info_from_facts(facts, *(fork[:2] if fork is not None else (None, None)))

        return self._db.read(work)

    def _facts_then(self, tx: Transaction, scope: Scope, facts: dict[str, Any]) -> None:
        """Set what is known of a tape to what was known at an earlier seq."""
        head = scope.head
        count = tx.one(self._sql.count_then, (scope.id, scope.seq, scope.cleared))
        last = tx.one(self._sql.last_append, (scope.id, scope.seq))
        facts.update(
            status=head.status,
            reason=head.reason,
            completed_at=head.completed,
            head_seq=scope.seq,
            head_hash=head.hash,
            head_messages=int(count[0]) if count is not None else 0,
            head_last_message=int(last[0]) if last is not None else 0,
            head_stamp=head.stamp,
        )
        opening = self._slot(tx, scope, None) if scope.seq else None
        first = opening if isinstance(opening, payloads.Open) else payloads.Open()
        name, labels, status = (self._slot(tx, scope, slot) for slot in ("name", "labels", "status"))
        facts["name"] = name.name if isinstance(name, payloads.Label) else first.name
        held = labels.labels if isinstance(labels, payloads.Label) else first.labels
        facts["labels"] = msgspec.json.encode(held)
        facts["redirect"] = status.redirect if isinstance(status, payloads.Status) else None

    def _slot(self, tx: Transaction, scope: Scope, slot: str | None) -> payloads.Payload | None:
        """Return the entry that a named fact of the tape goes back to; None names the tape's first."""
        if slot is None:
            row = tx.one(self._sql.entry, (scope.id, 1))
        else:
            row = tx.one(self._sql.slot_at, (scope.id, slot, scope.seq))
        return None if row is None else entry_from_row(scope.tape, row, scope.family).payload

    def inherited(self, tape: str) -> dict[str, int]:
        """Return the ancestors of a tape, each with the seq up to which it is inherited."""

        def work(tx: Transaction) -> dict[str, int]:
            scope = self.scope(tx, tape)
            members = scope.family.members if scope is not None and scope.family is not None else []
            return {member.tape: member.asof for member in members}

        return self._db.read(work)

    def lineage(self, tape: str) -> Lineage:
        """Return a tape's family and what was merged into it."""

        def work(tx: Transaction) -> Lineage:
            scope = self.scope(tx, tape)
            if scope is None:
                return Lineage([], [], [], {})
            members = scope.family.members if scope.family is not None else []
            descendants: list[Descendant] = []
            merges: list[MergeReceipt] = []
            sources: dict[str, Source] = {}
            queue = deque([(tape, scope.id)])
            while queue:
                parent, number = queue.popleft()
                for name, child, seq, state, merge_seq in tx.all(self._sql.forks_of, (number,)):
                    descendants.append(Descendant(name, parent, seq, state))
                    queue.append((name, child))
                    while merge_seq and state == "merged" and number == scope.id:
                        found = self._merge(tx, scope, merge_seq, name)
                        if found is None:
                            break
                        receipt, told = found
                        merges.append(receipt)
                        sources.update((message_id, Source(name, placed)) for message_id, placed in told.messages)
                        merge_seq = told.previous if told.previous < merge_seq else 0
            merges.sort(key=lambda receipt: receipt.seq)
            return Lineage([Ancestor(m.tape, m.asof) for m in members], descendants, merges, sources)

        return self._db.read(work)

    def linked(self, tape: str, child: str) -> int | None:
        """Return the seq up to which a tape's fork was last merged into or linked to it, or None if it never was."""

        def work(tx: Transaction) -> int | None:
            scope, young = self.scope(tx, tape), self.scope(tx, child)
            row = tx.one(self._sql.fork, (young.id,)) if scope is not None and young is not None else None
            if scope is None or row is None or row[0] != tape or row[2] != "merged":
                return None
            found = self._merge(tx, scope, row[4], child)
            return None if found is None else found[1].seq

        return self._db.read(work)

    def _merge(self, tx: Transaction, scope: Scope, seq: int, child: str) -> tuple[MergeReceipt, payloads.Merge] | None:
        """Return the receipt of the merge recorded at ``seq``, and all that its entry tells.

        A fork that was imported without the later part of its parent has merges that are not here.
        """
        row = tx.one(self._sql.entry, (scope.id, seq))
        told = entry_from_row(scope.tape, row, scope.family).payload if row is not None else None
        if row is None or not isinstance(told, payloads.Merge) or told.tape != child:
            return None
        return merge_receipt(scope.tape, row, told, duplicate=False), told

    def placed(self, tape: str, message_id: str) -> tuple[str, int] | None:
        """Return the tape and the seq that placed a message, in the view or not, or None."""

        def work(tx: Transaction) -> tuple[str, int] | None:
            scope = self.scope(tx, tape)
            if scope is None:
                return None
            try:
                place, seq = self._place(tx, scope, message_id)
            except UnknownMessage:
                return None
            return place.tape or tape, seq

        return self._db.read(work)

    def recorded(self, tape: str, key: str) -> Entry | None:
        """Return the entry of a tape under a key, if there is one."""

        def work(tx: Transaction) -> Entry | None:
            scope = self.scope(tx, tape)
            row = tx.one(self._sql.entry_by_key, (scope.id, key)) if scope is not None else None
            return None if scope is None or row is None else entry_from_row(tape, row, scope.family)

        return self._db.read(work)

    def exists(self, tape: str) -> bool:
        """Whether there is such a tape for this owner."""
        return self._db.read(lambda tx: self.row(tx, tape)) is not None


def _before(tape: str, before: int | Anchor | None) -> tuple[str, int] | None:
    """Return the tape and the seq before which anchors are wanted; a seq alone is one of the tape's own."""
    if before is None:
        return None
    if isinstance(before, Anchor):
        return before.tape, before.seq
    if isinstance(before, bool) or not isinstance(before, int):
        raise InvalidEntry("before", f"must be an anchor or a seq, not {strict.shown(before)}")
    return tape, strict.seq(before, "before")


def _bounded(read: Callable[[int], list[Row]], count: int, max_bytes: int | None) -> tuple[list[Row], bool]:
    """Return as many rows as count and bytes allow, at least one, and whether some were left out."""
    if max_bytes is None:
        rows = read(count + 1)
        return rows[:count], len(rows) > count
    # How many rows fill the bytes is not known before: read few, and more as long as they all fit.
    stretch = 32
    while True:
        rows = read(min(stretch, count + 1))
        size = 0
        for index, row in enumerate(rows[:count]):
            size += len(row[5] or b"")
            if size > max_bytes and index:
                return rows[:index], True
        if len(rows) < stretch or len(rows) > count:
            return rows[:count], len(rows) > count
        stretch *= 4


def absent(tape: str, message_id: str | None, point: Point) -> None:
    """A tape that was never written reads as empty; but a point or a message on it is not there."""
    if message_id is not None:
        raise UnknownMessage(tape, message_id)
    if point is not None and point != 0:
        raise TapeNotFound(tape)
