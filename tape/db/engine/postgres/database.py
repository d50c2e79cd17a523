"""PostgreSQL: who writes, who waits, and what a broken connection means for a write or a read."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.db.engine.connect import Session
from tape.db.engine.failures import Again, Broken, Collision, Lost
from tape.db.engine.postgres.citus import Shards, recognized
from tape.db.engine.postgres.connections import Connections
from tape.db.engine.postgres.errors import postgres_error
from tape.db.engine.postgres.transaction import PostgresTransaction
from tape.db.engine.process_fork import keep, on_fork
from tape.db.engine.sharing import Gate, Named, Together, run_together, share
from tape.db.engine.transaction import Database, Transaction, lock_key
from tape.db.engine.wakeup import watch_postgres
from tape.db.schema.found import found_home
from tape.db.schema.tables import HOME
from tape.errors import ReadOnly, StoreBusy, StoreFailed

__all__ = ["PostgresDatabase", "ReadOnlyPostgres"]

R = TypeVar("R")
T = TypeVar("T")

_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresDatabase(Database):
    """PostgreSQL: writers of one tape exclude each other by an advisory lock, others run side by side."""

    postgres = True

    def __init__(self, engine: sa.Engine, session: Session, schema: str | None, timeout: float) -> None:
        import psycopg

        super().__init__(engine, schema, timeout)
        self._session = session
        self.driver_error = psycopg.Error
        self._announce_after = 0.0
        self._shards: Shards | None = None
        self._reset()
        # Last: another thread may fork at any moment.
        on_fork(self)

    def recognize(self) -> None:
        """Find out in which schema the store is, if that was not said, and whether it is on a worker of Citus."""

        def ask(tx: Transaction) -> tuple[str, Shards | None]:
            schema = self.tables.schema
            home = found_home(tx.execute, self.tables) if schema is None else HOME
            return home, recognized(tx, schema, self.timeout)

        home, self._shards = self.read(ask)
        if home != HOME or self._shards is not None:
            self._compile(home, sharded=self._shards is not None)

    @property
    def local(self) -> str:
        """The statements that make the settings of a transaction, behind a pooler."""
        return self._session.local

    @property
    def _channel(self) -> str:
        number = lock_key("feed", self.tables.lock_space)
        return f"tape_{number & (2**64 - 1):016x}"

    def _watch(self, ring: Callable[[], None], stop: threading.Event) -> None:
        # A pooler gives nobody a session to listen in: followers then look at intervals.
        if not self._session.local:
            watch_postgres(self._open_connection, self._channel, ring, stop)

    def _announce(self, transaction: Transaction) -> None:
        """Tell followers in other processes, at most twenty times a second; those look again soon after each."""
        # Not in the appending transaction: there every commit would queue for the one lock that notifications take.
        now = time.monotonic()
        if now >= self._announce_after:
            self._announce_after = now + 0.05
            with contextlib.suppress(Exception):
                transaction.execute("SELECT pg_notify(%s, '')", (self._channel,))

    def _reset(self) -> None:
        self._connections = Connections(self._open_connection, self.timeout)
        self._gates = Named(Gate)
        self._locks = Named(threading.RLock)
        self._transacting: set[int] = set()
        """The threads that run a transaction of several calls."""

    def write(
        self,
        tape: str,
        work: Callable[[Transaction], R],
        *,
        patience: float | None = None,
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
        """Run ``work``; the transaction begins when it locks the tape or writes."""
        self.check_open()
        self._check_outside()
        # Threads of one process queue here rather than each holding a connection that waits.
        locks = self._locks
        queue = locks.take(tape)
        patience = self.timeout if patience is None else patience
        if _owned(queue):
            # A callback of the caller's writes: waiting for itself would never end.
            locks.give(tape)
            raise StoreFailed("a write was started inside another write of the same tape, where it would wait forever")
        left = False
        interrupted: BaseException | None = None
        try:
            if not queue.acquire(timeout=patience):
                raise StoreBusy(patience)
            try:
                return self._write(work)
            except Collision:
                if again is None:
                    raise
                return self._write(again)
        finally:
            # As at a gate: a signal may come here as well.
            while not left:
                try:
                    if _owned(queue):
                        queue.release()
                    left = True
                except BaseException as error:
                    interrupted = error
            locks.give(tape)
            if interrupted is not None:
                raise interrupted

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work``; nobody queues in the process, since which tapes it locks is found out by running it."""
        self.check_open()
        me = threading.get_ident()
        self._check_outside()
        try:
            self._transacting.add(me)
            return self._write(work)
        finally:
            self._transacting.discard(me)

    def _check_outside(self) -> None:
        if self._inside():
            raise StoreFailed(
                "a write was started inside a transaction of the same store; "
                "use the store that the transaction passes to your function"
            )

    def _inside(self) -> bool:
        """Whether this thread runs a transaction of several calls."""
        return bool(self._transacting) and threading.get_ident() in self._transacting

    def share(self, tape: str, tasks: Sequence[T], together: Together[T, R]) -> list[R | Exception]:
        """Run ``tasks`` with those of all threads that write the same tape at the same moment."""
        self._check_outside()
        lock = self._locks[tape]
        if lock is not None and _owned(lock):
            # A callback of the caller's writes inside a write: it must not queue behind its own thread.
            return run_together(self, tape, tasks, together)
        gates = self._gates
        gate = gates.take(tape)
        try:
            return share(self, gate, tape, tasks, together)
        finally:
            gates.give(tape)

    def _write(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` on a connection, and commit it."""
        try:
            result, done = self._connections.use(partial(self._commit, work))
        except Broken as told:
            raise self.outdated(told) from told.__cause__
        if done is not None:
            done()
        return result

    def _commit(self, work: Callable[[Transaction], R], connection: Any) -> tuple[R, Callable[[], None] | None]:
        transaction = PostgresTransaction(connection.cursor(binary=True), self.statements, self._session, self._shards)
        self._running.add(transaction)
        try:
            if self._session.options:
                # Outside a transaction they would not hold, and they may decide what is seen.
                transaction.say()
            result = work(transaction)
            if transaction.begun:
                # Without BEGIN there was one statement, and that is committed already.
                self.point("commit")
                transaction.commit()
            self.wakeup.ring()
            self._announce(transaction)
        except BaseException as error:
            transaction.rollback()
            told = postgres_error(error, self.timeout, connection)
            if connection.closed or isinstance(told, Lost):
                self._connections.drain()
            if isinstance(told, Lost) and not transaction.deciding:
                # The server rolls back what it was not told to commit.
                raise Again(str(error)) from error
            if told is error:
                raise
            raise told from error
        finally:
            self._running.discard(transaction)
        # Taken from it: what is called refers to what holds this transaction.
        done, transaction.after_commit = transaction.after_commit, None
        return result, done

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in one repeatable-read transaction; once more if the connection turns out to be dead."""
        self.check_open()
        for last in (False, True):
            try:
                return self._connections.use(partial(self._look, work))
            except Broken as told:
                raise self.outdated(told) from told.__cause__
            except (Lost, Again) as told:
                if isinstance(told, Lost):
                    self._connections.drain()
                    if not last:
                        continue
                raise StoreFailed(str(told)) from told.__cause__
        raise AssertionError("the loop returns or raises")

    def _look(self, work: Callable[[Transaction], R], connection: Any) -> R:
        transaction = Transaction(connection.cursor(binary=True), self.statements, postgres=True)
        self._running.add(transaction)
        try:
            if self._shards is not None:
                transaction.say(_BEGIN_READING, *self._shards.reading)
            elif self._session.local:
                transaction.say(_BEGIN_READING, self._session.local)
            else:
                transaction.execute(_BEGIN_READING)
            result = work(transaction)
            transaction.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(Exception):
                transaction.say("ROLLBACK")
            told = postgres_error(error, self.timeout, connection)
            if told is error:
                raise
            raise told from error
        finally:
            self._running.discard(transaction)
        return result

    def close(self) -> None:
        """Close every connection."""
        if self._inside():
            raise StoreFailed("the store cannot be closed inside a write or a transaction; close it afterwards")
        if not self._closed:
            self._closed = True
            self._connections.close()
            super().close()

    def after_fork(self, *, child: bool) -> None:
        """Resume. A child opens new connections, and neither uses nor closes those of its parent."""
        super().after_fork(child=child)
        if child:
            self._connections.sever()
            keep(self._connections)
            self._reset()


class ReadOnlyPostgres(PostgresDatabase):
    """A store on PostgreSQL that is only read: by a role that may no more, or on a standby."""

    read_only = True

    def write(self, tape: str, work: Callable[[Transaction], R], **_: Any) -> R:
        """Refuse to write."""
        self.check_open()
        raise ReadOnly("the store was opened read-only")

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` where it reads one state, and every write in it is refused."""
        return self.read(work)


def _owned(lock: threading.RLock) -> bool:
    """Whether the calling thread holds a lock.

    A signal may interrupt a thread after it took the lock and before that is noted: only the lock itself knows.
    """
    return bool(lock._is_owned())  # type: ignore[attr-defined]
