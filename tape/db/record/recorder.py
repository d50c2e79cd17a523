"""Recording: from an intent to a committed entry and its projection.

One append goes: plan (what the entry says) → seal (seq, time, hash) → fold (what it changes) → apply (rows) →
commit. The head of a tape is kept in memory between appends, so the usual append reads nothing: if another process
wrote in between, the insert collides with its seq, the transaction is rolled back, and the second attempt reads
everything afresh under the lock. That second attempt is also where keys are looked up and where every refusal is
decided, before any other check, so that a retry after a lost reply is a duplicate and never an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tape.core import strict
from tape.core.entries import chain, ids, payloads
from tape.core.entries.payloads import Payload, Place
from tape.core.plan.intents import (
    HEAD,
    AddMessage,
    Intent,
    Plain,
    Planned,
    ReviseMessage,
    Taken,
    Unchanged,
    UpsertMessage,
    canonical,
    digest_of,
)
from tape.core.records import Receipt
from tape.core.view.fold import CLOSED, Head, Op, OpenRow, fold
from tape.db.engine.log import log, verbose
from tape.db.engine.transaction import Again, Collision, Database, Lost, Transaction, lock_key
from tape.db.feed.position import join_position
from tape.db.record.batches import Batch, find_batch
from tape.db.record.projection import apply, head_values, tape_of
from tape.db.sql import BARE_COLUMNS
from tape.db.view.lineage import Family
from tape.db.view.memory import Recall, Remembering
from tape.db.view.rows import head_from_row
from tape.errors import (
    CommitUnknown,
    Corrupt,
    HeadMoved,
    ProvenanceConflict,
    StoreBusy,
    StoreFailed,
    TapeClosed,
    TapeError,
    TapeExists,
    TapeNotFound,
)

__all__ = ["Call", "Opener", "Recorder", "Writing"]

_CACHED_HEADS = 10_000
_ATTEMPTS = 12


R = TypeVar("R")


class Call(Struct):
    """What the caller said beside the entries themselves."""

    tape: str
    actor: str | None = None
    meta: bytes | None = None
    expected_head: int | None = None
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


Opener = Callable[["Call"], "Writing"]
Kept = tuple[int, Head, Family | None]
"""What is kept of a tape between writes: its number, its head and, of a fork, its family."""


class _Stale(Exception):
    """The kept head may be out of date; decide again with everything read afresh."""


class Recorder:
    """Records intents on tapes of one database."""

    def __init__(
        self,
        database: Database,
        *,
        owner: str | None,
        clock: Callable[[], int],
        keep_heads: bool,
        slow: float,
    ) -> None:
        self._db = database
        self._sql = database.statements
        self._owner = owner
        self._clock = clock
        self.recall = Recall(database, owner=owner)
        self._slow = slow
        self._heads: dict[str, Kept] | None = {} if keep_heads else None

    def record(self, call: Call, intents: Sequence[Intent]) -> list[Receipt]:
        """Record all of ``intents`` in one transaction, or none of them."""
        fresh = self._heads is None or call.create is not None or (self._db.postgres and not _hot(intents))
        lost = 0
        began = time.monotonic()
        for attempt in range(_ATTEMPTS):
            try:
                receipts = self._db.write(call.tape, partial(self._attempt, call, intents, fresh))
            except (_Stale, Collision) as error:
                if fresh and attempt > 2:
                    raise self._collided([call.tape], error) from error
                fresh = True
            except Again:
                log.info("tape.retry", tape=call.tape, attempt=attempt)
                fresh = True
            except Lost as error:
                # The entry may be there. Its key was fixed before the first attempt, so the next one finds out.
                log.warning("tape.connection_lost", tape=call.tape, key=_key_of(call, intents), attempt=attempt)
                fresh = True
                lost += 1
                for intent in intents:
                    intent.settle_by_key()
                if lost > 2:
                    raise CommitUnknown(call.tape, _key_of(call, intents)) from error
            except (StoreFailed, StoreBusy) as error:
                # True of this attempt only: an earlier one may have been recorded.
                if lost:
                    raise CommitUnknown(call.tape, _key_of(call, intents)) from error
                raise
            else:
                took = time.monotonic() - began
                if took > self._slow or verbose():
                    self._tell(call, receipts, took)
                return receipts
        if lost:
            raise CommitUnknown(call.tape, _key_of(call, intents))
        raise StoreBusy(time.monotonic() - began)

    def _collided(self, tapes: Sequence[str], error: Exception) -> TapeError:
        """Return what it means that an entry collides with something that a fresh look did not show."""
        if self._heads is None:
            return StoreFailed(
                f"tape {tapes[0]!r} was written since this transaction began, and its isolation level hides that: "
                "roll back and run it again"
            )
        for tape in tapes:
            row = self._db.read(lambda tx, tape=tape: tx.one(self._sql.head, (tape,)))  # type: ignore[misc]
            if row is None or (self._owner is not None and row[1] != self._owner):
                # Row-level security hides the tape of another owner, but its id is taken.
                return TapeNotFound(tape)
        return Corrupt(tapes[0], 0, f"the entry collides with one that cannot be found: {error}")

    def forget(self, tape: str) -> None:
        """Drop what is kept of a tape's head."""
        if self._heads is not None:
            self._heads.pop(tape, None)

    def _tell(self, call: Call, receipts: list[Receipt], took: float) -> None:
        if took > self._slow:
            log.warning("tape.slow", tape=call.tape, seconds=round(took, 3), entries=len(receipts))
        if verbose():
            for receipt in receipts:
                log.debug("tape.recorded", tape=receipt.tape, seq=receipt.seq, key=receipt.key)

    def several(self, tapes: Sequence[str], key: str, work: Callable[[Transaction, Opener], R]) -> R:
        """Run ``work`` in one transaction that writes several tapes, which it opens by name.

        The tapes are locked in one order whoever asks, so that two such calls never wait for each other. ``key`` tells
        the caller of a CommitUnknown which call it was.
        """
        lost = 0
        for attempt in range(_ATTEMPTS):
            try:
                return self._db.write(tapes[0], partial(self._several, sorted(set(tapes), key=lock_key), work))
            except (_Stale, Collision) as error:
                if attempt > 2:
                    raise self._collided(tapes, error) from error
            except Again:
                log.info("tape.retry", tape=tapes[0], attempt=attempt)
            except Lost as error:
                # Every key of these entries is derived, so a second run finds what a first one may have written.
                log.warning("tape.connection_lost", tape=tapes[0], key=key, attempt=attempt)
                lost += 1
                if lost > 2:
                    raise CommitUnknown(tapes[0], key) from error
            except (StoreFailed, StoreBusy) as error:
                if lost:
                    raise CommitUnknown(tapes[0], key) from error
                raise
        if lost:
            raise CommitUnknown(tapes[0], key)
        raise StoreBusy(0.0)

    def _several(self, tapes: Sequence[str], work: Callable[[Transaction, Opener], R], tx: Transaction) -> R:
        for tape in tapes:
            tx.lock(tape)
        opened: dict[str, Writing] = {}

        def opener(call: Call) -> Writing:
            if call.tape not in opened:
                opened[call.tape] = Writing(self, tx, call, self._load(tx, call))
            return opened[call.tape]

        result = work(tx, opener)
        for writing in opened.values():
            writing.finish(None)
            # Only one tape's head can be kept after a commit; the others are read again when they are next written.
            self.forget(writing.tape)
        return result

    # -- one attempt

    def _attempt(self, call: Call, intents: Sequence[Intent], fresh: bool, tx: Transaction) -> list[Receipt]:
        kept = None if fresh or self._heads is None else self._heads.get(call.tape)
        if kept is None:
            tx.lock(call.tape)
            writing = Writing(self, tx, call, self._load(tx, call))
            receipts = self._checked(writing, intents)
        else:
            writing = Writing(self, tx, call, kept)
            try:
                if call.expected_head is not None or writing.head.status in CLOSED:
                    self._check_head(writing, intents)
                writing.look_ahead(intents)
                only = intents[0]
                writing.defers = tx.postgres and len(intents) == 1 and type(only) is AddMessage and not only.generated
                receipts = [self._one(writing, intent) for intent in intents]
            except (TapeError, Taken, Unchanged) as error:
                raise _Stale from error
        writing.finish(kept)
        return receipts

    def _load(self, tx: Transaction, call: Call) -> Kept | None:
        row = tx.one(self._sql.head, (call.tape,))
        if row is None:
            return None
        if self._owner is not None and row[1] != self._owner:
            raise TapeNotFound(call.tape)
        if row[2] == "purged":
            if call.create is None:
                raise TapeNotFound(call.tape)
            if not call.reuse:
                raise TapeExists(call.tape, purged=True)
            # The tombstone keeps the id by which it was known; its row gives up the name.
            tx.run(self._sql.rename_tape, (f"{strict.RESERVED}{row[0]}:{call.tape}", row[0]))
            return None
        return head_from_row(row)

    def _checked(self, writing: Writing, intents: Sequence[Intent]) -> list[Receipt]:
        """Answer what was recorded before, refuse what cannot be recorded, and plan the rest."""
        call = writing.call
        if call.create is not None:
            if not writing.existed:
                writing.create()
            elif writing.tx.one(self._sql.entry_by_key, (writing.tape_id, call.create_key)) is None:
                raise TapeExists(call.tape)
        before = self._before(writing, intents)
        new = [intent for intent in intents if intent.key not in before]
        if new and not self._repeated(writing, new):
            self._check_head(writing, new)
        writing.look_ahead(new)
        receipts = []
        for intent in intents:
            found = before.get(intent.key)
            if found is not None:
                writing.previous = found[1]
                receipts.append(found[0])
                continue
            try:
                receipts.append(self._one(writing, intent))
            except (Taken, Unchanged) as taken:
                checked = None if isinstance(taken, Unchanged) else intent
                receipt, place = self._same(writing, taken.seq, checked, taken.tape)
                writing.previous = place
                receipts.append(receipt)
        return receipts

    def _repeated(self, writing: Writing, new: Sequence[Intent]) -> bool:
        """Whether this is a revision equal to what holds, or a message under an id that an ancestor has.

        Like a known key, that is settled before any other check: a retry after a lost reply would otherwise meet its
        own success as a moved head.
        """
        call, head = writing.call, writing.head
        conditional = call.expected_head not in (None, head.seq) or head.status in CLOSED
        if not conditional or not writing.existed:
            return False
        if all(type(intent) is AddMessage for intent in new):
            return all(isinstance(intent, AddMessage) and writing.place(intent.id) for intent in new)
        if not isinstance(new[0], ReviseMessage | UpsertMessage):
            return False
        try:
            new[0].plan(head, writing, None)
        except Unchanged:
            return True
        except TapeError:
            return False
        return False

    def _before(self, writing: Writing, intents: Sequence[Intent]) -> dict[str, tuple[Receipt, Place]]:
        """Return the receipts of those intents whose keys are on the tape already."""
        found: dict[str, tuple[Receipt, Place]] = {}
        if not writing.existed:
            return found
        key = writing.call.batch
        batch = None if key is None else find_batch(writing, intents, key)
        asked = {intent.key: intent for intent in reversed(intents) if intent.asked}
        known = batch.known if batch is not None else writing.known(asked) if len(asked) > 1 else asked
        for intent in intents:
            if intent.asked and intent.key in known and intent.key not in found:
                row = writing.tx.one(self._sql.entry_by_key, (writing.tape_id, intent.key))
                if row is not None:
                    try:
                        found[intent.key] = self._same(writing, row[2], intent)
                    except ProvenanceConflict:
                        if not intent.settling:
                            raise
        if found and batch is not None:
            self._whole(writing, intents, found, batch)
        return found

    def _whole(
        self, writing: Writing, intents: Sequence[Intent], found: dict[str, tuple[Receipt, Place]], batch: Batch
    ) -> None:
        """Complete the receipts of a batch that was recorded before; one of another length is a conflict."""
        other = batch.other_length(writing)
        for intent in intents:
            if intent.key in found or other:
                continue
            # A message that was on the tape before the batch has no entry under the batch's key.
            taken = writing.place(intent.id) if isinstance(intent, AddMessage) else None
            if taken is None:
                other = True
            else:
                found[intent.key] = self._same(writing, taken[1], intent, taken[0].tape)
        if other:
            given = digest_of(canonical([one.content() for one in intents if isinstance(one, AddMessage)]))
            held, first = digest_of(canonical(batch.contents(writing))), next(iter(found.values()))[0].seq
            raise ProvenanceConflict(writing.call.tape, batch.key, first, held, given)

    def _same(self, writing: Writing, seq: int, intent: Intent | None, of: str | None = None) -> tuple[Receipt, Place]:
        """Return the receipt of the entry at ``seq``, of the tape or an ancestor, if it says what the intent says."""
        writing.flush()
        tape = of or writing.call.tape
        number = writing.tape_id if of is None or writing.family is None else writing.family.number(of)
        row = writing.tx.one(self._sql.entry, (number, seq))
        if row is None or row[8] is None:
            raise Corrupt(tape, seq, "the entry cannot be read")
        payload = payloads.decode(row[3], row[11], row[8], tape, seq)
        if intent is not None:
            stored, given = canonical(payloads.content(payload)), canonical(intent.content_as(payload.kind))
            if stored != given:
                raise ProvenanceConflict(tape, row[4], seq, digest_of(stored), digest_of(given))
        receipt = Receipt(
            tape=tape,
            seq=seq,
            key=row[4],
            message_id=message_of(payload),
            hash=bytes(row[12]).hex(),
            duplicate=True,
            position=join_position(row[16], row[0]),
        )
        inherited = of if row[13] == 0 or writing.family is None else writing.family.name(row[13])
        return receipt, Place(row[14], row[15], inherited)

    def closed(self, tx: Transaction, tape: str, head: Head) -> TapeClosed:
        """Return the refusal of a closed tape, with the tape on which to go on if there is one."""
        row = tx.one(self._sql.redirect, (tape,))
        return TapeClosed(tape, head.status, head.reason, None if row is None else row[0])

    def _check_head(self, writing: Writing, intents: Sequence[Intent]) -> None:
        call, head = writing.call, writing.head
        if call.expected_head is not None and call.expected_head != head.seq:
            raise HeadMoved(call.tape, call.expected_head, head.seq)
        if head.status in CLOSED and any(intent.changes_view or _final(head, intent) for intent in intents):
            raise self.closed(writing.tx, call.tape, head)

    def _one(self, writing: Writing, intent: Intent) -> Receipt:
        earlier = writing.keys.get(intent.key) if intent.asked else None
        if earlier is not None:
            # The same message twice in one batch.
            if canonical(earlier[0].content()) != canonical(intent.content()):
                raise ProvenanceConflict(
                    writing.call.tape,
                    intent.key,
                    earlier[1].seq,
                    digest_of(canonical(earlier[0].content())),
                    digest_of(canonical(intent.content())),
                )
            found = writing.place(intent.id) if isinstance(intent, AddMessage) else None
            # As after a message that was on the tape before, the batch goes on behind the one repeated.
            writing.previous = writing.previous if found is None else found[0]
            return msgspec.structs.replace(earlier[1], duplicate=True)
        if not writing.existed and writing.head.seq == 0:
            writing.create()
        planned = intent.plan(writing.head, writing, writing.previous)
        receipt = writing.add(planned, intent, self._clock(), writing.call.meta)
        if intent.asked:
            writing.keys[intent.key] = (intent, receipt)
        if isinstance(intent, AddMessage):
            writing.free.discard(intent.id)
            if type(intent) is AddMessage:
                writing.previous = planned.place
        return receipt


