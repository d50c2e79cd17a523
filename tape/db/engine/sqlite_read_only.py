"""A SQLite file that is only read: nothing is written to it, nor left beside it.

Opened in the usual way to be read, SQLite wants to create a log and its shared memory beside the file, which a folder
may forbid. So a file beside which no log lies is read as one that nobody changes (SQLite's ``immutable``). Whether
that was true is seen afterwards: a writer begins a log before it touches the file, and whatever changes the file
changes its time. What was read beside a writer is read again, the usual way, which sees every commit as it is made.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tape.db.engine.connect import UnreadableLog, driver_options, is_memory
from tape.db.engine.failures import Raised
from tape.db.engine.process_fork import StoreConnection, connect
from tape.db.engine.sqlite import SqliteDatabase
from tape.db.engine.transaction import Transaction
from tape.errors import NotAStore, ReadOnly, StoreBusy

__all__ = ["ReadOnlySqlite", "connect_to_read", "read_only_engine"]

R = TypeVar("R")

_TICK = 0.02
"""Seconds after which a further change of a file shows in its time: the clock of the kernel goes in steps."""


class Standing(NamedTuple):
    """How a file stands: whether somebody may be writing it, and its size and time if not."""

    path: str
    written: bool
    seen: tuple[int, int, int] | None

    @property
    def holds(self) -> bool:
        """Whether the file still stands so."""
        return _standing(self.path) == self


def _standing(path: str) -> Standing:
    # The logs first: one that is gone by then has changed the file, whose time is looked at next.
    written = any(_length(f"{path}{log}") for log in ("-wal", "-journal"))
    if written:
        return Standing(path, True, None)
    try:
        found = os.stat(path)
    except OSError as error:
        raise NotAStore(f"there is no store at {path!r}: {error.strerror}") from error
    return Standing(path, False, (found.st_ino, found.st_size, found.st_mtime_ns))


def _length(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _settled(path: str) -> Standing:
    """Return how a file stands, once its last change is so long ago that the next one will show."""
    standing = _standing(path)
    while standing.seen is not None:
        wait = standing.seen[2] / 1e9 + _TICK - time.time()
        if not 0 < wait <= _TICK:
            break
        time.sleep(wait)
        standing = _standing(path)
    return standing


class ReadingConnection(StoreConnection):
    """A connection that cannot write, with how the file stood when it was opened."""

    standing: Standing

    @property
    def current(self) -> bool:
        """Whether what it reads is what the file holds; SQLite sees to that itself beside a log."""
        return self.standing.written or self.standing.holds


def connect_to_read(path: str, timeout: float, **options: Any) -> ReadingConnection:
    """Connect to a file to read it. Raises NotAStore when there is none, or nothing is in it."""
    while True:
        standing = _settled(path)
        if os.path.isdir(path) or not _length(path):
            raise NotAStore(f"{path!r} is not a store: it is {'a folder' if os.path.isdir(path) else 'an empty file'}")
        address = f"file:{quote(os.fsencode(path))}?{'mode=ro' if standing.written else 'immutable=1'}"
        connection = connect(path, address, factory=ReadingConnection, timeout=timeout, **options)
        assert isinstance(connection, ReadingConnection)
        connection.standing = standing
        try:
            connection.execute("PRAGMA temp_store = MEMORY")
            # Opens the file and its log, so that from now on no writer can take the log away.
            connection.execute("PRAGMA cache_size = -32768")
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, sqlite3.Error):
                raise
            if standing.holds:
                raise _explained(error, standing) from error


def _explained(error: sqlite3.Error, standing: Standing) -> Exception:
    """Return why a file cannot be read, where SQLite only tells that it cannot."""
    if standing.written and not os.path.exists(f"{standing.path}-shm"):
        return UnreadableLog(
            f"{f'{standing.path}-wal'!r} holds commits that are not in the database file yet. SQLite needs a -shm file "
            "to read them, and cannot create it in this folder; copy both files to a folder that you can write to"
        )
    return error


def read_only_engine(url: sa.URL, timeout: float) -> sa.Engine:
    """Return an engine whose every connection reads a file."""
    if is_memory(url):
        raise NotAStore("a store in memory is new, and has nothing to read")
    options, path = driver_options(), os.path.realpath(url.database or "")
    # Each connection is made for the file as it stands: none is kept that was made for another.
    return sa.create_engine(url, creator=lambda: connect_to_read(path, timeout, **options), poolclass=NullPool)


class ReadOnlySqlite(SqliteDatabase):
    """A SQLite file that is only read, while others may write it."""

    read_only = True

    def write(self, tape: str, work: Callable[[Transaction], R], **_: Any) -> R:
        """Refuse to write."""
        self.check_open()
        raise ReadOnly("the store was opened read-only")

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` where it reads one state, and every write in it is refused."""
        return self.read(work)

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction of a caller's that reads."""
        connection.execute("BEGIN")

    def fold_wal(self, patience: float) -> bool:
        """Refuse to write."""
        raise ReadOnly("the store was opened read-only")

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in one transaction, and again when the file was changed under it."""
        self.check_open()
        deadline = time.monotonic() + self.timeout
        while True:
            connection = self._reader()
            try:
                result = self._read(connection, work)
                if connection.current:
                    return result
            except (Exception, Raised) as error:
                # A log that is gone by now, or pages of two states, which may look like anything: no fault of the
                # file's.
                if connection.standing.holds or not isinstance(getattr(error, "error", error), Exception):
                    raise
            finally:
                self._return(connection)
            if time.monotonic() >= deadline:
                raise StoreBusy(self.timeout)

    def _reader(self) -> ReadingConnection:
        """Return a connection that reads the file as it stands."""
        while True:
            try:
                connection: Any = self._idle.pop()
            except IndexError:
                connection = self._connect()
            if connection.current:
                return connection  # type: ignore[no-any-return]
            connection.close()

    def _return(self, connection: ReadingConnection) -> None:
        if connection.standing.holds and not self._halted:
            self._idle.append(connection)
        else:
            connection.close()
