"""Transactions: who may write when, what is committed, and what an error of the database means.

``Database.write`` runs a piece of work in one writing transaction, ``Database.read`` in one snapshot. Errors are
judged by the codes of the drivers, never by their texts, and leave here as one of a few (``failures``): ``Collision``
(a unique key is taken), ``Again`` (the database says that nothing happened), ``Lost`` (it cannot say), StoreBusy,
StoreFailed.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.db.engine.failures import Again, Lost
from tape.db.engine.sharing import Together, run_together
from tape.db.engine.wakeup import WakeUp
from tape.db.schema.tables import Tables
from tape.db.sql import Statement, Statements
from tape.errors import StoreFailed

__all__ = ["Database", "Transaction", "inherited_connections", "lock_key"]

R = TypeVar("R")
T = TypeVar("T")
Row = Sequence[Any]


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

    def one(self, statement: Statement[T], params: Row) -> T | None:
        """Run a query and return its first row, if any."""
        order, make = statement.order, statement.row
        bound = params if order is None else [params[index] for index in order]
        row = self.execute(statement.sql, bound).fetchone()
        return row if make is None or row is None else make(row)

    def value(self, statement: Statement[Any], params: Row) -> Any:
        """Run a query and return the first column of its first row, or None when there is no row."""
        row = self.one(statement, params)
        return None if row is None else next(iter(row))

    def all(self, statement: Statement[T], params: Row) -> list[T]:
        """Run a query and return its rows."""
        order, make = statement.order, statement.rows
        bound = params if order is None else [params[index] for index in order]
        found = self.execute(statement.sql, bound)
        if make is None:
            rows: list[T] = found.fetchall()
            return rows
        # SQLite gives rows one by one: those that are made into others need not all be held as tuples before.
        return make(found.fetchall() if self.postgres else found)

    def run(self, statement: Statement[Any], params: Row) -> int:
        """Run a change and return how many rows it touched."""
        count: int = self.execute(statement.sql, params if statement.order is None else statement.bind(params)).rowcount
        return count

    def many(self, statement: Statement[Any], rows: Iterable[Row]) -> int:
        """Run a change once per row, and return how many rows of the table they touched."""
        bound = rows if statement.order is None else (statement.bind(row) for row in rows)
        self._cursor.executemany(statement.sql, bound)
        count: int = self._cursor.rowcount
        return count

    def lock(self, tape: str) -> None:
        """Make this the only writer of ``tape`` until the transaction ends."""
        if self.postgres:
            self._cursor.execute(self.statements.lock, (lock_key(tape),))

    def try_lock(self, tape: str) -> bool:
        """Make this the only writer of ``tape`` if there is no other now; tells whether it is."""
        if not self.postgres:
            return True
        (locked,) = self._cursor.execute(self.statements.try_lock, (lock_key(tape),)).fetchone()
        return bool(locked)

    def hot(self, statement: Statement[Any], params: Row) -> bool:
        """Run a statement that is a transaction by itself; tells whether it wrote."""
        return self.one(statement, params) is not None


def lock_key(tape: str) -> int:
    """Return the number under which writers of ``tape`` exclude each other on PostgreSQL."""
    return int.from_bytes(blake2b(b"tape:" + tape.encode(), digest_size=8).digest(), "big", signed=True)


_ANY_SCHEMA = "tape any schema"
"""Stands for the name of a schema in statements that are compiled once for all of them."""


@functools.lru_cache(maxsize=64)
def _compiled(dialect: str, schema: str | None) -> tuple[Tables, Statements]:
    """Return the tables and statements of an engine; compiling them takes most of the time of opening a store."""
    tables = Tables(dialect, schema)
    if schema in (None, _ANY_SCHEMA):
        return tables, Statements(dialect, tables)
    return tables, Statements(dialect, tables, _compiled(dialect, _ANY_SCHEMA)[1])


class Database(ABC):
    """One open database. Threads share it. Each engine writes and reads in its own way.

    The methods without a body are moments at which an engine may have something to do.
    """

    postgres = False
    driver_error: type[Exception]
    """What the driver raises when the database refuses."""

    def __init__(self, engine: sa.Engine, schema: str | None, timeout: float) -> None:
        self.engine = engine
        self.timeout = timeout
        """Seconds that a call waits for another writer before it is StoreBusy."""
        self.tables, self.statements = _compiled(engine.dialect.name, schema)
        self.fault: Callable[[str], None] | None = None
        """Tests set this to raise at named points inside a write."""
        self.heads: dict[tuple[str | None, str], Any] = {}
        """What the recorders of this database keep of tapes between writes, by owner and tape."""
        self.wakeup = WakeUp(self._watch if self._watched else None)
        self._closed = False
        _open_databases.add(self)

    @abstractmethod
    def write(
        self,
        tape: str,
        work: Callable[[Transaction], R],
        *,
        patience: float | None = None,
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
        """Run ``work`` in a transaction that excludes other writers of ``tape``, and commit it.

        With ``patience`` other writers are waited for so many seconds, instead of the store's timeout. If ``work``
        collides with what another wrote it is undone, and ``again`` is run instead, without queuing once more.
        """

    def repeat(self, tape: str, work: Callable[[Transaction], R], *, patience: float | None = None) -> R:
        """Write like ``write``, and once more when it is not known to be done: for work that comes to the same then."""
        for last in (False, False, True):
            try:
                return self.write(tape, work, patience=patience)
            except (Again, Lost) as error:
                if last:
                    raise StoreFailed(str(error)) from error
        raise AssertionError("the loop returns or raises")

    def share(self, tape: str, tasks: Sequence[T], together: Together[T, R]) -> list[R | Exception]:
        """Run ``tasks`` in one transaction, together with those of others who write at the same moment.

        ``together`` runs the tasks of all and returns what came of each: its result, or the error that is its own. An
        error that it raises undoes the transaction, and is everybody's: then each has to be run by itself.
        """
        return run_together(self, tape, tasks, together)

    @abstractmethod
    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` against one unchanging state of the database."""

    def begin(self, connection: Any) -> None:  # noqa: B027
        """Begin a writing transaction on a connection that is the caller's own; PostgreSQL's need not be told."""

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._closed

    @property
    def _watched(self) -> bool:
        """Whether others can write to this database."""
        return True

    def _watch(self, ring: Callable[[], None], stop: threading.Event) -> None:  # noqa: B027
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
        self.wakeup.close()
        self.engine.dispose()

    def forking(self) -> None:  # noqa: B027
        """Get ready for a fork of this process; ``forked`` or ``unforked`` follows."""

    def unforked(self) -> None:  # noqa: B027
        """Go on in the process that has forked."""

    def forked(self) -> None:
        """Forget the parent's connections, in a process that was just forked."""
        self.wakeup = WakeUp(self._watch if self._watched else None)
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


_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()
inherited_connections: list[Any] = []
"""Connections of a parent process. They are kept, because to collect them could mean to speak on them."""


_one_fork = threading.Lock()
"""Held while the process forks: what a database remembers of it is of one fork."""


def _before_fork() -> None:
    _one_fork.acquire()
    for database in list(_open_databases):
        database.forking()


def _after_fork_in_parent() -> None:
    for database in list(_open_databases):
        database.unforked()
    _one_fork.release()


def _after_fork_in_child() -> None:
    global _one_fork
    _one_fork = threading.Lock()
    for database in list(_open_databases):
        database.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
