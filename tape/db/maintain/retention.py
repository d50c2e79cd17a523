"""Retention: the tapes that were not written for some time are purged, each with all that descends from it.

A tape goes if nothing that stays rests on it (``purge_set``). What is marked to be purged as soon as it can be goes at
any age. So for an old tape whose parent is marked the parent is tried first: together they may go where neither can
alone, as when the parent links to both of its forks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import Struct

from tape.core.entries.tape_kinds import WHEN_FREE
from tape.core.places import RECORDS
from tape.core.records import Retention, TapeInfo
from tape.db.engine.transaction import Database, Transaction
from tape.db.maintain.purge import Purging, WrittenSince, unemptied
from tape.db.maintain.purge_set import parent_of
from tape.db.read.catalog import Catalog
from tape.db.record.recorder import Recorder
from tape.db.transfer.staging import sweep
from tape.errors import OwnerMoved, TapeInUse, TapeNotFound

__all__ = ["Retaining"]

_WRITTEN = "it was written to in the meantime"


class _Judged(Struct):
    """A tape considered for retention: its number, its parent, and the reason to keep it, if there is one."""

    number: int
    parent: str | None
    """None for the first tape of those that were judged together."""
    marked: bool = False
    why: str | None = None


class Retaining:
    """Purges the old tapes of one owner, or of all."""

    def __init__(
        self, database: Database, owner: str | None, recorder: Recorder, catalog: Catalog, purging: Purging
    ) -> None:
        self._db = database
        self._owner = owner
        self._recorder = recorder
        self._catalog = catalog
        self._purging = purging

    def retain(self, limit: int, status: str | None, *, dry_run: bool) -> Retention:
        """Purge the tapes last written before ``limit``, or with ``dry_run`` only list them."""
        if not dry_run:
            for row in unemptied(self._db, self._owner):
                # An earlier run was interrupted between a tombstone and the last of its rows.
                self._purging.empty(row)
            sweep(self._recorder)
        run = _Run(self._db, self._owner, self._purging, limit, status, dry_run=dry_run)
        for page in self._catalog.oldest_first({"updated_before": limit, "status": status}):
            for number, info in page:
                if info.id not in run.gone:
                    run.consider(number, info)
        return Retention(dry_run=dry_run, tapes=list(run.gone), entries=run.entries, kept=run.kept)


class _Run:
    """One run: what it has purged, or would have, and what it has kept."""

    def __init__(
        self, database: Database, owner: str | None, purging: Purging, limit: int, status: str | None, *, dry_run: bool
    ) -> None:
        self._db = database
        self._owner = owner
        self._purging = purging
        self._limit = limit
        self._status = status
        self._dry_run = dry_run
        self._known: dict[str, _Judged] = {}
        self.gone: dict[str, None] = {}
        self.entries = 0
        self.kept: dict[str, str] = {}

    def consider(self, number: int, info: TapeInfo) -> None:
        """Purge a tape with all that descends from it, and with its marked parents if they can go; or keep it."""
        if info.id not in self._known:
            # Parents come before their forks, so each family is judged once, as a whole.
            self._known |= self._db.read(partial(self._judge, info.id, number))
        why: str | None = None
        for name in self._candidates(info.id):
            why = self._purge(name)
            if why is None:
                return
        self.kept[info.id] = why or _WRITTEN

    def _candidates(self, tape: str) -> Iterator[str]:
        """Yield the tapes with which a tape may go: its marked parents, the highest first, then itself."""
        chain = [tape]
        while (parent := self._known[chain[-1]].parent) in self._known and self._known[parent].marked:
            chain.append(parent)
        yield from reversed(chain)

    def _purge(self, tape: str) -> str | None:
        """Purge a tape with all that descends from it; returns the reason if it must be kept."""
        if tape.startswith(RECORDS):
            # Without it the owner's tapes would be looked for, and written, where they no longer are.
            return "it records where an owner's tapes are"
        if self._known[tape].why is not None:
            return self._known[tape].why
        try:
            if self._dry_run:
                done = self._purging.foresee(tape, forks=True, gone=self.gone.keys())
            else:
                done = self._purging.purge(tape, forks=True, check=self._is_old)
        except TapeInUse as used:
            # With all of its forks, it can only be linked to.
            return f"tape {used.by[0]!r} links to it"
        except (WrittenSince, TapeNotFound):
            return _WRITTEN
        except OwnerMoved as moved:
            return f"its owner was moved to database {moved.database!r}"
        self.gone.update(dict.fromkeys(done.tapes))
        self.entries += done.entries
        for name in done.tapes:
            self._known.pop(name, None)
            # A marked tape goes with the last of its forks, however young it is.
            self.kept.pop(name, None)
        return None

    def _is_old(self, stamp: int, status: str) -> bool:
        return stamp < self._limit and self._status in (None, status)

    def _judge(self, tape: str, number: int, tx: Transaction) -> dict[str, _Judged]:
        """Return, for a tape with the marked parents above it and all that descends from them, what must be kept."""
        while (above := parent_of(tx, number, self._owner)) is not None and above.head.hidden == WHEN_FREE:
            tape, number = above.tape, above.head.number
        family = {tape: _Judged(number, None)}
        names = [tape]
        for name in names:
            judged = family[name]
            row = tx.one(tx.statements.head, (name,))
            judged.marked = row is not None and row.hidden == WHEN_FREE
            if row is None or not (judged.marked or self._is_old(row.stamp, row.tape_status)):
                judged.why = _WRITTEN
                over = judged.parent
                while over is not None and family[over].why is None:
                    family[over].why = f"its fork {name!r} must be kept"
                    over = family[over].parent
            for child, below, *_ in tx.all(tx.statements.forks_of, (judged.number,)):
                family[child] = _Judged(below, name)
                names.append(child)
        return family
