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
from tape.core.places import RECORDS
from tape.core.plan.intents import Plain, SetHidden
from tape.core.plan.keys import RANDOM, Key
from tape.core.records import Retention
from tape.db.engine.log import log
from tape.db.engine.transaction import Database, Transaction, lock_key
from tape.db.maintain.purge_set import PurgeSet, find_purge_set
from tape.db.maintain.stored_tape import tape_row
from tape.db.read.catalog import Catalog
from tape.db.record.recorder import Opener, Recorder
from tape.db.record.writing import Call, Writing
from tape.db.search.index import Index
from tape.db.sql.rows.upkeep import BuriedRow
from tape.db.transfer.staging import sweep
from tape.errors import OwnerMoved, TapeInUse, TapeNotFound

__all__ = ["Purging", "unemptied"]

_RESTARTS = 8
"""How often a purge begins anew to lock all tapes in one order, before it locks the rest as it finds them."""

Check = Callable[[str, int, str], bool]
"""Whether a tape with this id, last stamp and status may be purged."""


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


class _WrittenSince(Exception):
    """A tape of the family was written to since it was chosen."""


class _Grown(Exception):
    """More tapes must be locked than were."""

    def __init__(self, locks: frozenset[str]) -> None:
        super().__init__(locks)
        self.locks = locks


class _Outcome(Struct):
    """What one attempt of a purge did."""

    purged: list[PurgedTape]
    kept: dict[str, str]
    """The tapes that are asked for and stay, and why."""
    written: tuple[int, int, bytes] | None
    """One of its entries, by number of the tape, seq and hash: if it is there, they all are."""


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


class _Judged(Struct):
    """A tape considered for retention: its number, its parent, and the reason to keep it, if there is one."""

    number: int
    parent: str | None
    why: str | None = None


class Purging:
    """Removes tapes of one owner, or of all."""

    def __init__(
        self, database: Database, owner: str | None, recorder: Recorder, catalog: Catalog, index: Index
    ) -> None:
        self._index = index
        self._recorder = recorder
        self._owner = owner
        self._catalog = catalog
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
            gone = [] if check is not None else self._unfinished(tape, forks=forks)
            if not gone:
                raise
        for row in gone:
            self._empty(row.tape, row.tape_id, row.seq)
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

    def _unfinished(self, tape: str, *, forks: bool) -> list[BuriedRow]:
        """Return what an interrupted purge of a tape that is gone left unemptied."""

        def gone(tx: Transaction) -> bool:
            owners = [row.owner for row in tx.all(self._sql.tombstone, (tape,))]
            seen = self._owner is None or self._owner in owners
            return bool(owners) and seen and tape_row(tx, tape, self._owner) is None

        if not self._db.read(gone):
            return []
        # Their fork rows are gone, so it is unknown which were its forks. All unfinished purges must finish anyway.
        return [row for row in unemptied(self._db, self._owner) if forks or row.tape == tape]

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
            if check is not None and name in found.wanted and not check(name, head.stamp, head.status):
                raise _WrittenSince
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
        written = (changed[0].tape_id, changed[0].head.seq, changed[0].head.hash) if changed else None
        request.outcome = _Outcome(purged, {name: use.why for name, use in found.staying.items()}, written)
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
        if outcome.written is None:
            return False
        number, seq, hash = outcome.written
        row = tx.one(self._sql.entry, (number, seq))
        return row is not None and bytes(row.hash) == hash

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

    def _empty(self, tape: str, number: int, last: int) -> None:
        """Delete the rows of a purged tape, a batch per transaction, so that other writers are not blocked."""
        self._index.drop(number)
        steps: list[tuple[Any, Sequence[int]]] = [(statement, (number,)) for statement in self._sql.purge_rows]
        for statement, params in [*steps, (self._sql.purge_entries, (number, last))]:
            while self._db.repeat(tape, lambda tx, s=statement, p=params: tx.run(s, p)):  # type: ignore[misc]
                pass
        self._db.repeat(tape, lambda tx: tx.run(self._sql.emptied, (number,)))

    def retain(self, limit: int, status: str | None, *, dry_run: bool) -> Retention:
        """Purge the tapes last written before ``limit``, or with ``dry_run`` only list them."""
        if not dry_run:
            for number, tape, seq, _ in unemptied(self._db, self._owner):
                # An earlier run was interrupted between a tombstone and the last of its rows.
                self._empty(tape, number, seq)
            sweep(self._recorder)

        def old(tape: str, stamp: int, now: str) -> bool:
            return stamp < limit and (status is None or now == status)

        tapes: list[str] = []
        gone: set[str] = set()
        kept: dict[str, str] = {}
        known: dict[str, _Judged] = {}
        entries = 0
        for page in self._catalog.oldest_first({"updated_before": limit, "status": status}):
            for number, info in page:
                if info.id in gone:
                    continue
                if info.id not in known:
                    # Parents come before their forks, so each family is judged once, as a whole.
                    known |= self._db.read(lambda tx, n=number, i=info.id: self._judge(tx, i, n, old))  # type: ignore[misc]
                why = known[info.id].why
                if info.id.startswith(RECORDS):
                    # Without it the owner's tapes would be looked for, and written, where they no longer are.
                    why = "it records where an owner's tapes are"
                if why is not None:
                    kept[info.id] = why
                    continue
                try:
                    if dry_run:
                        done = self._db.read(lambda tx, i=info.id: self._foresee(tx, i, gone))  # type: ignore[misc]
                    else:
                        done = self.purge(info.id, forks=True, check=old)
                except TapeInUse as used:
                    # With all of its forks, it can only be linked to.
                    kept[info.id] = f"tape {used.by[0]!r} links to it"
                    continue
                except (_WrittenSince, TapeNotFound):
                    kept[info.id] = "it was written to in the meantime"
                    continue
                except OwnerMoved as moved:
                    kept[info.id] = f"its owner was moved to database {moved.database!r}"
                    continue
                gone.update(done.tapes)
                tapes += done.tapes
                entries += done.entries
                for name in done.tapes:
                    known.pop(name, None)
                    # A marked tape goes with the last of its forks, however young it is.
                    kept.pop(name, None)
        return Retention(dry_run=dry_run, tapes=tapes, entries=entries, kept=kept)

    def _foresee(self, tx: Transaction, tape: str, gone: Set[str]) -> Retention:
        """Return what a purge of a tape and its forks would take, once those of ``gone`` are gone."""
        found = find_purge_set(tx, tape, self._owner, forks=True, gone=gone)
        if found.staying:
            name, use = next(iter(found.staying.items()))
            raise TapeInUse(name, use.by)
        heads = [tx.one(self._sql.head, (name,)) for name in found.going]
        return Retention(dry_run=True, tapes=found.going, entries=sum(head.seq for head in heads if head is not None))

    def _judge(self, tx: Transaction, tape: str, number: int, old: Check) -> dict[str, _Judged]:
        """Return, for a tape and each of its descendants, whether it must be kept and why."""
        family = {tape: _Judged(number, None)}
        names = [tape]
        for name in names:
            judged = family[name]
            row = tx.one(self._sql.head, (name,))
            if row is None or not old(name, row.stamp, row.tape_status):
                judged.why = "it was written to in the meantime"
                above = judged.parent
                while above is not None and family[above].why is None:
                    family[above].why = f"its fork {name!r} is not to go"
                    above = family[above].parent
            for child, below, *_ in tx.all(self._sql.forks_of, (judged.number,)):
                family[child] = _Judged(below, name)
                names.append(child)
        return family
