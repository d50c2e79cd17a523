"""Transactions of the caller's: a function that reads and writes several tapes is run until all of it is committed.

It is run once more when the database has undone it. If the reply to its commit was lost, one of its entries tells
whether that happened: then the function is not run again, and what it returned holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from tape.db.engine.failures import Again, Collision, Lost, Raised, Undone
from tape.db.engine.log import log
from tape.db.engine.transacting import Transacting
from tape.db.engine.transaction import Transaction, Wrote
from tape.db.record.recorder import Recorder
from tape.db.record.writing import keep
from tape.errors import CommitUnknown, StoreBusy, StoreFailed

__all__ = ["run_transaction"]

R = TypeVar("R")

_ATTEMPTS = 30
"""How often a function is run at most."""
_PATIENT_AFTER = 20
"""After so many runs it waits for every tape, and leaves it to PostgreSQL to find a deadlock, which takes a second."""


def run_transaction(recorder: Recorder, function: Callable[[Transacting], R]) -> R:
    """Run a function of the caller's in one transaction, as often as it takes, and return what it returned."""
    try:
        return _Runs(recorder, function).until_committed()
    except Raised as raised:
        error = raised.error
    # Raised out here, so that its traceback and context show only what led to it.
    raise error


class _Runs(Generic[R]):
    """The runs of one function, and what each has to know of those before it."""

    _result: R

    def __init__(self, recorder: Recorder, function: Callable[[Transacting], R]) -> None:
        self._recorder = recorder
        self._function = function
        self._wanted: list[str] = []
        """The tapes that the runs so far have locked, or tried to."""
        self._wrote: Wrote | None = None
        """The last entry of the last run."""
        self._lost: Wrote | None = None
        """The same, of a run that may have been committed."""
        self._losses = 0

    def until_committed(self) -> R:
        """Run the function until it is committed, or cannot be."""
        database, began = self._recorder.shared.database, time.monotonic()
        for number in range(_ATTEMPTS):
            try:
                result = database.transact(partial(self._attempt, number >= _PATIENT_AFTER))
                self._tell(time.monotonic() - began)
                return result
            except (Again, Undone, Collision) as error:
                log.info("tape.retry", tape=self._first, attempt=number, why=str(error))
            except Lost as error:
                log.warning("tape.connection_lost", tape=self._first, attempt=number)
                self._losses += 1
                self._lost = self._wrote
                if self._lost is not None and self._losses > 2:
                    raise self._unknown(self._lost) from error
            except (StoreFailed, StoreBusy) as error:
                # True of this attempt only: an earlier one may have been recorded.
                if self._lost is not None:
                    raise self._unknown(self._lost) from error
                raise
        if self._lost is not None:
            raise self._unknown(self._lost)
        raise StoreBusy(time.monotonic() - began)

    def _attempt(self, patient: bool, tx: Transaction) -> R:
        if self._lost is not None and self._committed(tx, self._lost):
            return self._result
        self._lost = self._wrote = None
        shared = self._recorder.shared
        # A caller's own transaction is not ours to begin again.
        joined = Transacting(tx, shared.database, shared.owner, patient=patient or shared.heads is None)
        try:
            # Two that wait for each other's tapes lock them in one order when they are run again.
            joined.touch(self._wanted)
            result = self._run(joined)
        finally:
            self._wanted = list(joined.unit.wanted)
            joined.end()
        self._result, self._wrote = result, joined.unit.wrote
        if shared.heads is not None:
            tx.after_commit = partial(self._keep, joined)
        return result

    def _run(self, joined: Transacting) -> R:
        try:
            result = self._function(joined)
        except BaseException as error:
            if isinstance(joined.doomed, Undone) and isinstance(error, Exception):
                # Whatever error the function raised instead.
                raise joined.doomed from error
            raise Raised(error) from error
        if joined.doomed is not None:
            raise joined.doomed
        return result

    def _committed(self, tx: Transaction, wrote: Wrote) -> bool:
        """Whether a run was committed whose reply was lost; the lock of its tape is free when that is decided."""
        tx.lock(wrote.tape)
        row = tx.one(tx.statements.head, (wrote.tape,))
        if row is None:
            return False
        if row.tape_status == "purged":
            raise self._unknown(wrote)
        entry = tx.one(tx.statements.entry, (row.number, wrote.seq))
        return entry is not None and bytes(entry.hash) == wrote.hash

    def _keep(self, joined: Transacting) -> None:
        """Keep the heads for the next writes: it is committed."""
        heads = joined.parent.heads
        for name in joined.known:
            heads.pop(name, None)
        keep(heads, joined.heads)

    def _unknown(self, wrote: Wrote) -> CommitUnknown:
        return CommitUnknown(wrote.tape, wrote.key)

    @property
    def _first(self) -> str | None:
        return self._wanted[0] if self._wanted else None

    def _tell(self, took: float) -> None:
        if took > self._recorder.slow and self._wrote is not None:
            log.warning("tape.slow", tape=self._wrote.tape, seconds=round(took, 3), tapes=len(self._wanted))
