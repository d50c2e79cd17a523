"""One tape in one writing transaction: entries are planned against a moving head and sent in few statements.

An entry is planned (what it says), sealed (seq, time, hash), folded (what it changes) and kept. ``finish`` sends what
is kept, and moves the head. A plan that asks the database something has it sent earlier, so that it sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from itertools import groupby
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tape import new_ids
from tape.core import strict
from tape.core.entries import chain, ids, payloads
from tape.core.entries.payloads import Place
from tape.core.meta import CLOCK
from tape.core.places import RECORDS, owner_record, read_reason
from tape.core.plan.intents import Intent, Planned, SetHidden
from tape.core.plan.keys import GIVEN
from tape.core.plan.messages import AddMessage
from tape.core.records import Receipt
from tape.core.view.fold import CLOSED, EventRow, Head, Op, OpenRow, fold
from tape.db.engine.failures import Stale
from tape.db.engine.postgres import citus
from tape.db.engine.transaction import Database, Transaction, Wrote, lock_key
from tape.db.record.projection import apply, tape_of
from tape.db.sql.compiler import Insert, Statement
from tape.db.sql.rows.entries import BARE_COLUMNS
from tape.db.view.ancestry import Ancestry
from tape.db.view.tape_view import NOW, TapeView
from tape.db.view.values import head_from_row
from tape.errors import HeadMoved, InvalidEntry, OwnerMoved, TapeClosed, TapeExists, TapeHidden, TapeNotFound, ViewMoved

__all__ = [
    "Call",
    "Heads",
    "PlanView",
    "Shared",
    "TapeState",
    "Writing",
    "check_here",
    "head_values",
    "keep",
    "load",
    "system_clock",
]

T = TypeVar("T")
_KEPT_HEADS = 10_000

TapeState = tuple[int, Head, Ancestry | None]
"""What is kept of a tape between writes: its number, its head and, of a fork, its ancestry."""
Heads = dict[tuple[str | None, str], TapeState]
"""What is kept of tapes, by owner and tape: whose tape it is was found out by whoever wrote it first."""


class Call(Struct, gc=False):
    """What the caller said beside the entries themselves."""

    tape: str
    actor: str | None = None
    meta: bytes | None = None
    expected_head: int | None = None
    expected_view: int | None = None
    key: str | None = None
    """The caller's key, if there is one."""
    batch: str | None = None
    """The caller's key of a whole batch, whose entries are keyed by their index."""
    create: payloads.Open | None = None
    """The tape must not exist yet; this is its first entry."""
    create_key: str = ""
    """The key of that first entry, fixed before the first attempt like every other."""
    tape_meta: bytes | None = None
    reuse: bool = False
    """The id may have been that of a tape which was purged."""
    exists_ok: bool = False
    """If the tape exists, nothing is written."""


class Shared(Struct):
    """What all writes of a store share."""

    database: Database
    owner: str | None
    clock: Callable[[], int]
    heads: Heads | None
    """The heads as the last writes left them; None on a caller's connection, who may roll them back."""
    new_id: Callable[[], str] = new_ids.new_id
    """Where generated ids and keys come from."""
    fenced: bool = False
    """Whether owners may be moved to another database: then whoever reads a tape to write it looks for that."""

    def kept(self, tape: str) -> TapeState | None:
        """Return what is kept of a tape, if this owner has written it."""
        return None if self.heads is None else self.heads.get((self.owner, tape))


def keep(heads: Heads, new: Heads) -> None:
    """Add heads to those that are kept; when they become too many, all older ones are forgotten."""
    if len(heads) >= _KEPT_HEADS:
        heads.clear()
    heads.update(new)


def system_clock() -> int:
    """Return the time by which entries are stamped: microseconds since 1970."""
    return time.time_ns() // 1000