class Writing(Remembering):
    """One transaction's worth of entries on one tape: planned against a moving head, sent in few statements.

    It answers the plans' questions itself: with a lookup of its own the two would refer to each other, and every append
    would leave a cycle behind for the garbage collector.
    """

    __slots__ = (
        "_db",
        "_entries",
        "_ops",
        "_recorder",
        "call",
        "deferred",
        "defers",
        "existed",
        "free",
        "head",
        "keys",
        "previous",
        "was",
        "written",
    )

    def __init__(self, recorder: Recorder, tx: Transaction, call: Call, kept: Kept | None) -> None:
        tape_id, head, family = kept if kept is not None else (0, Head.blank(chain.ZERO), None)
        super().__init__(tx, call.tape, tape_id, family)
        self.call = call
        self.existed = kept is not None
        self.head = head
        self.was = head.hash
        """The hash that the head's row has until it is moved."""
        self.previous: Place | None = None
        self.keys: dict[str, tuple[Intent, Receipt]] = {}
        self.defers = False
        self.deferred: str | None = None
        """The id that the one statement of a hot append checks by itself, to save a round trip."""
        self.free: set[str] = set()
        """Ids that no message has, found out for a whole batch at once."""
        self.written = False
        self._recorder = recorder
        self._db = recorder._db
        self._entries: list[tuple[Any, ...]] = []
        self._ops: list[Op] = []

    def look_ahead(self, intents: Sequence[Intent]) -> None:
        """Ask for the ids of a batch all at once, if each would be asked for when its turn comes."""
        if len(intents) > 1 and self.existed:
            given = [one for one in intents if isinstance(one, AddMessage) and not one.generated]
            if self.head.aliased or self.forked or any(not one.derived for one in given):
                wanted = {one.id for one in given}
                self.free = wanted - self.taken(wanted)

    def place(self, message_id: str) -> tuple[Place, int] | None:
        """Return where a message was placed and by which entry of the tape it was placed on."""
        if message_id in self.free:
            return None
        if self.defers and self.forked:
            self.defers, self.deferred = False, message_id
            return None
        return super().place(message_id)

    def create(self) -> None:
        """Make the tape and its first entry."""
        opening = self.call.create or payloads.Open(owner=self._recorder._owner)
        stamp = max(self._recorder._clock(), 0)
        labels = msgspec.json.encode(opening.labels) if opening.labels else None
        row = self.tx.one(
            self.tx.statements.create_tape,
            (
                self.call.tape,
                opening.owner,
                opening.agent,
                opening.name,
                labels,
                self.call.tape_meta,
                "active",
                None,
                stamp,
                None,
                None,
            ),
        )
        assert row is not None
        self.tape_id = row[0]
        self.tx.run(self.tx.statements.create_head, (self.tape_id, *head_values(self.head, self.family)))
        self.existed = True
        intent = Plain(key=self.call.create_key or ids.new_id(), payload=opening)
        # What the row says of the tape, the first entry says as well: only entries are covered by hashes.
        self.add(Planned(opening, self.head.place), intent, stamp, self.call.tape_meta)

    def move_head(self) -> None:
        """Send everything and move the head, so that reads in this transaction see the tape as it now is."""
        self.flush()
        if self._db.fault is not None:
            self._db.point("head")
        head = self.head
        if self.tx.run(self.sql.move_head, (*head_values(head, self.family), self.tape_id, self.was)) != 1:
            raise _Stale
        self.was = head.hash

    def _reader(self) -> Recall:
        return self._recorder.recall

    def put(self, planned: Planned, intent: Intent) -> Receipt:
        """Add an entry with the caller's meta, at the time it is now."""
        return self.add(planned, intent, self._recorder._clock(), self.call.meta)

    def add(self, planned: Planned, intent: Intent, now: int, meta: bytes | None) -> Receipt:
        """Seal the entry, fold it, and keep both for the flush."""
        head, call, payload, place = self.head, self.call, planned.payload, planned.place
        stamp = now
        if now < head.stamp:
            # Time never runs backwards on a tape; what the clock said is kept beside it.
            stamp = head.stamp
            told = msgspec.json.decode(meta) if meta is not None else {}
            meta = msgspec.json.encode({**told, "tape.clock": now})
        key = intent.key
        if planned.key is not None:
            key = intent.derived_key = planned.key
        raw = payloads.recordable(payload)
        seq = head.seq + 1
        source = intent.source
        kind, version = payload.kind, payload.version
        sealed = chain.link(
            head.hash,
            chain.digest(raw),
            call.tape,
            seq,
            kind,
            key,
            call.actor,
            source,
            meta,
            stamp,
            version,
            place,
        )
        self.head, ops = fold(head, seq, sealed, stamp, place, key, payload)
        tape_id, head_tape = self.tape_id, 0 if place.tape is None else tape_of(place, self.family)
        # SQLite's driver binds a bytearray at once, but searches for an adapter of bytes.
        body, hash = (raw, sealed) if self.tx.postgres else (bytearray(raw), bytearray(sealed))
        row: tuple[Any, ...]
        if call.actor is None and source is None and meta is None and not self.tx.postgres:
            row = (tape_id, seq, kind, key, body, stamp, version, hash, head_tape, place.lane, place.ordinal)
        else:
            cited = source if source is not None else (None, None)
            row = (tape_id, seq, kind, key, call.actor, *cited, body, meta, stamp, version, hash)
            row += (head_tape, place.lane, place.ordinal)
        self._entries.append(row)
        self._ops += ops
        self.written = True
        return Receipt(call.tape, seq, key, planned.message_id, sealed.hex())

    def flush(self) -> None:
        """Send what is pending, so that a question to the database sees it."""
        if not self._entries:
            return
        tx, entries, ops = self.tx, self._entries, self._ops
        self._entries, self._ops = [], []
        faulty = self._db.fault is not None
        if faulty:
            self._db.point("entry")
        self._send(entries)
        if faulty:
            self._db.point("view")
        apply(tx, self.tape_id, ops, self.head, self.family)

    def _send(self, entries: Sequence[tuple[Any, ...]]) -> None:
        tx, sql = self.tx, self.sql
        if len(entries) == 1:
            tx.run(sql.insert_bare if len(entries[0]) == len(BARE_COLUMNS) else sql.insert_entry, entries[0])
        else:
            for width, run in groupby(entries, len):
                tx.many(sql.insert_bare if width == len(BARE_COLUMNS) else sql.insert_entry, run)

    def finish(self, cached: Kept | None) -> None:
        """Send the rest and move the head, which is kept for the next append once this one is committed."""
        if not self.written:
            return
        if cached is not None and self.tx.postgres:
            self._finish_hot()
        else:
            self.move_head()
        if self._recorder._heads is not None:
            self.tx.after_commit = self._keep

    def _keep(self) -> None:
        heads = self._recorder._heads
        if heads is not None:
            if len(heads) >= _CACHED_HEADS:
                heads.clear()
            heads[self.tape] = (self.tape_id, self.head, self.family)

    def _finish_hot(self) -> None:
        """On PostgreSQL, write a plain append as one statement that compares the head; anything else needs the lock."""
        statement = self.tx.statements.append_hot
        if statement is None or len(self._entries) != 1 or len(self._ops) != 1 or type(self._ops[0]) is not OpenRow:
            raise _Stale
        op = self._ops[0]
        self._db.point("entry")
        params = (
            lock_key(self.call.tape),
            *head_values(self.head, self.family),
            self.tape_id,
            self.was,
            *self._entries[0],
            self.tape_id,
            op.place.lane,
            op.place.ordinal,
            op.placed,
            op.since,
            op.body,
        )
        if self.deferred is not None:
            statement = self.tx.statements.append_hot_forked or statement
            params += (self._lineage(), ids.message_key(self.deferred), self.deferred)
        if not self.tx.hot(statement, params):
            raise _Stale


def _hot(intents: Sequence[Intent]) -> bool:
    """Whether this is likely a plain append behind the head, which needs nothing but the kept head."""
    first = intents[0]
    return (
        len(intents) == 1
        and type(first) is AddMessage
        and first.parent is HEAD
        and first.derived
        and not first.calls
        and not first.answers
    )


def _final(head: Head, intent: Intent) -> bool:
    """Whether the intent would give a discarded fork another status: that one is for good."""
    return head.status == "discarded" and type(intent) is Plain and isinstance(intent.payload, payloads.Status)


def _key_of(call: Call, intents: Sequence[Intent]) -> str:
    """Return the key by which a caller can ask whether a write happened."""
    return call.batch or (intents[0].key if intents else call.create_key)


def message_of(payload: Payload) -> str | None:
    """Return the id of the one message that an entry is about, if it is about one."""
    if isinstance(payload, payloads.Append | payloads.Revise | payloads.Switch):
        return payload.id
    if isinstance(payload, payloads.Retract | payloads.Restore) and len(payload.ids) == 1:
        return payload.ids[0]
    return None
