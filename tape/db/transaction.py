"""Transactions: who may write when, what is committed, and what an error of the database means.

``Database.write`` runs a piece of work in one writing transaction, ``Database.read`` in one snapshot. Errors are
judged by the codes of the drivers, never by their texts, and leave here as one of a few: ``Collision`` (a unique
key is taken), ``Again`` (the database says that nothing happened), ``Lost`` (it cannot say), StoreBusy,
StoreFailed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.db.connect import is_memory, make_engine
from tape.db.schema import Tables
from tape.db.sql import Statement, Statements
from tape.db.turn import Turn
from tape.errors import StoreBusy, StoreFailed, TapeError

__all__ = ["Again", "Bound", "Collision", "Database", "Lost", "Transaction", "open_database"]

R = TypeVar("R")
Row = Sequence[Any]


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


class Database:
    """One open database. Threads share it."""

    postgres = False

    def __init__(self, engine: sa.Engine, schema: str | None) -> None:
        self.engine = engine
        self.tables = Tables(engine.dialect.name, schema)
        self.statements = Statements(engine.dialect.name, self.tables)
        self.fault: Callable[[str], None] | None = None
        """Tests set this to raise at named points inside a write."""
        self._closed = False
        _open_databases.add(self)

    def write(self, tape: str, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in a transaction that excludes other writers of ``tape``, and commit it."""
        raise AssertionError("each engine writes in its own way")

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` against one unchanging state of the database."""
        raise AssertionError("each engine reads in its own way")

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
        self.engine.dispose()

    def forked(self) -> None:
        """Forget the parent's connections, in a process that was just forked."""
        self.engine.dispose(close=False)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")


class SqliteDatabase(Database):
    """SQLite: one writer at a time, in the process by a lock and between processes by turns."""

    def __init__(self, engine: sa.Engine, url: sa.URL, timeout: float) -> None:
        super().__init__(engine, None)
        self._memory = is_memory(url)
        self._timeout = timeout
        path = None if self._memory else f"{os.path.realpath(url.database or '')}-writer"
        self._turn = Turn(path, timeout)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._pooled: Any = None
        self._writer: tuple[sqlite3.Connection, Transaction] | None = None
        self._writing = False
        self._idle: deque[Any] = deque()

    def _connect(self) -> Any:
        try:
            return self.engine.raw_connection()
        except sa.exc.DBAPIError as error:
            raise _sqlite_error(error.orig, self._timeout) from error

    def write(self, tape: str, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` under the writer lock, between BEGIN IMMEDIATE and COMMIT."""
        if self._closed:
            self._check_open()
        lock, turn = self._lock, self._turn
        if not lock.acquire(False) and not lock.acquire(timeout=self._timeout):
            raise StoreBusy(self._timeout)
        try:
            if self._writing:
                raise StoreFailed("a write was started from inside a write of the same store")
            driver, transaction = self._writer or self._open_writer()
            turn.take()
            self._writing = True
            try:
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
        self._pooled = self._connect()
        driver: Any = self._pooled.driver_connection
        self._writer = (driver, Transaction(driver.cursor(), self.statements, postgres=False))
        return self._writer

    def _run(self, connection: sqlite3.Connection, transaction: Transaction, work: Callable[[Transaction], R]) -> R:
        execute = transaction.execute
        # A write that failed may have left its own behind.
        transaction.after_commit = None
        try:
            execute("BEGIN IMMEDIATE")
            result = work(transaction)
            if self.fault is not None:
                self.point("commit")
            execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _sqlite_error(error, self._timeout) from error
            raise
        done = transaction.after_commit
        if done is not None:
            # Dropped at once: it refers to what holds this transaction.
            transaction.after_commit = None
            done()
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
            connection = self._connect()
        try:
            return self._read(connection.driver_connection, work)
        finally:
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)

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
        if self._closed:
            return
        with self._lock:
            if not self._memory:
                while self._idle:
                    self._idle.pop().close()
            if self._writer is not None:
                self._pooled.close()
                self._writer = None
            super().close()
            self._turn.close()

    def forked(self) -> None:
        """Start again with connections and locks of this process's own."""
        super().forked()
        self._turn.forget()
        self._reset()


