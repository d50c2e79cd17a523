"""Purging: a tape vanishes in one transaction and leaves a tombstone; its rows are deleted afterwards, in batches.

The tombstone is also the last entry of the tape: a status that says "purged". So the feed has it like any other
entry, a writer that still holds the tape's head collides with it, and SQLite never reuses its position.

A tape from which another inherits, or to which its parent links, cannot be purged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from tape import new_ids
from tape.core.entries import payloads
from tape.core.plan.intents import Plain
from tape.core.plan.keys import RANDOM, Key
from tape.core.records import Retention
from tape.db.engine.log import log
from tape.db.engine.transaction import Database, Transaction, lock_key
from tape.db.maintain.stored_tape import tape_row
from tape.db.record.recorder import Opener, Recorder
from tape.db.record.writing import Call, Writing
from tape.db.search.index import Index
from tape.db.sql.rows.upkeep import BuriedRow
from tape.db.view.values import decoded
from tape.errors import Corrupt, HeadMoved, TapeInUse, TapeNotFound

__all__ = ["Purging", "WrittenSince", "unemptied"]

Check = Callable[[int, str], bool]
"""Whether a tape with this last stamp and status may be purged."""


class PurgedTape(NamedTuple):
    """A tape that this call purged."""

    tape_id: int
    tape: str
    seq: int
    owner: str | None
    hash: bytes


def unemptied(database: Database, owner: str | None) -> list[BuriedRow]:
    """Return the purged tapes of an owner, or of all, that still have rows: number, id, seq and owner."""
    rows = database.read(lambda tx: tx.all(tx.statements.unemptied, ()))
    return [row for row in rows if owner in (None, row.owner)]


class WrittenSince(Exception):
    """A tape of the family was written to since it was chosen."""


class _Request(Struct):
    """One purge: its arguments, and what its attempts share."""

    call: Call
    forks: bool
    check: Check | None
    keys: dict[str, str]
    """The key of the last entry of each tape, fixed before it is first written."""
    purged: list[PurgedTape] = []
    """The result of the last attempt, which may be committed although its reply was lost."""


class Purging:
    """Removes tapes of one owner, or of all."""

    def __init__(self, database: Database, owner: str | None, recorder: Recorder, index: Index) -> None:
        self._index = index
        self._recorder = recorder
        self._owner = owner
        self._db = database
        self._sql = database.statements

    def purge(
        self, tape: str, *, forks: bool, expected_head: int | None = None, check: Check | None = None
    ) -> Retention:
        """Purge a tape, or with ``forks`` the tape and all that descends from it; or finish an interrupted purge."""
        request = _Request(Call(tape, expected_head=expected_head), forks, check, {})
        gone: Sequence[PurgedTape | BuriedRow]
        try:
            gone = purged = self._attempt(request)
            for one in purged:
                self._recorder.forget(one.tape)
                log.warning("tape.purged", tape=one.tape, owner=one.owner, seq=one.seq, hash=one.hash.hex())
        except TapeNotFound:
            gone = [] if check is not None else self._unfinished(tape)
            if not gone:
                raise
        # The tape itself comes last: an interrupted purge is noticed by the rows that it still has.
        for row in sorted(gone, key=lambda row: row.tape == tape):
            self.empty(row)
        return Retention(dry_run=False, tapes=[row.tape for row in gone], entries=sum(row.seq - 1 for row in gone))

    def foresee(
        self, tape: str, *, forks: bool, expected_head: int | None = None, gone: Set[str] = frozenset()
    ) -> Retention:
        """Return the result of a purge without making it, as if the tapes of ``gone`` were purged already."""
        heads = self._db.read(lambda tx: self._heads(tx, self._branch(tx, tape, forks, gone)))
        if expected_head not in (None, heads[tape]):
            raise HeadMoved(tape, expected_head, heads[tape])
        return Retention(dry_run=True, tapes=list(heads), entries=sum(heads.values()))

    def empty(self, row: PurgedTape | BuriedRow) -> None:
        """Delete the rows of a purged tape, a batch per transaction, so that other writers are not blocked."""
        tape, number, last = row.tape, row.tape_id, row.seq
        self._index.drop(number)
        steps: list[tuple[Any, Sequence[int]]] = [(statement, (number,)) for statement in self._sql.purge_rows]
        for statement, params in [*steps, (self._sql.purge_entries, (number, last))]:
            while self._db.repeat(tape, lambda tx, s=statement, p=params: tx.run(s, p)):  # type: ignore[misc]
                pass
        self._db.repeat(tape, lambda tx: tx.run(self._sql.emptied, (number,)))

    def _attempt(self, request: _Request) -> list[PurgedTape]:
        """Lock the tapes that go and write their tombstones, in one transaction."""
        tape = request.call.tape
        names = list(self._db.read(lambda tx: self._branch(tx, tape, request.forks)))
        request.keys[tape] = new_ids.new_id()
        return self._recorder.several(names, request.keys[tape], partial(self._bury, request, frozenset(names)))

    def _branch(self, tx: Transaction, tape: str, forks: bool, gone: Set[str] = frozenset()) -> dict[str, int]:
        """Return the numbers of a tape and, with ``forks``, of all that descends from it, parents first.

        Raises TapeInUse if a tape that stays needs one of them.
        """
        row = tape_row(tx, tape, self._owner)
        if row is None:
            raise TapeNotFound(tape)
        branch = {tape: row.number}
        for name in (names := [tape]):
            children = [fork for fork in tx.all(self._sql.forks_of, (branch[name],)) if fork.tape not in gone]
            if children and not forks:
                raise TapeInUse(tape, [fork.tape for fork in children])
            branch |= {fork.tape: fork.number for fork in children}
            names += [fork.tape for fork in children]
        if (parent := _linking(tx, row.number)) is not None:
            raise TapeInUse(tape, [parent])
        return branch

    def _heads(self, tx: Transaction, branch: dict[str, int]) -> dict[str, int]:
        rows = {name: tx.one(self._sql.head, (name,)) for name in branch}
        return {name: 0 if row is None else row.seq for name, row in rows.items()}

    def _bury(self, request: _Request, locked: frozenset[str], tx: Transaction, opener: Opener) -> list[PurgedTape]:
        """Write a tombstone for each tape of the branch."""
        if self._is_committed(tx, request.purged):
            return request.purged
        branch = self._branch(tx, request.call.tape, request.forks)
        while missing := branch.keys() - locked:
            # Forked since. They are locked out of order, so a deadlock may repeat the transaction. A tape whose parent
            # is locked gets no more siblings, so this ends.
            for name in sorted(missing, key=lock_key):
                tx.lock(name)
            locked |= missing
            branch = self._branch(tx, request.call.tape, request.forks)
        opened = {name: opener(request.call if name == request.call.tape else Call(name)) for name in branch}
        for name, writing in opened.items():
            if not writing.existed:
                raise TapeNotFound(name)
            writing.check_head()
            if request.check is not None and not request.check(writing.head.stamp, writing.head.status):
                raise WrittenSince
            request.keys.setdefault(name, new_ids.new_id())
        request.purged = [self._tombstone(tx, writing, request.keys[name]) for name, writing in opened.items()]
        return request.purged

    def _is_committed(self, tx: Transaction, purged: Sequence[PurgedTape]) -> bool:
        """Whether an attempt whose reply was lost was committed: if one of its tombstones exists, they all do."""
        if not purged:
            return False
        first = purged[0]
        row = tx.one(self._sql.entry, (first.tape_id, first.seq))
        return row is not None and bytes(row.hash) == first.hash

    def _tombstone(self, tx: Transaction, writing: Writing, key: str) -> PurgedTape:
        row = tx.one(self._sql.head, (writing.tape,))
        owner = None if row is None else row.owner
        writing.record(Plain(key=Key(key, RANDOM), payload=payloads.Status(status="purged")))
        writing.flush()
        head = writing.head
        tx.run(self._sql.bury, (writing.tape_id,))
        tx.run(self._sql.insert_tombstone, (writing.tape_id, writing.tape, owner, head.seq, head.hash, head.stamp, 0))
        return PurgedTape(writing.tape_id, writing.tape, head.seq, owner, head.hash)

    def _unfinished(self, tape: str) -> list[BuriedRow]:
        """Return the tapes that an interrupted purge of this tape left with rows."""
        left = unemptied(self._db, self._owner)
        if self._db.read(lambda tx: tape_row(tx, tape, self._owner)) is not None:
            return []
        # Which tapes were purged together is not recorded. All unfinished purges must finish anyway.
        return left if any(row.tape == tape for row in left) else []


def _linking(tx: Transaction, number: int) -> str | None:
    """Return the parent of a tape if one of its merges was a link."""
    for parent, name, seq in tx.all(tx.statements.linking, (number,)):
        while seq:
            row = tx.one(tx.statements.body, (parent, seq))
            if row is None or row.payload is None:
                break
            try:
                merge = decoded(row)
            except Corrupt:
                # It may have been a link, so the tape must stay.
                return str(name)
            if not isinstance(merge, payloads.Merge):
                break
            if merge.strategy == "link":
                return str(name)
            seq = merge.previous if merge.previous < seq else 0
    return None
