"""SQLite: one writer at a time, a pool of readers, and what an error of SQLite means."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.db.engine.connect import Unwritable, check_replaceable, is_memory
from tape.db.engine.failures import Broken, Collision
from tape.db.engine.file_lock import FileLock
from tape.db.engine.process_fork import check_inherited, connect, on_fork, wait_for_fork
from tape.db.engine.sharing import Gate, Together, run_together, share
from tape.db.engine.transaction import Database, Transaction
from tape.db.engine.wakeup import watch_files
from tape.errors import InvalidEntry, ProcessForked, ReadOnly, StoreBusy, StoreFailed

__all__ = ["SqliteDatabase", "sqlite_error"]

R = TypeVar("R")
T = TypeVar("T")


class SqliteDatabase(Database):
    """SQLite: one writer at a time, in the process by a lock and between processes by turns."""

    driver_error = sqlite3.Error

    def __init__(self, engine: sa.Engine, url: sa.URL, timeout: float) -> None:
        self._memory = is_memory(url)
        super().__init__(engine, None, timeout)
        self._path = os.path.realpath(url.database or "")
        self._turn = FileLock(None if self._memory else f"{self._path}-writer")
        self._copied = True
        """Whether a database in memory is whole: a child that was forked inside a call has a copy of half of it."""
        self._writer: tuple[sqlite3.Connection, Transaction] | None = None
        self._reset()
        # Last: another thread may fork at any moment.
        on_fork(self)

    @property
    def _watched(self) -> bool:
        return not self._memory

    @property
    def lone(self) -> bool:
        """Whether the database is in memory."""
        return self._memory

    @property
    def inside(self) -> bool:
        """Whether this thread is inside a write."""
        return self._writing and self._owned()

    def _watch(self, ring: Callable[[], None], stop: threading.Event) -> None:
        watch_files(self._path, ring, stop)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        # A signal may interrupt a thread after it took the lock and before that is noted: only the lock itself knows.
        self._owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self._sharing = Gate()
        self._locked = False
        """Whether the lock was taken for a fork."""
        self._writing = False
        self._transacting = False
        """Whether the current write is a transaction of several calls."""
        self._idle: deque[sqlite3.Connection] = deque()
        """Idle read connections."""

    def _connect(self) -> sqlite3.Connection:
        try:
            connection: sqlite3.Connection = self._open_connection()
        except sqlite3.Error as error:
            raise sqlite_error(error, self.timeout) from error
        return connection

    def write(
        self,
        tape: str,
        work: Callable[[Transaction], R],
        *,
        patience: float | None = None,
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
        """Run ``work`` under the writer lock, between BEGIN IMMEDIATE and COMMIT."""
        if self._halted:
            self.check_open()
        lock, turn, brief = self._lock, self._turn, patience
        if self._owned():
            raise StoreFailed(
                "a write was started inside a transaction of the same store; "
                "use the store that the transaction passes to your function"
                if self._transacting
                else f"a write was started inside a {'write' if self._writing else 'read'} of the same store"
            )
        if patience is None:
            patience = self.timeout
        left = False
        interrupted: BaseException | None = None
        try:
            if not lock.acquire(False):
                began = time.monotonic()
                if not lock.acquire(timeout=patience):
                    raise StoreBusy(patience)
                patience = max(0.0, patience - (time.monotonic() - began))
            if self._closed:
                self.check_open()
            driver, transaction = self._writer or self._open_writer()
            if not turn.take(patience):
                raise StoreBusy(self.timeout)
            self._writing = True
            if brief is not None:
                return self._run_briefly(driver, transaction, work, patience)
            return self._run(driver, transaction, work, again)
        finally:
            # However often a signal interrupts it, here and in no function of its own.
            while not left:
                try:
                    if self._owned():
                        self._writing = False
                        turn.give()
                        lock.release()
                    left = True
                except BaseException as error:
                    interrupted = error
            if interrupted is not None:
                raise interrupted

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` under the writer lock, and tell who writes beside it so."""

        def run(transaction: Transaction) -> R:
            self._transacting = True
            try:
                return work(transaction)
            finally:
                self._transacting = False

        return self.write("", run)

    def share(self, tape: str, tasks: Sequence[T], together: Together[T, R]) -> list[R | Exception]:
        """Run ``tasks`` with those of all threads that write at the same moment, whichever tape it is."""
        if self._owned():
            # A callback of the caller's writes inside a write or a read: it must not queue behind its own thread.
            return run_together(self, tape, tasks, together)
        return share(self, self._sharing, tape, tasks, together)

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a writing transaction on a caller's connection: in its turn, and after at most the store's timeout.

        The turn is given back at once, since nobody here is told of the end of that transaction. Whoever has it next
        waits for SQLite's lock alone, so that the queue holds for the transactions of callers as well.
        """
        deadline = time.monotonic() + self.timeout
        if self._owned():
            raise StoreFailed("a transaction was started inside a write of the same store, where it would wait forever")
        try:
            if not self._lock.acquire(timeout=self.timeout):
                raise StoreBusy(self.timeout)
            try:
                if not self._turn.take(max(0.0, deadline - time.monotonic())):
                    raise StoreBusy(self.timeout)
                self._begin_within(connection, max(0.0, deadline - time.monotonic()))
            finally:
                self._turn.give()
        finally:
            if self._owned():
                self._lock.release()

    def _begin_within(self, connection: sqlite3.Connection, patience: float) -> None:
        """Begin on a connection whose own patience may be less, and leave that as it was."""
        try:
            (own,) = connection.execute("PRAGMA busy_timeout").fetchone()
            connection.execute(f"PRAGMA busy_timeout = {max(own, int(patience * 1000))}")
            try:
                connection.execute("BEGIN IMMEDIATE")
            finally:
                connection.execute(f"PRAGMA busy_timeout = {own}")
        except sqlite3.Error as error:
            raise sqlite_error(error, self.timeout) from error

    def _run_briefly(
        self,
        connection: sqlite3.Connection,
        transaction: Transaction,
        work: Callable[[Transaction], R],
        patience: float,
    ) -> R:
        """Run ``work`` unless a writer that takes no turns, another program's, holds the file for longer than that."""
        connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
        try:
            return self._run(connection, transaction, work)
        finally:
            # The connection may be closed by now, and the next one begins with the usual wait.
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"PRAGMA busy_timeout = {int(self.timeout * 1000)}")

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

    def _run(
        self,
        connection: sqlite3.Connection,
        transaction: Transaction,
        work: Callable[[Transaction], R],
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
        execute = transaction.execute
        try:
            execute("BEGIN IMMEDIATE")
            result = work(transaction)
            if self.fault is not None:
                self.point("commit")
            # In a child that was forked meanwhile the transaction refuses, since it is its parent's.
            transaction.execute("COMMIT")
        except BaseException as error:
            transaction.after_commit = None
            if connection.in_transaction:
                try:
                    transaction.execute("ROLLBACK")
                except (sqlite3.Error, ProcessForked):
                    # Kept, it would hold the write lock of the file from now on.
                    self._drop_writer()
            explained = sqlite_error(error, self.timeout)
            if isinstance(explained, Broken):
                raise self.outdated(explained) from error
            if again is not None and isinstance(explained, Collision) and self._writer is not None:
                return self._run(connection, transaction, again)
            if explained is not error:
                raise explained from error
            raise
        done = transaction.after_commit
        if done is not None:
            # Dropped at once: it refers to what holds this transaction.
            transaction.after_commit = None
            done()
        wakeup = self.wakeup
        # Counted first, as in a ring, which nobody has to hear as long as nobody waits.
        wakeup.count += 1
        if wakeup.waiting:
            wakeup.ring()
        return result

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in one deferred transaction, which sees one state throughout."""
        if self._halted:
            self.check_open()
        if self._memory:
            return self._read_in_memory(work)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            return self._read(connection, work)
        finally:
            self._idle.append(connection)
            if self._halted:
                self._drain()

    def _read_in_memory(self, work: Callable[[Transaction], R]) -> R:
        """Read with the one connection that there is: after the writer, or one would see half of its work."""
        if self._owned():
            # Inside a transaction of this very thread a callback of the caller's reads. It sees what that transaction
            # sees; to begin and roll back one of its own would take away the other's work.
            driver = (self._writer or self._open_writer())[0]
            return self._read(driver, work, joins=driver.in_transaction)
        try:
            if not self._lock.acquire(timeout=self.timeout):
                raise StoreBusy(self.timeout)
            return self._read((self._writer or self._open_writer())[0], work)
        finally:
            if self._owned():
                self._lock.release()

    def _drain(self) -> None:
        """Close the connections that nobody reads with."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def _read(self, driver: sqlite3.Connection, work: Callable[[Transaction], R], *, joins: bool = False) -> R:
        cursor = driver.cursor()
        transaction = Transaction(cursor, self.statements, postgres=False)
        if not self._memory:
            self._running.add(transaction)
        try:
            if not joins:
                cursor.execute("BEGIN")
            return work(transaction)
        except sqlite3.Error as error:
            explained = sqlite_error(error, self.timeout)
            raise (self.outdated(explained) if isinstance(explained, Broken) else explained) from error
        finally:
            self._running.discard(transaction)
            cursor.close()
            if driver.in_transaction and not joins:
                driver.execute("ROLLBACK")

    def backup(self, file: str | os.PathLike[str]) -> None:
        """Copy the database to a file, which appears when it is whole; writers go on meanwhile."""
        self.check_open()
        try:
            path = Path(file)
            # A name of its own, or two backups to one path at once would write into each other.
            part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
            os.fsencode(part)
            check_replaceable(path)
        except (TypeError, ValueError) as error:
            raise InvalidEntry("file", f"must be the path of a file to write: {error}") from error
        if os.path.isdir(path):
            raise Unwritable(file, "it is a folder; name a file in it")
        try:
            # Made before SQLite opens it, which would not say why it cannot.
            part.open("xb").close()
            with contextlib.closing(connect(str(part))) as target:
                # One step: it reads one state of the database, and in WAL mode holds up nobody.
                self.read(lambda tx: _copy(tx._cursor.connection, target, file))
            # Again, since the copy takes a while: a log that is there now would be replayed over it.
            check_replaceable(path)
            part.replace(path)
        except sqlite3.Error as error:
            raise sqlite_error(error, self.timeout) from error
        except OSError as error:
            raise Unwritable(file, error.strerror or error) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def fold_wal(self, patience: float) -> bool:
        """Fold the write-ahead log into the file and cut it to nothing; False while a reader keeps it.

        Readers are waited for as long as ``patience`` says, in seconds. It is done under the writers' lock, since a
        checkpoint beside a writer is what SQLite's known fault needs; without the turn it is StoreBusy.
        """
        with self._lock:
            if not self._turn.take(self.timeout):
                raise StoreBusy(self.timeout)
            try:
                with contextlib.closing(self._connect()) as connection:
                    connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
                    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._turn.give()
        return not busy

    def close(self) -> None:
        """Close every connection; the last one to go folds the WAL into the file."""
        if self.inside:
            raise StoreFailed("the store cannot be closed inside a write or a transaction; close it afterwards")
        with self._lock:
            if self._closed:
                return
            self._closed = self._halted = True
            self._drain()
            self._drop_writer()
            super().close()
            self._turn.close()

    def check_open(self) -> None:
        """Raise StoreFailed for a store that is closed, ProcessForked for one that this process must not use."""
        super().check_open()
        if not self._memory:
            check_inherited(self._path)
        elif not self._copied:
            raise ProcessForked("a store in memory")
        wait_for_fork()

    def before_fork(self) -> bool:
        """Close the connections that no thread uses. Lock a database in memory instead, to give the child a copy."""
        self._halted = True
        if self._memory:
            self._locked = self._locked or self._lock.acquire(False)
            return self._locked
        if self._lock.acquire(False):
            try:
                if not self._writing:
                    self._drop_writer()
            finally:
                self._lock.release()
        self._drain()
        return True

    def after_fork(self, *, child: bool) -> None:
        """Resume. A child starts with new connections, or with its copy of a database in memory."""
        if child and self._memory:
            self.wakeup.forget()
            self._copied = self._copied and self._locked
            self._sharing = Gate()
        elif child:
            super().after_fork(child=True)
            self._turn.forget()
            if self._writer is not None:
                self._writer[1].sever()
                self._writer = None
        if self._locked:
            self._locked = False
            self._lock.release()
        elif child:
            self._reset()
        self._halted = False
        try:
            self.check_open()
        except StoreFailed:
            self._halted = True


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_TARGET_FAILED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
"""How SQLite reports a copy that cannot be written. The store that is copied is only read."""


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, file: str | os.PathLike[str]) -> None:
    """Copy a database; raises Unwritable if the copy is at fault."""
    try:
        source.backup(target)
    except sqlite3.Error as error:
        if (error.sqlite_errorcode or 0) & 0xFF in _TARGET_FAILED:
            raise Unwritable(file, error) from error
        raise


_MISSING = re.compile(r"^no such (table|column)|^table \w+ has no column named|^table \w+ has \d+ columns but")


def sqlite_error(error: BaseException | None, waited: float) -> BaseException:
    """Return what an error of SQLite means."""
    if not isinstance(error, sqlite3.Error):
        return error if error is not None else StoreFailed("SQLite failed")
    code = getattr(error, "sqlite_errorcode", None) or 0
    if isinstance(error, sqlite3.IntegrityError):
        return Collision(str(error))
    if code & 0xFF in _BUSY:
        return StoreBusy(waited)
    if code & 0xFF == sqlite3.SQLITE_READONLY:
        return ReadOnly(f"SQLite can only read the file: {error}")
    # SQLite has no error code for a missing table or column, so match the message.
    if code & 0xFF == sqlite3.SQLITE_CORRUPT or _MISSING.search(str(error)):
        return Broken(f"SQLite failed: {error}", spoilt=code & 0xFF == sqlite3.SQLITE_CORRUPT)
    return StoreFailed(f"SQLite failed: {error}")
