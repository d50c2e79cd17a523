"""Transactions: who may write when, what is committed, and what an error of the database means.

``Database.write`` runs a piece of work in one writing transaction, ``Database.read`` in one snapshot. Errors are
judged by the codes of the drivers, never by their texts, and leave here as one of a few: ``Collision`` (a unique
key is taken), ``Again`` (the database says that nothing happened), ``Lost`` (it cannot say), StoreBusy,
StoreFailed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.db.bell import Bell, watch_postgres, watch_sqlite
from tape.db.connect import is_memory, make_engine
from tape.db.schema import Tables
from tape.db.sql import Statement, Statements
from tape.db.turn import Turn
from tape.errors import StoreBusy, StoreFailed, TapeError

__all__ = ["Again", "Bound", "Collision", "Database", "Lost", "Transaction", "open_database"]

R = TypeVar("R")
Row = Sequence[Any]

_CONNECTIONS = 64
"""How many connections one store uses at once on PostgreSQL; further callers wait for one."""
_IDLE = 0
"""What libpq calls a connection outside a transaction and without a statement under way."""
_LONGEST_FORK = 5.0
"""Seconds for which a fork waits until reads in other threads have ended."""


class Denied(StoreFailed):
    """The role of this connection may not do it."""


class Collision(Exception):
    """A unique key is taken: someone else wrote first, or the same was written before."""


class Again(Exception):
    """The database rolled the transaction back by itself; running it once more is safe."""


class Lost(Exception):
    """The connection broke while the transaction may have been committing."""


class Transaction:
    """Statements run on one cursor, inside one transaction."""

    __slots__ = ("_cursor", "after_commit", "execute", "postgres", "statements")

    def __init__(self, cursor: Any, statements: Statements, *, postgres: bool) -> None:
        self._cursor = cursor
        self.execute = cursor.execute
        self.statements = statements
        self.postgres = postgres
        self.after_commit: Callable[[], None] | None = None
        """Called once the transaction is committed, before the next writer begins."""

    def one(self, statement: Statement, params: Row) -> Row | None:
        """Run a query and return its first row, if any."""
        row: Row | None = self.execute(statement.sql, statement.bind(params)).fetchone()
        return row

    def all(self, statement: Statement, params: Row) -> list[Row]:
        """Run a query and return its rows."""
        rows: list[Row] = self.execute(statement.sql, statement.bind(params)).fetchall()
        return rows

    def run(self, statement: Statement, params: Row) -> int:
        """Run a change and return how many rows it touched."""
        count: int = self.execute(statement.sql, params if statement.order is None else statement.bind(params)).rowcount
        return count

    def many(self, statement: Statement, rows: Iterable[Row]) -> None:
        """Run a change once per row."""
        bound = rows if statement.order is None else (statement.bind(row) for row in rows)
        self._cursor.executemany(statement.sql, bound)

    def lock(self, tape: str) -> None:
        """Make this the only writer of ``tape`` until the transaction ends."""
        if self.postgres:
            self._cursor.execute(self.statements.lock, (lock_key(tape),))

    def hot(self, statement: Statement, params: Row) -> bool:
        """Run a statement that is a transaction by itself; tells whether it wrote."""
        raise AssertionError("only PostgreSQL has one")


def lock_key(tape: str) -> int:
    """Return the number under which writers of ``tape`` exclude each other on PostgreSQL."""
    return int.from_bytes(blake2b(b"tape:" + tape.encode(), digest_size=8).digest(), "big", signed=True)


@functools.lru_cache(maxsize=64)
def _compiled(dialect: str, schema: str | None) -> tuple[Tables, Statements]:
    """Return the tables and statements of an engine; compiling them takes most of the time of opening a store."""
    tables = Tables(dialect, schema)
    return tables, Statements(dialect, tables)


class Database:
    """One open database. Threads share it."""

    postgres = False

    def __init__(self, engine: sa.Engine, schema: str | None) -> None:
        self.engine = engine
        self.tables, self.statements = _compiled(engine.dialect.name, schema)
        self.fault: Callable[[str], None] | None = None
        """Tests set this to raise at named points inside a write."""
        self.bell = Bell(self._watch if self._watched else None)
        self._closed = False
        _open_databases.add(self)

    def write(self, tape: str, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in a transaction that excludes other writers of ``tape``, and commit it."""
        raise AssertionError("each engine writes in its own way")

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` against one unchanging state of the database."""
        raise AssertionError("each engine reads in its own way")

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._closed

    @property
    def _watched(self) -> bool:
        """Whether others can write to this database."""
        return True

    def _watch(self, ring: Callable[[], None], stop: threading.Event) -> None:
        """Ring for every commit of another process, until ``stop`` is set."""

    def backup(self, file: str | os.PathLike[str]) -> None:
        """Copy the database to a file."""
        raise StoreFailed(
            "online backup is for SQLite stores with a connection of their own; on PostgreSQL use pg_dump"
        )

    def point(self, name: str) -> None:
        """A place where a test may make the write fail."""
        if self.fault is not None:
            self.fault(name)

    def close(self) -> None:
        """Give every connection back. Further use fails."""
        self._closed = True
        self.bell.close()
        self.engine.dispose()

    def forking(self) -> None:
        """Get ready for a fork of this process; ``forked`` or ``unforked`` follows."""

    def unforked(self) -> None:
        """Go on in the process that has forked."""

    def forked(self) -> None:
        """Forget the parent's connections, in a process that was just forked."""
        self.bell = Bell(self._watch if self._watched else None)
        self.engine.dispose(close=False)

    def _open_connection(self) -> Any:
        """Return a driver connection that is ours from now on: the pool only knows how to open one.

        Left to the pool, connections that are kept would count against its limit though they never come back to it,
        and in a forked process it would tidy up what it finds abandoned there, over the parent's own socket.
        """
        pooled = self.engine.raw_connection()
        driver = pooled.driver_connection
        pooled.detach()
        return driver

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")


class SqliteDatabase(Database):
    """SQLite: one writer at a time, in the process by a lock and between processes by turns."""

    def __init__(self, engine: sa.Engine, url: sa.URL, timeout: float) -> None:
        self._memory = is_memory(url)
        super().__init__(engine, None)
        self._timeout = timeout
        path = None if self._memory else f"{os.path.realpath(url.database or '')}-writer"
        self._turn = Turn(path)
        self._reset()

    @property
    def _watched(self) -> bool:
        return not self._memory

    def _watch(self, ring: Callable[[], None], stop: threading.Event) -> None:
        watch_sqlite(self._open_connection, ring, stop)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._opening = threading.Lock()
        self._writer: tuple[sqlite3.Connection, Transaction] | None = None
        self._writing = False
        self._idle: deque[sqlite3.Connection] = deque()
        self._readers: set[sqlite3.Connection] = set()
        """Every open connection that reads, idle or not."""

    def _connect(self) -> sqlite3.Connection:
        try:
            connection: sqlite3.Connection = self._open_connection()
        except sqlite3.Error as error:
            raise _sqlite_error(error, self._timeout) from error
        return connection

    def write(self, tape: str, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` under the writer lock, between BEGIN IMMEDIATE and COMMIT."""
        if self._closed:
            self._check_open()
        lock, turn, patience = self._lock, self._turn, self._timeout
        if not lock.acquire(False):
            began = time.monotonic()
            if not lock.acquire(timeout=patience):
                raise StoreBusy(patience)
            patience = max(0.0, patience - (time.monotonic() - began))
        try:
            if self._closed:
                self._check_open()
            if self._writing:
                raise StoreFailed("a write was started from inside a write of the same store")
            driver, transaction = self._writer or self._open_writer()
            try:
                turn.take(patience)
                self._writing = True
                return self._run(driver, transaction, work)
            finally:
                self._writing = False
                turn.give()
        finally:
            lock.release()

    def _open_writer(self) -> tuple[sqlite3.Connection, Transaction]:
        """Return the one connection that writes, and what runs its statements.

        Kept until close: a checkout per operation costs as much as the statements it runs.
        """
        # In memory the pool's one connection is the database.
        driver: Any = self.engine.raw_connection().driver_connection if self._memory else self._connect()
        self._writer = (driver, Transaction(driver.cursor(), self.statements, postgres=False))
        return self._writer

    def _drop_writer(self) -> None:
        if self._writer is not None and not self._memory:
            self._writer[0].close()
            self._writer = None

    def _run(self, connection: sqlite3.Connection, transaction: Transaction, work: Callable[[Transaction], R]) -> R:
        execute = transaction.execute
        try:
            execute("BEGIN IMMEDIATE")
            result = work(transaction)
            if self.fault is not None:
                self.point("commit")
            execute("COMMIT")
        except BaseException as error:
            transaction.after_commit = None
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error:
                    # Kept, it would hold the write lock of the file from now on.
                    self._drop_writer()
            if isinstance(error, sqlite3.Error):
                raise _sqlite_error(error, self._timeout) from error
            raise
        done = transaction.after_commit
        if done is not None:
            # Dropped at once: it refers to what holds this transaction.
            transaction.after_commit = None
            done()
        self.bell.ring()
        return result

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in one deferred transaction, which sees one state throughout."""
        self._check_open()
        if self._memory:
            # There is one connection: readers wait for the writer, or they would see half of its work.
            with self._lock:
                return self._read((self._writer or self._open_writer())[0], work)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open_reader()
        try:
            return self._read(connection, work)
        finally:
            self._idle.append(connection)
            if self._closed:
                self._drain()

    def _open_reader(self) -> sqlite3.Connection:
        with self._opening:
            self._check_open()
            connection = self._connect()
            self._readers.add(connection)
            return connection

    def _drain(self) -> None:
        """Close the connections that nobody reads with."""
        while self._idle:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
                connection.close()
                self._readers.discard(connection)

    def _read(self, driver: sqlite3.Connection, work: Callable[[Transaction], R]) -> R:
        cursor = driver.cursor()
        try:
            cursor.execute("BEGIN")
            return work(Transaction(cursor, self.statements, postgres=False))
        except sqlite3.Error as error:
            raise _sqlite_error(error, self._timeout) from error
        finally:
            cursor.close()
            if driver.in_transaction:
                driver.execute("ROLLBACK")

    def backup(self, file: str | os.PathLike[str]) -> None:
        """Copy the database to a file, which appears when it is whole; writers go on meanwhile."""
        self._check_open()
        path = Path(file)
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        try:
            with contextlib.closing(sqlite3.connect(part)) as target:
                # One step: it reads one state of the database, and in WAL mode holds up nobody.
                self.read(lambda tx: tx._cursor.connection.backup(target))
            part.replace(path)
        except sqlite3.Error as error:
            raise _sqlite_error(error, self._timeout) from error
        finally:
            part.unlink(missing_ok=True)

    def close(self) -> None:
        """Close every connection; the last one to go folds the WAL into the file."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drain()
            self._drop_writer()
            super().close()
            self._turn.close()

    def forking(self) -> None:
        """Close every connection while no thread is inside SQLite.

        A forked process inherits SQLite's belief that it holds the locks of its parent, which the kernel did not give
        it: whoever closed the file next would take itself for the last user and delete the WAL under the child.
        """
        self._lock.acquire(timeout=self._timeout)
        self._opening.acquire(timeout=self._timeout)
        if self._memory or self._writing:
            return
        self._drop_writer()
        deadline = time.monotonic() + min(self._timeout, _LONGEST_FORK)
        self._drain()
        while self._readers and time.monotonic() < deadline:
            time.sleep(0.001)
            self._drain()
        self.engine.dispose()

    def unforked(self) -> None:
        """Go on; connections are opened again as they are needed."""
        for lock in (self._opening, self._lock):
            with contextlib.suppress(RuntimeError):
                lock.release()

    def forked(self) -> None:
        """Start again with connections and locks of this process's own."""
        self._turn.forget()
        writer = self._writer
        _inherited.append((writer, self._idle, self._readers))
        self._reset()
        if self._memory:
            # The child has a copy of the memory, and with it of the database.
            self._writer = writer
        else:
            super().forked()


