"""Purging: a tape vanishes in one transaction and leaves a tombstone; its rows go afterwards, in batches.

The tombstone is also the last entry of the tape: a status that says "purged". So the feed has it like any other
entry, a writer that still holds the tape's head collides with it, and SQLite never reuses its position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from tape import new_ids
from tape.core.entries import payloads
from tape.core.places import RECORDS
from tape.core.plan.intents import Plain
from tape.core.plan.keys import RANDOM, Key
from tape.core.records import Retention
from tape.db.engine.log import log
from tape.db.engine.transaction import Database, Transaction
from tape.db.maintain.stored_tape import tape_row
from tape.db.read.catalog import Catalog
from tape.db.record.recorder import Opener, Recorder
from tape.db.record.writing import Call, Writing
from tape.db.search.index import Index
from tape.db.sql.rows.upkeep import BuriedRow
from tape.db.transfer.staging import sweep
from tape.db.view.values import decoded
from tape.errors import Corrupt, OwnerMoved, TapeInUse, TapeNotFound

__all__ = ["Purging", "unemptied"]

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


class _Judged(Struct):
    """A tape considered for retention: its number, parent and forks, and the reason to keep it, if there is one."""

    number: int
    parent: str | None
    children: list[str] = []
    entries: int = 0
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
        self, tape: str, *, forks: bool, expected_head: int | None = None, check: Check | None = None
    ) -> Retention:
        """Purge a tape, or with ``forks`` the tape and all that descends from it; or finish an earlier purge."""
        call = Call(tape, expected_head=expected_head)
        try:
            # The keys are fixed before the first attempt: after a lost reply they show whether it succeeded.
            keys = {name: new_ids.new_id() for name in (self._family(tape) if forks else [tape])}
            buried = self._recorder.several(
                list(keys), keys[tape], lambda tx, opener: self._bury(tx, opener, call, keys, check, forks=forks)
            )
            for purged in buried:
                self._recorder.forget(purged.tape)
                log.warning("tape.purged", tape=purged.tape, owner=purged.owner, seq=purged.seq, hash=purged.hash.hex())
            gone: Sequence[PurgedTape | BuriedRow] = buried
        except TapeNotFound:
            gone = [] if check is not None else self._unfinished(tape, forks=forks)
            if not gone:
                raise
        for row in gone:
            self._empty(row.tape, row.tape_id, row.seq)
        return Retention(dry_run=False, tapes=[row.tape for row in gone], entries=sum(row.seq - 1 for row in gone))

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

    def _family(self, tape: str) -> list[str]:
        """Return a tape and its descendants, parents first."""

        def work(tx: Transaction) -> list[str]:
            row = tape_row(tx, tape, self._owner)
            if row is None:
                raise TapeNotFound(tape)
            family = [(tape, row.number)]
            for _, number in family:
                family += [(fork.tape, fork.number) for fork in tx.all(self._sql.forks_of, (number,))]
            return [name for name, _ in family]

        return self._db.read(work)

    def _bury(
        self, tx: Transaction, opener: Opener, call: Call, keys: dict[str, str], check: Check | None, *, forks: bool
    ) -> list[PurgedTape]:
        """Put a tombstone in the place of each tape and, with ``forks``, of forks made of them in the meantime."""
        earlier = [self._buried(tx, name, key) for name, key in keys.items()]
        if all(earlier):
            return [tombstone for tombstone in earlier if tombstone is not None]
        opened: dict[str, Writing] = {}
        names = list(keys)
        for name in names:
            if name not in keys:
                # Made after the family was read. Its parent is locked by now, so that no more of these can follow.
                keys[name] = new_ids.new_id()
                tx.lock(name)
            opened[name] = writing = opener(call if name == call.tape else Call(name))
            if not writing.existed:
                raise TapeNotFound(name)
            writing.check_head()
            if check is not None and not check(name, writing.head.stamp, writing.head.status):
                raise _WrittenSince
            children = [fork.tape for fork in tx.all(self._sql.forks_of, (writing.tape_id,))]
            if forks:
                names += [child for child in children if child not in names]
            elif children:
                raise TapeInUse(name, children)
        for name, writing in opened.items():
            linking = [parent for parent in self._linking(tx, writing.tape_id) if parent not in opened]
            if linking:
                raise TapeInUse(name, linking)
        return [self._tombstone(tx, writing, keys[name]) for name, writing in opened.items()]

    def _buried(self, tx: Transaction, tape: str, key: str) -> PurgedTape | None:
        """Return the tombstone that an earlier attempt of this very call left, if it did."""
        for stone in tx.all(self._sql.tombstone, (tape,)):
            row = tx.one(self._sql.entry, (stone.tape_id, stone.seq))
            if row is not None and row.key == key:
                return PurgedTape(stone.tape_id, tape, stone.seq, stone.owner, bytes(stone.hash))
        return None

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

    def _linking(self, tx: Transaction, number: int) -> list[str]:
        """Return the tapes that link to one: its parent, if any of its merges was a link."""
        for parent, name, seq in tx.all(self._sql.linking, (number,)):
            while seq:
                row = tx.one(self._sql.body, (parent, seq))
                if row is None or row.payload is None:
                    break
                try:
                    merge = decoded(row)
                except Corrupt:
                    # It may have been a link, so the tape must stay.
                    return [str(name)]
                if not isinstance(merge, payloads.Merge):
                    break
                if merge.strategy == "link":
                    return [str(name)]
                seq = merge.previous if merge.previous < seq else 0
        return []

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
                if not dry_run:
                    try:
                        self.purge(info.id, forks=True, check=old)
                    except (_WrittenSince, TapeInUse, TapeNotFound):
                        kept[info.id] = "it was written to in the meantime"
                        continue
                    except OwnerMoved as moved:
                        kept[info.id] = f"its owner was moved to database {moved.database!r}"
                        continue
                family = [info.id]
                for name in family:
                    family += known[name].children
                gone.update(family)
                tapes += family
                entries += sum(known.pop(name).entries for name in family)
        return Retention(dry_run=dry_run, tapes=tapes, entries=entries, kept=kept)

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
            judged.entries = 0 if row is None else row.seq
            for child, below, *_ in tx.all(self._sql.forks_of, (judged.number,)):
                family[child] = _Judged(below, name)
                judged.children.append(child)
                names.append(child)
        for judged in family.values():
            if judged.why is None and (judged.parent is None or family[judged.parent].why is not None):
                # A parent's links matter only when the tape is purged without that parent.
                linking = self._linking(tx, judged.number)
                judged.why = f"tape {linking[0]!r} links to it" if linking else None
        return family
