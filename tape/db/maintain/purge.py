"""Purging: a tape vanishes in one transaction and leaves a tombstone; its rows go afterwards, in batches.

The tombstone is also the last entry of the tape: a status that says "purged". So the feed has it like any other
entry, a writer that still holds the tape's head collides with it, and SQLite never reuses its position.

A tape on which another rests (a fork of it, or a parent that links to it) cannot go. With ``when_free`` it is hidden
instead, for a reason of the store's own, ``WHEN_FREE``. That reason is the mark: it says that the tape is to go as soon
as it can. No job looks for marked tapes. Every purge finds those that are free with what it takes (``purge_set``) and
puts their tombstones into the same transaction. So there is no moment at which the last fork is gone and a marked
parent is not. Showing the tape, or hiding it for another reason, takes the mark off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from tape import new_ids
from tape.core.entries import payloads
from tape.core.entries.tape_kinds import WHEN_FREE
from tape.core.plan.intents import Plain, SetHidden
from tape.core.plan.keys import RANDOM, Key
from tape.core.records import Retention
from tape.db.engine.log import log
from tape.db.engine.transaction import Database, Transaction, lock_key
from tape.db.maintain.purge_set import PurgeSet, find_purge_set
from tape.db.maintain.stored_tape import tape_row
from tape.db.record.recorder import Opener, Recorder
from tape.db.record.writing import Call, Writing
from tape.db.search.index import Index
from tape.db.sql.rows.upkeep import BuriedRow
from tape.errors import HeadMoved, TapeInUse, TapeNotFound

__all__ = ["Purging", "WrittenSince", "unemptied"]

_RESTARTS = 8
"""How often a purge begins anew to lock all tapes in one order, before it locks the rest as it finds them."""

Check = Callable[[int, str], bool]
"""Whether a tape with this last stamp and status may be purged, if it is not marked."""


class PurgedTape(NamedTuple):
    """What is left of a tape that this call purged."""

    tape_id: int
    tape: str
    seq: int
    owner: str | None
    hash: bytes


def unemptied(database: Database, owner: str | None) -> list[BuriedRow]:
    """Return the purged tapes of an owner, or of all, whose rows are not all gone: number, id, seq and owner."""
    rows = database.read(lambda tx: tx.all(tx.statements.unemptied, ()))
    return [row for row in rows if owner in (None, row.owner)]


class WrittenSince(Exception):
    """A tape of the family was written to since it was chosen."""


class _Grown(Exception):
    """More tapes must be locked than were."""

    def __init__(self, locks: frozenset[str]) -> None:
        super().__init__(locks)
        self.locks = locks


class _Entry(NamedTuple):
    """An entry that an attempt wrote."""

    tape: str
    tape_id: int
    seq: int
    hash: bytes


class _Outcome(Struct):
    """What one attempt of a purge did."""

    purged: list[PurgedTape]
    kept: dict[str, str]
    """The tapes that are asked for and stay, and why."""
    written: _Entry | None
    """One of its entries: if that is there, they all are."""


class _Request(Struct):
    """One purge: what is asked for, and what its attempts share."""

    call: Call
    forks: bool
    when_free: bool
    check: Check | None
    keys: dict[str, str]
    """The key of the last entry of each tape, fixed before it is first written."""
    outcome: _Outcome | None = None
    """What the last attempt did, which may be committed although its reply was lost."""
    restarts: int = 0


class Purging:
    """Removes tapes of one owner, or of all."""

    def __init__(self, database: Database, owner: str | None, recorder: Recorder, index: Index) -> None:
        self._index = index
        self._recorder = recorder
        self._owner = owner
        self._db = database
        self._sql = database.statements

    def purge(
        self,
        tape: str,
        *,
        forks: bool,
        expected_head: int | None = None,
        when_free: bool = False,
        check: Check | None = None,
    ) -> Retention:
        """Purge a tape, or with ``forks`` the tape and all that descends from it; or finish an earlier purge.

        Marked tapes that are free then go along. With ``when_free`` what must stay is hidden and marked instead.
        """
        request = _Request(Call(tape, expected_head=expected_head), forks, when_free, check, {})
        kept: dict[str, str] = {}
        try:
            outcome = self._attempt(request)
            for purged in outcome.purged:
                self._recorder.forget(purged.tape)
                log.warning("tape.purged", tape=purged.tape, owner=purged.owner, seq=purged.seq, hash=purged.hash.hex())
            gone: Sequence[PurgedTape | BuriedRow] = outcome.purged
            kept = outcome.kept
        except TapeNotFound:
            gone = [] if check is not None else self._unfinished(tape)
            if not gone:
                raise
        # The tape itself comes last: as long as it is not empty, it is seen that the purge was interrupted.
        for row in sorted(gone, key=lambda row: row.tape == tape):
            self.empty(row)
        entries = sum(row.seq - 1 for row in gone)
        return Retention(dry_run=False, tapes=[row.tape for row in gone], entries=entries, kept=kept)

    def _attempt(self, request: _Request) -> _Outcome:
        """Lock what the purge concerns and bury it, in one transaction; again if there is more to lock by then."""
        tape = request.call.tape
        locks = self._db.read(lambda tx: find_purge_set(tx, tape, self._owner, forks=request.forks)).locks
        while True:
            request.keys.setdefault(tape, new_ids.new_id())
            names = [tape, *locks.difference({tape})]
            try:
                return self._recorder.several(names, request.keys[tape], partial(self._bury, request, locks))
            except _Grown as grown:
                request.restarts += 1
                locks = locks.union(grown.locks)

    def _unfinished(self, tape: str) -> list[BuriedRow]:
        """Return what an interrupted purge of a tape that is gone left unemptied."""
        left = unemptied(self._db, self._owner)
        if self._db.read(lambda tx: tape_row(tx, tape, self._owner)) is not None:
            return []
        # It is not recorded which tapes went along with it. All unfinished purges must finish anyway.
        return left if any(row.tape == tape for row in left) else []

    def _bury(self, request: _Request, locked: frozenset[str], tx: Transaction, opener: Opener) -> _Outcome:
        """Put a tombstone in the place of each tape that goes; hide and mark what must stay, or refuse the purge."""
        if request.outcome is not None and self._is_committed(tx, request.outcome):
            return request.outcome
        found, call = self._find_locked(tx, request, locked), request.call
        opened: dict[str, Writing] = {}
        for name in dict.fromkeys([*found.wanted, *found.going]):
            opened[name] = writing = opener(call if name == call.tape else Call(name))
            if not writing.existed:
                raise TapeNotFound(name)
            writing.check_head()
            head, check = writing.head, request.check
            asked = name in found.wanted and head.hidden != WHEN_FREE
            if check is not None and asked and not check(head.stamp, head.status):
                raise WrittenSince
            request.keys.setdefault(name, new_ids.new_id())
        if found.staying and not request.when_free:
            name, use = next(iter(found.staying.items()))
            raise TapeInUse(name, use.by)
        purged = [self._tombstone(tx, opened[name], request.keys[name]) for name in found.going]
        unmarked = [name for name in found.staying if opened[name].head.hidden != WHEN_FREE]
        for name in unmarked:
            mark = payloads.Label(hidden=True, reason=WHEN_FREE)
            opened[name].record(SetHidden(key=Key(request.keys[name], RANDOM), payload=mark))
        changed = [opened[name] for name in [*found.going, *unmarked]]
        written = [_Entry(one.tape, one.tape_id, one.head.seq, one.head.hash) for one in changed[:1]]
        kept = {name: use.why for name, use in found.staying.items()}
        request.outcome = _Outcome(purged, kept, written[0] if written else None)
        return request.outcome

    def _find_locked(self, tx: Transaction, request: _Request, locked: frozenset[str]) -> PurgeSet:
        """Return what goes, once all that this depends on is locked."""
        while True:
            found = find_purge_set(tx, request.call.tape, self._owner, forks=request.forks)
            missing = found.locks - locked
            if not missing:
                return found
            if tx.postgres and request.restarts < _RESTARTS:
                raise _Grown(found.locks)
            # While others go on forking there would always be one more. Those made by now can be locked out of order,
            # and a deadlock repeats the transaction. Their parents are locked, so that no more of them can follow.
            for name in sorted(missing, key=lock_key):
                tx.lock(name)
            locked |= missing

    def _is_committed(self, tx: Transaction, outcome: _Outcome) -> bool:
        """Whether an attempt whose reply was lost was committed."""
        wrote = outcome.written
        if wrote is None:
            return False
        row = tx.one(self._sql.entry, (wrote.tape_id, wrote.seq))
        if row is not None:
            return bytes(row.hash) == wrote.hash
        # Or another has purged the tape since, and the entry with it.
        buried = tx.all(self._sql.tombstone, (wrote.tape,))
        return any(tomb.tape_id == wrote.tape_id and tomb.seq > wrote.seq for tomb in buried)

    def _tombstone(self, tx: Transaction, writing: Writing, key: str) -> PurgedTape:
        row = tx.one(self._sql.head, (writing.tape,))
        owner = None if row is None else row.owner
        gone = payloads.Status(status="purged")
        writing.record(Plain(key=Key(key, RANDOM), payload=gone))
        writing.flush()
        head = writing.head
        tx.run(self._sql.bury, (writing.tape_id,))
        tx.run(self._sql.insert_tombstone, (writing.tape_id, writing.tape, owner, head.seq, head.hash, head.stamp, 0))
        return PurgedTape(writing.tape_id, writing.tape, head.seq, owner, head.hash)

    def empty(self, row: PurgedTape | BuriedRow) -> None:
        """Delete the rows of a purged tape, a batch per transaction, so that other writers are not blocked."""
        tape, number, last = row.tape, row.tape_id, row.seq
        self._index.drop(number)
        steps: list[tuple[Any, Sequence[int]]] = [(statement, (number,)) for statement in self._sql.purge_rows]
        for statement, params in [*steps, (self._sql.purge_entries, (number, last))]:
            while self._db.repeat(tape, lambda tx, s=statement, p=params: tx.run(s, p)):  # type: ignore[misc]
                pass
        self._db.repeat(tape, lambda tx: tx.run(self._sql.emptied, (number,)))

    def foresee(
        self,
        tape: str,
        *,
        forks: bool,
        expected_head: int | None = None,
        when_free: bool = False,
        gone: Set[str] = frozenset(),
    ) -> Retention:
        """Return what a purge would do if it were made now and those of ``gone`` were gone. Raises what that raises."""
        found, heads = self._db.read(partial(self._foresee, tape, forks, gone))
        if expected_head not in (None, heads[tape]):
            raise HeadMoved(tape, expected_head, heads[tape])
        if found.staying and not when_free:
            name, use = next(iter(found.staying.items()))
            raise TapeInUse(name, use.by)
        kept = {name: use.why for name, use in found.staying.items()}
        return Retention(dry_run=True, tapes=found.going, entries=sum(heads[name] for name in found.going), kept=kept)

    def _foresee(self, tape: str, forks: bool, gone: Set[str], tx: Transaction) -> tuple[PurgeSet, dict[str, int]]:
        """Return what goes, and the heads of the tape and of all that go."""
        found = find_purge_set(tx, tape, self._owner, forks=forks, gone=gone)
        heads = {name: tx.one(self._sql.head, (name,)) for name in (tape, *found.going)}
        return found, {name: 0 if row is None else row.seq for name, row in heads.items()}
