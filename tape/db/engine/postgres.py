"""PostgreSQL: connections taken in turns, a write in as few trips as can be, and what an error of PostgreSQL means."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.db.engine.citus import Shards, hot_append, recognized
from tape.db.engine.connect import Session, Unreachable
from tape.db.engine.failures import READ_ONLY_STATES, Again, Broken, Collision, Denied, Lost
from tape.db.engine.sharing import Gate, Named, Together, run_together, share
from tape.db.engine.transaction import Database, Transaction, inherited_connections, lock_key
from tape.db.engine.wakeup import watch_postgres
from tape.db.schema.found import found_home
from tape.db.schema.tables import HOME, PREFIX
from tape.db.sql import Statement, Statements
from tape.db.sql.compiler import Insert
from tape.errors import ReadOnly, StoreBusy, StoreFailed

__all__ = ["PostgresDatabase", "ReadOnlyPostgres", "postgres_error"]

R = TypeVar("R")
T = TypeVar("T")
Row = Sequence[Any]

_CONNECTIONS = 64
"""How many connections one store uses at once on PostgreSQL; further callers wait for one."""
_KNOCKS = 3
"""How often a connection is tried before the database counts as away."""
_TOGETHER = 1_000
"""How many rows one statement inserts."""
_VALUES = 100
"""How many rows of values one statement inserts, where it cannot be given columns."""
_IDLE = 0
"""What libpq calls a connection outside a transaction and without a statement under way."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Said in full: with another default the reads after the lock would see what was there before it."""
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_DAMAGE = {"42P01": False, "42703": False, "XX001": True, "XX002": True}
"""What PostgreSQL calls a missing table or column, and a damaged table or index; whether the disk is at fault."""