class PostgresDatabase(Database):
    """PostgreSQL: writers of one tape exclude each other by an advisory lock, others run side by side."""

    postgres = True

    def __init__(self, engine: sa.Engine, schema: str | None, timeout: float) -> None:
        super().__init__(engine, schema)
        self._timeout = timeout
        self._announce_after = 0.0
        self._reset()

    @property
    def _channel(self) -> str:
        return f"tape_{lock_key(f'feed:{self.tables.schema}') & (2**64 - 1):016x}"

    def _watch(self, ring: Callable[[], None], stop: threading.Event) -> None:
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
        self._locks = [threading.Lock() for _ in range(64)]
        self._room = threading.Semaphore(_CONNECTIONS)

    def _take(self) -> Any:
        import psycopg

        if not self._room.acquire(False) and not self._room.acquire(timeout=self._timeout):
            raise StoreBusy(self._timeout)
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._open_connection()
        except BaseException as error:
            self._room.release()
            if isinstance(error, psycopg.Error):
                raise StoreFailed(f"cannot connect: {error}") from error
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

    def write(self, tape: str, work: Callable[[Transaction], R]) -> R:
        """Run ``work``; the transaction begins when it locks the tape or writes."""
        self._check_open()
        # Threads of one process queue here rather than each holding a connection that waits.
        queue = self._locks[hash(tape) % len(self._locks)]
        if not queue.acquire(timeout=self._timeout):
            raise StoreBusy(self._timeout)
        try:
            connection = self._take()
            broken = True
            try:
                transaction = _PostgresTransaction(connection.cursor(binary=True), self.statements)
                try:
                    result = work(transaction)
                    if transaction.begun:
                        # Without BEGIN there was one statement, and that is committed already.
                        self.point("commit")
                        transaction.commit()
                    broken = False
                    self.bell.ring()
                    self._announce(transaction)
                except BaseException as error:
                    broken = not transaction.rollback()
                    told = _postgres_error(error, self._timeout, connection)
                    if isinstance(told, Lost):
                        self._drain()
                    raise told from error
            finally:
                self._give(connection, broken=broken)
            if transaction.after_commit is not None:
                transaction.after_commit()
            return result
        finally:
            queue.release()

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in one repeatable-read transaction; once more if the connection turns out to be dead."""
        self._check_open()
        for last in (False, True):
            connection = self._take()
            broken = True
            try:
                cursor = connection.cursor(binary=True)
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                result = work(Transaction(cursor, self.statements, postgres=True))
                cursor.execute("COMMIT")
                broken = False
                return result
            except BaseException as error:
                with contextlib.suppress(Exception):
                    cursor.execute("ROLLBACK")
                    broken = False
                told = _postgres_error(error, self._timeout, connection)
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
        if not self._closed:
            self._closed = True
            self._drain()
            super().close()

    def forked(self) -> None:
        """Start again with connections of this process's own; the parent's are neither used nor closed."""
        super().forked()
        _inherited.append(self._idle)
        self._reset()


class _PostgresTransaction(Transaction):
    """A transaction that begins when it has to, so that a single statement can do without."""

    __slots__ = ("begun",)

    def __init__(self, cursor: Any, statements: Statements) -> None:
        super().__init__(cursor, statements, postgres=True)
        self.begun = False

    def lock(self, tape: str) -> None:
        self._begin()
        super().lock(tape)

    def run(self, statement: Statement, params: Row) -> int:
        self._begin()
        return super().run(statement, params)

    def many(self, statement: Statement, rows: Iterable[Row]) -> None:
        self._begin()
        super().many(statement, rows)

    def hot(self, statement: Statement, params: Row) -> bool:
        return self.one(statement, params) is not None

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            # Said in full: with another default the reads after the lock would see what was there before it.
            self._cursor.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")

    def commit(self) -> None:
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


class Bound(Database):
    """A caller's own connection: writes join its transaction, and nothing is committed here."""

    def __init__(self, connection: sa.Connection, parent: Database) -> None:
        # No super().__init__: tables and statements are the parent's, and the connection is the caller's.
        self.engine = parent.engine
        self.tables = parent.tables
        self.statements = parent.statements
        self.fault = parent.fault
        self.postgres = parent.postgres
        self.bell = parent.bell
        self._closed = False
        self._connection = connection

    def _cursor(self) -> Any:
        if self._closed or self._connection.closed:
            raise StoreFailed("the bound connection is closed")
        if not self._connection.in_transaction():
            # Without this SQLAlchemy would not know that there is something to commit.
            self._connection.begin()
        driver = self._connection.connection.driver_connection
        if not self.postgres and driver is not None and not driver.in_transaction:
            # A deferred transaction that reads before it writes fails at once when another writer was faster.
            driver.execute("BEGIN IMMEDIATE")
        return driver.cursor() if driver is not None else None

    def write(self, tape: str, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` inside a savepoint of the caller's transaction."""
        try:
            cursor = self._cursor()
            cursor.execute("SAVEPOINT tape_write")
            try:
                result = work(Transaction(cursor, self.statements, postgres=self.postgres))
                self.point("commit")
                cursor.execute("RELEASE SAVEPOINT tape_write")
            except BaseException:
                with contextlib.suppress(Exception):
                    cursor.execute("ROLLBACK TO SAVEPOINT tape_write")
                    cursor.execute("RELEASE SAVEPOINT tape_write")
                raise
            return result
        except Exception as error:
            raise self._judge(error) from error

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` on the caller's connection, where it sees what the caller wrote."""
        try:
            return work(Transaction(self._cursor(), self.statements, postgres=self.postgres))
        except Exception as error:
            raise self._judge(error) from error

    def _judge(self, error: Exception) -> BaseException:
        if isinstance(error, sa.exc.SQLAlchemyError):
            cause = getattr(error, "orig", None)
            error = cause if isinstance(cause, Exception) else StoreFailed(str(error))
        told = _postgres_error(error, 0) if self.postgres else _sqlite_error(error, 0)
        # The caller owns the transaction, so the caller decides whether to run it again.
        return StoreFailed(str(error)) if isinstance(told, Lost | Again) else told

    def close(self) -> None:
        """Let go of the connection; it stays the caller's."""
        self._closed = True


class Joined(Database):
    """A transaction that is under way on the store's own connection: several calls join it and commit together."""

    def __init__(self, transaction: Transaction, parent: Database) -> None:
        # No super().__init__: everything is the parent's, and so is the commit.
        self.engine = parent.engine
        self.tables = parent.tables
        self.statements = parent.statements
        self.fault = parent.fault
        self.postgres = parent.postgres
        self.bell = parent.bell
        self._closed = False
        self._transaction = transaction

    def write(self, tape: str, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` inside a savepoint, so that a refused call leaves nothing and the others can go on."""
        transaction = self._transaction
        execute = transaction.execute
        try:
            execute("SAVEPOINT tape_join")
            result = work(transaction)
            execute("RELEASE SAVEPOINT tape_join")
        except BaseException as error:
            transaction.after_commit = None
            with contextlib.suppress(Exception):
                execute("ROLLBACK TO SAVEPOINT tape_join")
                execute("RELEASE SAVEPOINT tape_join")
            told = self._judge(error)
            if told is error:
                raise
            raise told from error
        # Within this transaction the call is done, and the next one may rely on the head it leaves.
        done, transaction.after_commit = transaction.after_commit, None
        if done is not None:
            done()
        return result

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` where it sees what was written before."""
        return work(self._transaction)

    def _judge(self, error: BaseException) -> BaseException:
        told = _postgres_error(error, 0) if self.postgres else _sqlite_error(error, 0)
        # With the connection all of the transaction is lost, so that trying this call again cannot help.
        return StoreFailed(str(error)) if isinstance(told, Lost) else told


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _sqlite_error(error: BaseException | None, waited: float) -> BaseException:
    """Return what an error of SQLite means."""
    if not isinstance(error, sqlite3.Error):
        return error if error is not None else StoreFailed("SQLite failed")
    code = getattr(error, "sqlite_errorcode", None) or 0
    if isinstance(error, sqlite3.IntegrityError):
        return Collision(str(error))
    if code & 0xFF in _BUSY:
        return StoreBusy(waited)
    return StoreFailed(f"SQLite failed: {error}")


def _postgres_error(error: BaseException, waited: float, connection: Any = None) -> BaseException:
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


_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[Any] = []
"""Connections of a parent process. They are kept, because to collect them could mean to speak on them."""


def _before_fork() -> None:
    for database in list(_open_databases):
        database.forking()


def _after_fork_in_parent() -> None:
    for database in list(_open_databases):
        database.unforked()


def _after_fork_in_child() -> None:
    for database in list(_open_databases):
        database.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def open_database(url: sa.URL, *, schema: str | None, durability: str, timeout: float) -> Database:
    """Return the database at ``url``, not yet migrated."""
    engine = make_engine(url, durability=durability, timeout=timeout)
    if engine.dialect.name == "postgresql":
        return PostgresDatabase(engine, schema, timeout)
    if schema is not None:
        raise TapeError("schema= is for PostgreSQL only")
    return SqliteDatabase(engine, url, timeout)