class PostgresDatabase(Database):
    """PostgreSQL: writers of one tape exclude each other by an advisory lock, others run side by side."""

    postgres = True

    def __init__(self, engine: sa.Engine, schema: str | None, timeout: float) -> None:
        super().__init__(engine, schema)
        self._timeout = timeout
        self._reset()

    def _reset(self) -> None:
        self._idle: deque[Any] = deque()
        self._locks = [threading.Lock() for _ in range(64)]

    def _take(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self.engine.raw_connection()
        except sa.exc.DBAPIError as error:
            raise StoreFailed(f"cannot connect: {error.orig}") from error
        except sa.exc.TimeoutError as error:
            raise StoreBusy(30.0) from error

    def _drain(self) -> None:
        """Drop the kept connections: when one is dead after a restart of the server, all are."""
        while self._idle:
            self._give(self._idle.pop(), broken=True)

    def _give(self, connection: Any, *, broken: bool) -> None:
        if broken or connection.driver_connection.closed:
            connection.invalidate()
            connection.close()
        elif self._closed:
            connection.close()
        else:
            self._idle.append(connection)

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
            cursor = connection.driver_connection.cursor(binary=True)
            transaction = _PostgresTransaction(cursor, self.statements)
            try:
                result = work(transaction)
                self.point("commit")
                transaction.commit()
                broken = False
            except BaseException as error:
                broken = not transaction.rollback()
                told = _postgres_error(error, self._timeout)
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
            cursor = connection.driver_connection.cursor(binary=True)
            try:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                result = work(Transaction(cursor, self.statements, postgres=True))
                cursor.execute("COMMIT")
                broken = False
                return result
            except BaseException as error:
                with contextlib.suppress(Exception):
                    cursor.execute("ROLLBACK")
                    broken = False
                told = _postgres_error(error, self._timeout)
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
        if self._closed:
            return
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        super().close()

    def forked(self) -> None:
        """Start again with connections of this process's own."""
        super().forked()
        self._reset()


class _PostgresTransaction(Transaction):
    """A transaction that begins when it has to, so that a single statement can do without."""

    __slots__ = ("_begun",)

    def __init__(self, cursor: Any, statements: Statements) -> None:
        super().__init__(cursor, statements, postgres=True)
        self._begun = False

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
        if not self._begun:
            self._begun = True
            self._cursor.execute("BEGIN")

    def commit(self) -> None:
        if self._begun:
            self._cursor.execute("COMMIT")

    def rollback(self) -> bool:
        """Undo everything; tells whether the connection can be used again."""
        try:
            if self._begun:
                self._cursor.execute("ROLLBACK")
            return not self._cursor.connection.closed
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
        told = _postgres_error(error, 0) if self.postgres else _sqlite_error(error, 0)
        # The caller owns the transaction, so the caller decides whether to run it again.
        return StoreFailed(str(error)) if isinstance(told, Lost | Again) else told

    def close(self) -> None:
        """Let go of the connection; it stays the caller's."""
        self._closed = True


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


def _postgres_error(error: BaseException, waited: float) -> BaseException:
    """Return what an error of PostgreSQL means."""
    import psycopg

    if not isinstance(error, psycopg.Error):
        return error
    state = error.sqlstate
    if isinstance(error, psycopg.IntegrityError):
        return Collision(str(error))
    if state == "55P03":
        return StoreBusy(waited)
    if state in ("40001", "40P01"):
        return Again(str(error))
    if state is None or state[:2] == "08" or state in ("57P01", "57P02", "57P03"):
        return Lost(str(error))
    return StoreFailed(f"PostgreSQL failed: {error}")


_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork() -> None:
    for database in list(_open_databases):
        database.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_database(url: sa.URL, *, schema: str | None, durability: str, timeout: float) -> Database:
    """Return the database at ``url``, not yet migrated."""
    engine = make_engine(url, durability=durability, timeout=timeout)
    if engine.dialect.name == "postgresql":
        return PostgresDatabase(engine, schema, timeout)
    if schema is not None:
        raise TapeError("schema= is for PostgreSQL only")
    return SqliteDatabase(engine, url, timeout)