def load(shared: Shared, tx: Transaction, call: Call) -> TapeState | None:
    """Read the tape that a call writes; None when there is none yet."""
    row = tx.one(tx.statements.head, (call.tape,))
    if row is None:
        return None
    if shared.owner is not None and row.owner != shared.owner:
        raise TapeNotFound(call.tape)
    check_here(shared, tx, row.owner)
    if row.tape_status == "purged":
        if call.create is None:
            raise TapeNotFound(call.tape)
        if not call.reuse:
            raise TapeExists(call.tape, purged=True)
        # The tombstone keeps the id by which it was known; its row gives up the name.
        tx.run(tx.statements.rename_tape, (f"{strict.RESERVED}{row.number}:{call.tape}", row.number))
        return None
    return head_from_row(row)


def check_here(shared: Shared, tx: Transaction, owner: str | None, *, creating: str | None = None) -> None:
    """Raise OwnerMoved if the owner's tapes are no longer to be written in this database.

    Whoever creates a tape locks the record, so that a move sees either the new tape or none after it. To write one that
    is there needs no lock: a move adds an entry to each, after which every writer reads the tape anew and comes here.
    """
    if not shared.fenced or owner is None:
        return
    record = owner_record(owner)
    if creating is not None:
        if creating.startswith(RECORDS):
            raise InvalidEntry("tape", f"must not begin with {RECORDS!r}, which is reserved for the records of a pool")
        tx.lock(record)
    row = tx.one(tx.statements.head, (record,))
    # A record has no owner. Whoever has one may not say where another's tapes are.
    if row is not None and row.owner is None and row.tape_status in CLOSED:
        raise OwnerMoved(owner, read_reason(row.reason).database)


def head_values(head: Head, ancestry: Ancestry | None, blob: Callable[[bytes], Any] = bytes) -> tuple[Any, ...]:
    """Return a head as the columns of its row, in the order of ``HEAD_COLUMNS``."""
    place = head.place
    return (
        head.seq,
        blob(head.hash),
        head.stamp,
        0 if place.tape is None else tape_of(place, ancestry),
        place.lane,
        place.ordinal,
        head.lo,
        1 if head.tip else 0,
        head.cleared,
        head.messages,
        head.last_message,
        1 if head.aliased else 0,
        head.view,
    )


def inserts(tx: Transaction, width: int) -> Statement[Any]:
    """Return the statement for entries with so many columns."""
    return tx.statements.insert_bare if width == len(BARE_COLUMNS) else tx.statements.insert_entry


