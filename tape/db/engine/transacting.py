"""A transaction of the caller's: several calls on the store's own connection, which commit together or not at all.

Each call runs inside a savepoint, so that one which is refused leaves nothing and the others can go on. Every tape that
is read or written is locked from then on. If the database undoes all of it (a deadlock, a lost connection), or nobody
knows what is left, no further call is run and nothing is committed, whatever the caller makes of the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from tape.db.engine.failures import Again, Lost, Undone
from tape.db.engine.guests import Joined
from tape.db.engine.transaction import Database, Transaction, Unit, Wrote, lock_key
from tape.errors import NotInTransaction, StoreFailed

__all__ = ["Transacting"]

R = TypeVar("R")

_CALL, _NESTED = "tape_call", "tape_nested"


class Transacting(Joined):
    """One run of a transaction of the caller's, as the database of the store that is given to its function."""

    def __init__(self, transaction: Transaction, parent: Database, owner: str | None, *, patient: bool) -> None:
        super().__init__(transaction, parent)
        self.unit = Unit(parent.timeout, patient=patient)
        # One that only reads sees one state throughout, and locks nothing.
        transaction.unit = None if parent.read_only else self.unit
        self.doomed: Exception | None = None
        """Why nothing of this run can be committed: Undone if it can be run again, or the error to end with."""
        self.known: set[tuple[str | None, str]] = set()
        """The tapes, each for the owner of the store, of which the parent's kept head may not hold afterwards."""
        self._owner = owner
        self._thread = threading.get_ident()
        self._ended = False
        self._inside = False
        """Whether a call is being run that writes."""
        self._saved = False
        """Whether the savepoint of the last call is still there: it is given up when the next one begins."""

    def end(self) -> None:
        """Let nobody use it from now on."""
        self._ended = True
        self._transaction.unit = None

    def write(
        self,
        tape: str,
        work: Callable[[Transaction], R],
        *,
        patience: float | None = None,
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
        """Run ``work`` inside a savepoint, with the tape locked before it: a refusal does not unlock it."""
        self._check_free()
        self.check_writable()
        transaction = self._transaction
        self._save(_CALL, (tape,))
        self._saved = True
        self._take_along(tape)
        mark = self._mark()
        self._inside = True
        try:
            result = work(transaction)
        except BaseException as error:
            transaction.after_commit = None
            told = self._judge(error)
            if isinstance(told, Undone):
                self._doom(error)
            self._undo(mark, error, f"ROLLBACK TO SAVEPOINT {_CALL}")
            if told is error:
                raise
            raise told from error
        finally:
            self._inside = False
        # Within this transaction the call is done, and the next one may rely on the head it leaves.
        done, transaction.after_commit = transaction.after_commit, None
        if done is not None:
            done()
        return result

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` where it sees what was written before; the tapes that it opens are locked."""
        self._check()
        try:
            return work(self._transaction)
        except (self.driver_error, Undone) as error:
            if self.postgres or not self._transaction.alive:
                self._doom(error)
            raise self._judge(error) from error

    def nested(self, work: Callable[[], R]) -> R:
        """Run ``work``, a function of the caller's that has this transaction to itself, as a part of it."""
        self._check_free()
        self._save(_NESTED, ())
        mark = self._mark()
        try:
            result = work()
        except BaseException as error:
            if self.doomed is None:
                self.heads.clear()
                self._undo(mark, error, f"ROLLBACK TO SAVEPOINT {_NESTED}", f"RELEASE SAVEPOINT {_NESTED}")
                self._saved = False
            raise
        self._check()
        self._acquire((), after=[f"RELEASE SAVEPOINT {_NESTED}"])
        self._saved = False
        return result

    def touch(self, tapes: Sequence[str]) -> None:
        """Lock tapes in the one order in which everybody does who names them beforehand."""
        self._check()
        if self.read_only:
            return
        self.known.update((self._owner, tape) for tape in tapes)
        self._acquire(sorted(set(tapes), key=lock_key))

    def outside(self, call: str) -> None:
        """Refuse a call that can have no part in a transaction."""
        self._check_running()
        raise NotInTransaction(call)

    # -- savepoints

    def _save(self, name: str, tapes: Sequence[str]) -> None:
        """Set a savepoint, after locking tapes; the savepoint of the call before is not needed any more."""
        before = [f"RELEASE SAVEPOINT {_CALL}"] if self._saved else []
        self._acquire(tapes, before=before, after=[f"SAVEPOINT {name}"])
        self._saved = False

    def _mark(self) -> tuple[int, Wrote | None]:
        return len(self.unit.held), self.unit.wrote

    def _undo(self, mark: tuple[int, Wrote | None], error: BaseException, *back: str) -> None:
        """Go back to a savepoint after an error; if that fails nothing can be committed."""
        try:
            self._transaction.say(*back)
        except Exception as broken:
            if isinstance(error, Exception):
                self._doom(broken)
            self.doomed = _interrupted(error)
        count, self.unit.wrote = mark
        for tape in list(self.unit.held)[count:]:
            # The database has given these locks back.
            del self.unit.held[tape]

    def _acquire(self, tapes: Sequence[str], *, before: Sequence[str] = (), after: Sequence[str] = ()) -> None:
        """Lock tapes and set or give up savepoints; without that nothing can be undone or committed."""
        try:
            self._transaction.acquire(self.unit, tapes, before=before, after=after)
        except BaseException as error:
            self._doom(error)

    def _doom(self, error: BaseException) -> NoReturn:
        """Let nothing of this run be committed, and raise what the error means."""
        told = self._judge(error)
        self.doomed = told if isinstance(told, Exception) else _interrupted(told)
        if told is error:
            raise error
        raise told from error

    def _judge(self, error: BaseException) -> BaseException:
        told = self._told(error)
        # Nothing was committed: with the connection all of the transaction is gone.
        return Undone(str(error)) if isinstance(told, Again | Lost) else told

    # -- heads

    def _take_along(self, tape: str) -> None:
        """Take over the head that the parent keeps of a tape, when it is written for the first time."""
        name = self._owner, tape
        if name not in self.known:
            self.known.add(name)
            state: Any = self.parent.heads.get(name)
            if state is not None:
                self.heads[name] = state

    # -- who may use it

    def _check_running(self) -> None:
        if self._ended:
            raise StoreFailed("the transaction has ended; its store and handles can no longer be used")

    def _check(self) -> None:
        self._check_running()
        if threading.get_ident() != self._thread:
            raise StoreFailed("a transaction can only be used in the thread that runs its function")
        if self.doomed is not None:
            raise self.doomed

    def _check_free(self) -> None:
        self._check()
        if self._inside:
            raise StoreFailed("a write was started inside another write of the same transaction")


def _interrupted(error: BaseException) -> StoreFailed:
    return StoreFailed(f"the transaction was interrupted by {error!r}")
