"""Retention: the tapes that were not written for some time are purged, each with all that descends from it."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from tape.core.places import RECORDS
from tape.core.records import Retention, TapeInfo
from tape.db.engine.transaction import Database, Transaction
from tape.db.maintain.purge import Purging, WrittenSince, unemptied
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
        run = _Run(self._db, self._purging, limit, status, dry_run=dry_run)
        for page in self._catalog.oldest_first({"updated_before": limit, "status": status}):
            for number, info in page:
                if info.id not in run.gone:
                    run.consider(number, info)
        return Retention(dry_run=dry_run, tapes=list(run.gone), entries=run.entries, kept=run.kept)


class _Run:
    """One run: what it has purged, or would have, and what it has kept."""

    def __init__(self, database: Database, purging: Purging, limit: int, status: str | None, *, dry_run: bool) -> None:
        self._db = database
        self._purging = purging
        self._limit = limit
        self._status = status
        self._dry_run = dry_run
        self._known: dict[str, _Judged] = {}
        self.gone: dict[str, None] = {}
        self.entries = 0
        self.kept: dict[str, str] = {}

    def consider(self, number: int, info: TapeInfo) -> None:
        """Purge a tape with all that descends from it, or keep it."""
        if info.id not in self._known:
            # Parents come before their forks, so each family is judged once, as a whole.
            self._known |= self._db.read(partial(self._judge, info.id, number))
        if (why := self._purge(info.id)) is not None:
            self.kept[info.id] = why

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
            return f"tape {used.by[0]!r} links to it"
        except (WrittenSince, TapeNotFound):
            return _WRITTEN
        except OwnerMoved as moved:
            return f"its owner was moved to database {moved.database!r}"
        self.gone.update(dict.fromkeys(done.tapes))
        self.entries += done.entries
        return None

    def _is_old(self, stamp: int, status: str) -> bool:
        return stamp < self._limit and self._status in (None, status)

    def _judge(self, tape: str, number: int, tx: Transaction) -> dict[str, _Judged]:
        """Return a tape and all that descends from it, each with the reason to keep it."""
        family = {tape: _Judged(number, None)}
        for name in (names := [tape]):
            judged = family[name]
            row = tx.one(tx.statements.head, (name,))
            if row is None or not self._is_old(row.stamp, row.tape_status):
                judged.why = _WRITTEN
                over = judged.parent
                while over is not None and family[over].why is None:
                    family[over].why = f"its fork {name!r} must be kept"
                    over = family[over].parent
            for fork in tx.all(tx.statements.forks_of, (judged.number,)):
                family[fork.tape] = _Judged(fork.number, name)
                names.append(fork.tape)
        return family