class Writing:
    """The entries of one transaction on one tape."""

    previous: Place | None = None
    """The place of the message before, in a batch."""
    hot = False
    """Whether nothing is locked, as on PostgreSQL behind a kept head: then one statement writes all, or nothing."""
    defers = False
    deferred: str | None = None
    """The id that the one statement of a hot append checks by itself, to save a round trip."""
    free: Set[str] = frozenset()
    """Ids that no message has, found out for a whole batch at once."""
    written = False
    _sending = False
    """Whether something is on its way, or got lost there."""

    def __init__(self, shared: Shared, tx: Transaction, call: Call, state: TapeState | None) -> None:
        self.shared = shared
        self.tx = tx
        self.call = call
        self.tape = call.tape
        self.existed = state is not None
        self.tape_id, self.head, self.ancestry = state if state is not None else (0, Head.blank(chain.ZERO), None)
        self._was = self.head.hash
        """The hash that the head's row has until it is moved."""
        self._entries: list[tuple[Any, ...]] = []
        self._ops: list[Op] = []

    @property
    def state(self) -> TapeState:
        """What is kept of the tape, once this is committed."""
        return self.tape_id, self.head, self.ancestry

    # -- several calls, one after the other

    def go_on(self, call: Call) -> None:
        """Write for another call."""
        self.call = call
        self.previous = None
        self.free = frozenset()

    def mark(self) -> tuple[Head, list[tuple[Any, ...]], int, int]:
        """Return where the tape is, to come back to it."""
        return self.head, self._entries, len(self._entries), len(self._ops)

    def undo(self, mark: tuple[Head, list[tuple[Any, ...]], int, int]) -> None:
        """Forget what was added since; Stale if something of it was sent already."""
        head, entries, length, ops = mark
        if self._entries is not entries:
            if self._sending or self.head is not head:
                raise Stale
            return
        self.head = head
        del self._entries[length:], self._ops[ops:]

    # -- what a view asks, on all that was recorded so far

    def one(self, statement: Statement[T], params: Sequence[Any]) -> T | None:
        """Run a query and return its first row, if any."""
        if self._entries:
            self.flush()
        return self.tx.one(statement, params)

    def value(self, statement: Statement[Any], params: Sequence[Any]) -> Any:
        """Run a query and return the first column of its first row, or None when there is no row."""
        if self._entries:
            self.flush()
        return self.tx.value(statement, params)

    def all(self, statement: Statement[T], params: Sequence[Any]) -> list[T]:
        """Run a query and return its rows."""
        if self._entries:
            self.flush()
        return self.tx.all(statement, params)

    def now(self, clock: Callable[[], int]) -> int:
        """Return the time by the database's clock."""
        return self.tx.now(clock)

    # -- recording

    def view(self) -> PlanView:
        """Return the tape as it stands now, for a plan or whoever else has a question."""
        return PlanView(self, self.tx.statements, self.tape, self.tape_id, self.head, self.ancestry, NOW)

    def check(self, intents: Sequence[Intent]) -> None:
        """Refuse a write on a hidden tape, on a head that the caller does not know, or on a closed tape."""
        if not all(isinstance(intent, SetHidden) for intent in intents):
            self.check_shown()
        elif not self.existed:
            raise TapeNotFound(self.tape)
        self.check_head()
        if any(intent.changes_view for intent in intents):
            self.check_open()

    def check_head(self) -> None:
        """Raise HeadMoved or ViewMoved unless the head and the last change of the view are where the caller expects."""
        call, head = self.call, self.head
        if call.expected_head is not None and call.expected_head != head.seq:
            raise HeadMoved(self.tape, call.expected_head, head.seq)
        if call.expected_view is not None and call.expected_view != head.view:
            raise ViewMoved(self.tape, call.expected_view, head.view)

    def check_shown(self) -> None:
        """Raise TapeHidden if the tape is hidden."""
        if self.head.hidden is not None:
            raise TapeHidden(self.tape, self.head.hidden or None)

    def check_open(self) -> None:
        """Raise TapeClosed, with the tape on which to go on if there is one, if the tape is closed."""
        if self.head.status in CLOSED:
            redirect = self.tx.value(self.tx.statements.redirect, (self.tape,))
            raise TapeClosed(self.tape, self.head.status, self.head.reason, redirect)

    def look_ahead(self, intents: Sequence[Intent]) -> None:
        """Ask for the ids of a batch all at once, if each would be asked for when its turn comes."""
        if len(intents) > 1 and self.existed:
            named = [intent for intent in intents if isinstance(intent, AddMessage) and not intent.generated]
            if self.head.aliased or self.ancestry is not None or any(intent.key.origin is GIVEN for intent in named):
                message_ids = {intent.id for intent in named}
                self.free = message_ids - self.view().taken(message_ids)

    def record_all(self, intents: Sequence[Intent]) -> list[Receipt]:
        """Plan and add intents on a head that was not read in this transaction."""
        call, head = self.call, self.head
        conditional = call.expected_head is not None or call.expected_view is not None
        if conditional or head.status in CLOSED or head.hidden is not None:
            self.check(intents)
        if len(intents) > 1:
            self.look_ahead(intents)
        return [self.record(intent) for intent in intents]

    def record(self, intent: Intent) -> Receipt:
        """Plan an intent against the tape as it stands now, and add its entry."""
        if not self.existed:
            self.create()
        planned = intent.plan(self.head, self.view(), self.previous)
        meta = self.call.meta if intent.meta is None else intent.meta
        receipt = self._add(planned, intent.key.value, intent.source, self.shared.clock(), meta)
        if isinstance(intent, AddMessage):
            if self.free:
                self.free -= {intent.id}
            if type(intent) is AddMessage:
                self.previous = planned.place
        return receipt

    def create(self) -> None:
        """Make the tape and its first entry."""
        opening = self.call.create or payloads.Open(owner=self.shared.owner)
        check_here(self.shared, self.tx, opening.owner, creating=self.tape)
        stamp = max(self.shared.clock(), 0)
        labels = msgspec.json.encode(opening.labels) if opening.labels else None
        # What the row says of the tape, the first entry says as well: only entries are covered by hashes.
        meta = self.call.tape_meta
        facts = (self.tape, opening.owner, opening.agent, opening.name, labels, meta)
        self.tape_id = self.tx.value(self.tx.statements.create_tape, (*facts, "active", None, stamp, None, None, None))
        self.tx.run(self.tx.statements.create_head, (self.tape_id, *head_values(self.head, self.ancestry)))
        self.existed = True
        self._add(Planned(opening, self.head.place), self.call.create_key or self.shared.new_id(), None, stamp, meta)

    def _add(self, planned: Planned, key: str, source: tuple[str, int] | None, now: int, meta: bytes | None) -> Receipt:
        """Seal the entry, fold it, and keep both for the flush."""
        head, call, payload, place = self.head, self.call, planned.payload, planned.place
        stamp = now
        if now < head.stamp:
            # Time never runs backwards on a tape; what the clock said is kept beside it.
            stamp = head.stamp
            fields = msgspec.json.decode(meta) if meta is not None else {}
            meta = msgspec.json.encode({**fields, CLOCK: now})
        raw = payloads.encode(payload) if planned.plain else payloads.recordable(payload)
        seq = head.seq + 1
        actor, kind, version = call.actor, payload.kind, payload.version
        digest = chain.digest(raw)
        sealed = chain.link(head.hash, digest, self.tape, seq, kind, key, actor, source, meta, stamp, version, place)
        self.head, ops = fold(head, seq, sealed, stamp, place, payload)
        tape_id, head_tape = self.tape_id, 0 if place.tape is None else tape_of(place, self.ancestry)
        tx = self.tx
        body, hash = tx.blob(raw), tx.blob(sealed)
        row: tuple[Any, ...]
        if actor is None and source is None and meta is None and not tx.postgres:
            row = (tape_id, seq, kind, key, body, stamp, version, hash, head_tape, place.lane, place.ordinal)
        else:
            cited = source if source is not None else (None, None)
            row = (tape_id, seq, kind, key, actor, *cited, body, meta, stamp, version, hash)
            row += (head_tape, place.lane, place.ordinal)
        self._entries.append(row)
        self._ops += ops
        self.written = True
        if tx.unit is not None:
            tx.unit.wrote = Wrote(self.tape, seq, key, sealed)
        return Receipt(self.tape, seq, key, planned.message_id, sealed.hex())

    def flush(self) -> None:
        """Send what is pending, so that a question to the database sees it."""
        if not self._entries:
            return
        if self.hot:
            raise Stale
        self._sending = True
        (entries, ops), database = self.hand_over(), self.shared.database
        if database.fault is not None:
            database.point("entry")
        self.send(entries)
        if database.fault is not None:
            database.point("view")
        apply(self.tx, self.tape_id, ops, self.head, self.ancestry)
        self._sending = False

    def send(self, entries: Sequence[tuple[Any, ...]]) -> None:
        """Send rows of entries in their order, which is that of the feed."""
        if self.tx.statements.sharded:
            citus.insert_entries(self.tx, entries)
            return
        for width, rows in groupby(entries, len):
            self.tx.many(inserts(self.tx, width), list(rows))

    def hand_over(self) -> tuple[list[tuple[Any, ...]], list[Op]]:
        """Return what is to be sent, for whoever sends it: rows of entries, and what they change in the view."""
        entries, ops = self._entries, self._ops
        self._entries, self._ops = [], []
        return entries, ops

    def head_row(self) -> tuple[Any, ...]:
        """Return what moves the head: its new columns, the tape, and the hash that the row has until then."""
        blob = self.tx.blob
        return (*head_values(self.head, self.ancestry, blob), self.tape_id, blob(self._was))

    def move_head(self) -> None:
        """Send everything and move the head, so that reads in this transaction see the tape as it now is."""
        tx, sql, database = self.tx, self.tx.statements, self.shared.database
        plain = self._plain_rows()
        if plain is None or database.fault is not None or sql.sharded:
            self.flush()
            if database.fault is not None:
                database.point("head")
            moved = tx.run(sql.move_head, self.head_row())
        else:
            # The usual append: everything is worked out before the three statements, which then follow each other.
            entries, (opens, rows) = self._entries, plain
            self._entries, self._ops = [], []
            moved = tx.append(inserts(tx, len(entries[0])), entries, opens, rows, self.head_row())
        if moved != 1:
            tx.check_revision()
            raise Stale
        self._was = self.head.hash

    def _plain_rows(self) -> tuple[Insert, Sequence[tuple[Any, ...]]] | None:
        """Return the rows that the entries add to the view, one each, and their statement; None if that is not all."""
        entries, ops = self._entries, self._ops
        # Entries of two widths have two statements.
        if len(ops) != len(entries) or len({*map(len, entries)}) != 1:
            return None
        if len(ops) == 1 and type(ops[0]) is EventRow:
            return self.tx.statements.insert_event, ((self.tape_id, ops[0].name, ops[0].seq),)
        opened = self.opened(ops)
        return (self.tx.statements.open_row, opened) if opened else None

    def opened(self, ops: Sequence[Op]) -> Sequence[tuple[int, ...]]:
        """Return the rows that bodies open at places of this tape; none if something else changes as well."""
        rows = []
        for op in ops:
            if type(op) is not OpenRow or op.place.tape is not None:
                return ()
            rows.append((self.tape_id, op.place.lane, op.place.ordinal, op.placed, op.since, op.body))
        return rows

    def finish(self) -> None:
        """Send the rest and move the head, which is kept for the next append once this one is committed."""
        if not self.written:
            return
        if self.hot:
            self._finish_hot()
        else:
            self.move_head()
        if self.shared.heads is not None:
            self.tx.after_commit = self._keep

    def _keep(self) -> None:
        """Keep the head that the commit has left, for the next append."""
        heads = self.shared.heads
        if heads is not None:
            keep(heads, {(self.shared.owner, self.tape): self.state})

    def _finish_hot(self) -> None:
        """On PostgreSQL, write plain appends or an event as one statement that compares the head.

        Anything else needs the lock.
        """
        tx, entries, plain = self.tx, self._entries, self._plain_rows()
        if plain is None:
            raise Stale
        opens, rows = plain
        self.shared.database.point("entry")
        key = lock_key(self.tape, tx.statements.tables.lock_space)
        head = (key, *head_values(self.head, self.ancestry), self.tape_id, self._was)
        lookup: tuple[Any, ...] = ()
        if self.deferred is not None:
            lookup = (self.view().whole_lineage(), ids.message_key(self.deferred), self.deferred)
        if not tx.hot(head, entries, rows, lookup, event=opens is tx.statements.insert_event):
            raise Stale


class PlanView(TapeView):
    """A tape as the transaction that writes it sees it, with what is not yet sent.

    The writing does not keep it: then the two would refer to each other, and every append would leave a cycle behind
    for the garbage collector.
    """

    tx: Writing

    def clock(self) -> int:
        """Return the time by the database's clock."""
        return self.tx.now(self.tx.shared.clock)

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry of the tape it was placed on."""
        writing = self.tx
        if message_id in writing.free:
            return None
        if writing.defers and self.forked:
            writing.defers, writing.deferred = False, message_id
            return None
        return super().place(message_id)