class PostgresDatabase(Database):
    """PostgreSQL: writers of one tape exclude each other by an advisory lock, others run side by side."""

    postgres = True

    def __init__(
        self, engine: sa.Engine, session: Session, schema: str | None, timeout: float, prefix: str = PREFIX
    ) -> None:
        import psycopg

        super().__init__(engine, schema, timeout, prefix)
        self._session = session
        self.driver_error = psycopg.Error
        self._announce_after = 0.0
        self._shards: Shards | None = None
        self._reset()

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
        self._idle: deque[Any] = deque()
        self._gates = Named(Gate)
        self._locks = Named(threading.RLock)
        self._room = threading.Semaphore(_CONNECTIONS)
        self._transacting: set[int] = set()
        """The threads that run a transaction of several calls."""

    def _take(self) -> Any:
        import psycopg

        if not self._room.acquire(False) and not self._room.acquire(timeout=self.timeout):
            raise StoreBusy(self.timeout)
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            for attempt in range(_KNOCKS):
                try:
                    return self._open_connection()
                except psycopg.Error as error:
                    # A server that restarts may end a connection while it is being made.
                    if attempt == _KNOCKS - 1:
                        raise Unreachable(f"cannot connect: {error}") from error
        except BaseException:
            self._room.release()
            raise

    def _give(self, connection: Any, *, broken: bool) -> None:
        if broken or connection.closed:
            connection.close()
        else:
            self._idle.append(connection)
            if self._closed:
                self._drain()
        self._room.release()

    def _drain(self) -> None:
        """Close the kept connections: the store is closed, or one of them is dead and then all may be."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def write(
        self,
        tape: str,
        work: Callable[[Transaction], R],
        *,
        patience: float | None = None,
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
        """Run ``work``; the transaction begins when it locks the tape or writes."""
        self._check_open()
        self._check_outside()
        # Threads of one process queue here rather than each holding a connection that waits.
        queue = self._locks.take(tape)
        patience = self.timeout if patience is None else patience
        try:
            if _owned(queue):
                # A callback of the caller's writes: waiting for itself would never end.
                raise StoreFailed("a write was started from inside a write of the same tape")
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
                if _owned(queue):
                    queue.release()
        finally:
            self._locks.give(tape)

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work``; nobody queues in the process, since which tapes it locks is found out by running it."""
        self._check_open()
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
                "a write was started from inside a transaction of the same store; "
                "use the store that its function is given"
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
        gate = self._gates.take(tape)
        try:
            return share(self, gate, tape, tasks, together)
        finally:
            self._gates.give(tape)

    def _write(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` on a connection, and commit it."""
        connection = self._take()
        broken = True
        try:
            cursor = connection.cursor(binary=True)
            transaction = _PostgresTransaction(cursor, self.statements, self._session, self._shards)
            try:
                if self._session.options:
                    # Outside a transaction they would not hold, and they may decide what is seen.
                    transaction.say()
                result = work(transaction)
                if transaction.begun:
                    # Without BEGIN there was one statement, and that is committed already.
                    self.point("commit")
                    transaction.commit()
                broken = False
                self.wakeup.ring()
                self._announce(transaction)
            except BaseException as error:
                broken = not transaction.rollback()
                told = postgres_error(error, self.timeout, connection)
                if isinstance(told, Lost):
                    self._drain()
                    if not transaction.deciding:
                        # The server rolls back what it was not told to commit.
                        raise Again(str(error)) from error
                if told is error:
                    raise
                raise told from error
        finally:
            self._give(connection, broken=broken)
        done = transaction.after_commit
        if done is not None:
            # Dropped at once: it refers to what holds this transaction.
            transaction.after_commit = None
            done()
        return result

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in one repeatable-read transaction; once more if the connection turns out to be dead."""
        self._check_open()
        for last in (False, True):
            connection = self._take()
            broken = True
            try:
                cursor = connection.cursor(binary=True)
                transaction = Transaction(cursor, self.statements, postgres=True)
                if self._shards is not None:
                    transaction.say(_BEGIN_READING, *self._shards.reading)
                elif self._session.local:
                    transaction.say(_BEGIN_READING, self._session.local)
                else:
                    cursor.execute(_BEGIN_READING)
                result = work(transaction)
                cursor.execute("COMMIT")
                broken = False
                return result
            except BaseException as error:
                with contextlib.suppress(Exception):
                    cursor.execute("ROLLBACK")
                    broken = False
                told = postgres_error(error, self.timeout, connection)
                if isinstance(told, Lost):
                    self._drain()
                    if not last:
                        continue
                if isinstance(told, Lost | Again):
                    raise StoreFailed(str(error)) from error
                raise told from error
            finally:
                self._give(connection, broken=broken)
        raise AssertionError("the loop returns or raises")

    def close(self) -> None:
        """Close every connection."""
        if self._inside():
            raise StoreFailed("the store was closed from inside a write")
        if not self._closed:
            self._closed = True
            self._drain()
            super().close()

    def forked(self) -> None:
        """Start again with connections of this process's own; the parent's are neither used nor closed."""
        super().forked()
        inherited_connections.append(self._idle)
        self._reset()


class ReadOnlyPostgres(PostgresDatabase):
    """A store on PostgreSQL that is only read: by a role that may no more, or on a standby."""

    read_only = True

    def write(self, tape: str, work: Callable[[Transaction], R], **_: Any) -> R:
        """Refuse to write."""
        self._check_open()
        raise ReadOnly("the store was opened to be read only")

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Refuse to write."""
        return self.write("", work)


def _owned(lock: threading.RLock) -> bool:
    """Whether the calling thread holds a lock.

    A signal may interrupt a thread after it took the lock and before that is noted: only the lock itself knows.
    """
    return bool(lock._is_owned())  # type: ignore[attr-defined]


class _PostgresTransaction(Transaction):
    """A transaction that begins when it has to, so that a single statement can do without."""

    __slots__ = ("_session", "_shards", "begun", "deciding")

    def __init__(self, cursor: Any, statements: Statements, session: Session, shards: Shards | None) -> None:
        super().__init__(cursor, statements, postgres=True)
        self._session = session
        self._shards = shards
        self.begun = False
        self.deciding = False
        """Whether something was sent that the server may have committed."""

    def lock(self, tape: str) -> None:
        if self.unit is None:
            self._begin()
        super().lock(tape)

    def try_lock(self, tape: str) -> bool:
        self._begin()
        return super().try_lock(tape)

    def run(self, statement: Statement[Any], params: Row) -> int:
        self._begin()
        return super().run(statement, params)

    def many(self, statement: Statement[Any], rows: Sequence[Row]) -> int:
        """Run a change for every row; inserts go by a thousand rows, unless those are very large."""
        from tape.db.engine.arrays import columns_of

        self._begin()
        if not isinstance(statement, Insert) or len(rows) < 2:
            return super().many(statement, rows)
        count = 0
        if not statement.arrays:
            for start in range(0, len(rows), _VALUES):
                part = rows[start : start + _VALUES]
                count += self._insert(statement.times(len(part)), list(chain.from_iterable(part)))
            return count
        for start in range(0, len(rows), _TOGETHER):
            part = rows[start : start + _TOGETHER]
            columns = columns_of(part, statement.types)
            count += super().many(statement, part) if columns is None else self._insert(statement.arrays, columns)
        return count

    def _insert(self, text: str, columns: Row) -> int:
        count: int = self.execute(text, columns).rowcount
        return count

    def say(self, *statements: str) -> None:
        if self.begun:
            super().say(*statements)
            return
        self.begun = True
        with _on_standby():
            local = self._session.local
            settings = self._shards.settings if self._shards is not None else (local,) if local else ()
            super().say(_BEGIN, *settings, *statements)

    def hot(self, head: Row, entries: Sequence[Row], rows: Sequence[Row], lookup: Row, *, event: bool = False) -> bool:
        from tape.db.engine.arrays import columns_of

        if self._shards is not None:
            return self._hot_on_shards(self._shards, head, entries, rows, lookup, event=event)
        sql = self.statements
        if len(entries) == 1:
            statement = sql.event_hot if event else sql.append_hot_forked if lookup else sql.append_hot
            given: Row = (*entries[0], *rows[0], *lookup)
        else:
            statement = sql.extend_hot
            columns, opened = columns_of(entries, sql.insert_entry.types), columns_of(rows, sql.open_row.types)
            if columns is None or opened is None:
                return False
            given = columns + opened
        # As a part of a transaction it decides nothing.
        self.deciding = not self.begun
        if statement is None:
            return False
        if self._session.local and not self.begun:
            run = self._session.run_alone if len(entries) == 1 else self._session.run_batch
            return run(self.connection, statement.sql, statement.bind((*head, *given))) is not None
        return self.one(statement, (*head, *given)) is not None

    def _hot_on_shards(
        self, shards: Shards, head: Row, entries: Sequence[Row], rows: Sequence[Row], lookup: Row, *, event: bool
    ) -> bool:
        if len(entries) > _VALUES:
            return False
        alone = not self.begun
        # If it fails, the transaction that it began is still there.
        self.deciding, self.begun = alone, True
        whole = (_BEGIN, *shards.brief) if alone else ()
        hot_append(self, shards, head, entries, rows, lookup, event=event, whole=whole)
        self.begun = not alone
        return True

    def _begin(self) -> None:
        if self.begun:
            return
        if self._shards is not None or self._session.local:
            self.say()
            return
        self.begun = True
        with _on_standby():
            self._cursor.execute(_BEGIN)

    def commit(self) -> None:
        self.deciding = True
        self._cursor.execute("COMMIT")

    def rollback(self) -> bool:
        """Undo everything; tells whether the connection can be used again."""
        try:
            if self.begun:
                self._cursor.execute("ROLLBACK")
            # Not idle: something interrupted a statement, whose answer is still to come.
            return bool(self._cursor.connection.info.transaction_status == _IDLE)
        except Exception:
            return False


@contextlib.contextmanager
def _on_standby() -> Iterator[None]:
    """Tell what it means that a transaction which writes cannot begin."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) in READ_ONLY_STATES:
            raise ReadOnly(f"the server is a standby and can only be read: {error}") from error
        raise


def postgres_error(error: BaseException, waited: float, connection: Any = None) -> BaseException:
    """Return what an error of PostgreSQL means."""
    import psycopg

    if not isinstance(error, psycopg.Error):
        return error
    state = error.sqlstate
    if isinstance(error, psycopg.IntegrityError):
        return Collision(str(error))
    if state == "55P03":
        return StoreBusy(waited)
    if state == "42501":
        return Denied(f"PostgreSQL refused: {error}")
    if state == "25006":
        return ReadOnly(f"PostgreSQL can only be read: {error}")
    if state in _DAMAGE:
        return Broken(f"PostgreSQL failed: {error}", spoilt=_DAMAGE[state])
    if state in ("40001", "40P01"):
        return Again(str(error))
    if connection is not None and connection.closed:
        # However the server put it: terminated, shut down, idle for too long.
        return Lost(str(error))
    if state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Lost(str(error))
    if state is not None and (state[:2] == "08" or state in ("57P01", "57P02", "57P03")):
        return Lost(str(error))
    return StoreFailed(f"PostgreSQL failed: {error}")
