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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple, NoReturn, TypeVar

import sqlalchemy as sa

from tape.db.engine.failures import Again, Broken, Lost, Undone
from tape.db.engine.postgres import citus
from tape.db.engine.sharing import Together, run_together
from tape.db.engine.wakeup import WakeUp
from tape.db.schema.found import check_revision, found_version
from tape.db.schema.tables import HOME, KNOWN, Tables
from tape.db.sql import Statement, Statements
from tape.db.sql.compiler import Insert
from tape.db.sql.rows.feed import Snapshot
from tape.errors import ProcessForked, ReadOnly, SchemaTooNew, SchemaTooOld, StoreFailed, TapeError

__all__ = ["Database", "Transaction", "Unit", "Wrote", "lock_key"]

R = TypeVar("R")
T = TypeVar("T")
Row = Sequence[Any]

_TOGETHER = (50, 10)
"""How many rows go into one insert on SQLite: two numbers, so that few texts do, and within what it takes in values."""


_BRIEFLY = 100
"""Milliseconds for which a transaction waits for a tape that it locks out of order: an append takes a few."""
_NO_LOCK = "55P03"
"""What PostgreSQL calls a lock that was not to be had in time."""
_ASKED_THERE = Snapshot(0, 0)
"""Stands for the running transactions where each statement of the feed asks for them itself."""


class Wrote(NamedTuple):
    """An entry that a transaction has written, by which it can be told whether that was committed."""

    tape: str
    seq: int
    key: str
    hash: bytes


class Unit:
    """What a transaction of several calls has done so far."""

    __slots__ = ("held", "patience", "patient", "wanted", "wrote")

    def __init__(self, patience: float, *, patient: bool) -> None:
        self.patience = patience
        """Seconds for which the connection waits for a lock."""
        self.patient = patient
        """Whether it waits as long for every tape, also where another may wait for it."""
        self.held: dict[str, None] = {}
        """The tapes that it has locked, in that order."""
        self.wanted: dict[str, None] = {}
        """Those that it has locked or tried to, whatever became of it."""
        self.wrote: Wrote | None = None
        """The last entry that it has written."""

    def waiting(self, tapes: Sequence[str], locks: Sequence[str]) -> tuple[list[str], bool]:
        """Return the statements that lock tapes, and whether they wait only briefly.

        Who locks tapes in the one order of all may wait for each. Who holds a later one may be waited for by those it
        waits for: it is sooner done by beginning again, and then in order.
        """
        held = self.held
        if self.patient or not held or min(map(lock_key, tapes)) > max(map(lock_key, held)):
            return list(locks), False
        usual = f"SET LOCAL lock_timeout = {max(1, int(self.patience * 1000))}"
        return [f"SET LOCAL lock_timeout = {_BRIEFLY}", *locks, usual], True


class _Severed:
    """Stands for the cursor of a transaction that the parent of this process runs."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ProcessForked("its transaction")


class Transaction:
    """Statements run on one cursor, inside one transaction."""

    __slots__ = ("_cursor", "_xids", "after_commit", "blob", "execute", "postgres", "statements", "unit")

    def __init__(self, cursor: Any, statements: Statements, *, postgres: bool) -> None:
        self._cursor = cursor
        self.execute = cursor.execute
        self.statements = statements
        self.postgres = postgres
        # SQLite's driver binds a bytearray at once, but searches for an adapter of bytes.
        self.blob: Callable[[bytes], Any] = bytes if postgres else bytearray
        """Makes of bytes what is quickest to bind."""
        self.after_commit: Callable[[], None] | None = None
        """Called once the transaction is committed, before the next writer begins."""
        self.unit: Unit | None = None
        """What several calls of the caller's have done in it, if it is one for several."""
        self._xids: dict[int, int] | None = None

    def sever(self) -> None:
        """Refuse every further statement with ProcessForked: the connection is that of the parent process."""
        self._cursor = _Severed()
        self.execute = self._refuse

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ProcessForked("its transaction")

    @property
    def xids(self) -> dict[int, int]:
        """On Citus: the transaction ids that the entries of tapes, by their number, are given in this one."""
        if self._xids is None:
            self._xids = {}
        return self._xids

    @property
    def connection(self) -> Any:
        """The driver's connection."""
        return self._cursor.connection

    @property
    def alive(self) -> bool:
        """Whether SQLite has not ended the transaction by itself, as it does when the disk fails."""
        return self.postgres or bool(self.connection.in_transaction)

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

    def listed(self, statement: Statement[R], params: Row) -> list[R]:
        """Return the rows of a query over many tapes, of which no head is read; checks the revision."""
        rows = self.all(statement, params)
        self.check_revision()
        return rows

    def check_revision(self) -> None:
        """Raise SchemaTooNew or SchemaTooOld when another process has given the database another revision.

        Ask after a write: from then on a migration waits until this transaction ends.
        """
        check_revision(self.value(self.statements.revision, ()))

    def now(self, clock: Callable[[], int]) -> int:
        """Return the time in microseconds since 1970 by the database's clock, which is one for all machines.

        SQLite has no other than that of the machine on which all its writers are, which ``clock`` reads.
        """
        return int(self.value(self.statements.now, ())) if self.postgres else clock()

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

    def append(
        self, insert: Statement[Any], entries: Sequence[Row], opens: Statement[Any], rows: Sequence[Row], head: Row
    ) -> int:
        """Insert entries and a row of the view for each, and move the head; returns how many heads were as expected."""
        execute = self.execute
        moves: Statement[Any] = self.statements.move_head
        if len(entries) == 1:
            (entry,), (row,) = entries, rows
            execute(insert.sql, entry if insert.order is None else insert.bind(entry))
            execute(opens.sql, row if opens.order is None else opens.bind(row))
        else:
            self.many(insert, entries)
            self.many(opens, rows)
        moved: int = execute(moves.sql, head if moves.order is None else moves.bind(head)).rowcount
        return moved

    def many(self, statement: Statement[Any], rows: Sequence[Row]) -> int:
        """Run a change once per row, and return how many rows of the table they touched."""
        count = sent = 0
        if isinstance(statement, Insert) and not self.postgres:
            # A trigger makes SQLite ready to undo each statement by itself: a third of what the insert takes.
            for size in _TOGETHER:
                while len(rows) - sent >= size:
                    values = list(chain.from_iterable(rows[sent : sent + size]))
                    count += self.execute(statement.times(size), values).rowcount
                    sent += size
        if sent == len(rows):
            return count
        rest = rows[sent:]
        self._cursor.executemany(
            statement.sql, rest if statement.order is None else [statement.bind(row) for row in rest]
        )
        return count + int(self._cursor.rowcount)

    def snapshot(self) -> Snapshot:
        """Return the running transactions, for statements of the feed that cannot ask for them by themselves."""
        return citus.snapshot(self) if self.statements.sharded else _ASKED_THERE

    def take_arrivals(self, number: int) -> int:
        """Let the entries of an import come among the others; returns how many they are."""
        take = self.statements.take_arrivals
        return citus.take_arrivals(self, number) if take is None else self.run(take, (number,))

    def say(self, *statements: str) -> None:
        """Run statements without parameters, on PostgreSQL in one trip."""
        if self.statements.sharded:
            citus.send(self.connection, statements)
        elif self.postgres:
            self._cursor.execute(";".join(statements), prepare=False, binary=False)
        else:
            for statement in statements:
                self.execute(statement)

    def lock(self, tape: str) -> None:
        """Make this the only writer of ``tape`` until the transaction ends."""
        if not self.postgres:
            return
        if self.unit is None:
            self._cursor.execute(self.statements.lock, (self._lock_key(tape),))
        else:
            self.acquire(self.unit, (tape,))

    def acquire(
        self, unit: Unit, tapes: Sequence[str], *, before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> None:
        """Lock tapes in a transaction of several calls, in one trip with the statements before and after.

        Undone if another holds one of them who may be waiting for this.
        """
        new = [tape for tape in tapes if tape not in unit.held]
        unit.wanted.update(dict.fromkeys(new))
        locks: list[str] = []
        brief = False
        if self.postgres and new:
            locks, brief = unit.waiting(new, [self.statements.lock % self._lock_key(tape) for tape in new])
        statements = (*before, *locks, *after)
        try:
            if statements:
                self.say(*statements)
        except Exception as error:
            if brief and getattr(error, "sqlstate", None) == _NO_LOCK:
                raise Undone(f"another transaction holds the tape and may be waiting for this one: {error}") from error
            raise
        unit.held.update(dict.fromkeys(new))

    def touch(self, tape: str) -> None:
        """Lock a tape that is read, if the caller's transaction goes on after that."""
        if self.unit is not None:
            self.lock(tape)

    def _lock_key(self, tape: str) -> int:
        return lock_key(tape, self.statements.tables.lock_space)

    def try_lock(self, tape: str) -> bool:
        """Make this the only writer of ``tape`` if there is no other now; tells whether it is."""
        if not self.postgres:
            return True
        (locked,) = self._cursor.execute(self.statements.try_lock, (self._lock_key(tape),)).fetchone()
        return bool(locked)

    def hot(self, head: Row, entries: Sequence[Row], rows: Sequence[Row], lookup: Row, *, event: bool = False) -> bool:
        """Write entries and the rows of their messages by one statement, if the head is the expected one; tells if so.

        The statement is a transaction by itself. With a ``lookup`` there is one entry, whose id no tape of its lineage
        may have. If it is an ``event``, its row is that of an event.
        """
        raise AssertionError("PostgreSQL's own transactions can")


def lock_key(tape: str, space: str = "") -> int:
    """Return the number under which writers of ``tape`` exclude each other on PostgreSQL.

    ``space`` is that of the store (``Tables.lock_space``); without it the number still tells in which order to lock.
    """
    return int.from_bytes(blake2b(f"{space}\0{tape}".encode(), digest_size=8).digest(), "big", signed=True)


_ANY_SCHEMA = "tape any schema"
"""Stands for the name of a schema in statements that are compiled once for all of them."""


@functools.lru_cache(maxsize=64)
def _compiled(dialect: str, schema: str | None, home: str, sharded: bool) -> tuple[Tables, Statements]:
    """Return the tables and statements of an engine; compiling them takes most of the time of opening a store."""
    tables = Tables(dialect, schema, home)
    template = None
    if schema not in (None, _ANY_SCHEMA):
        _, template = _compiled(dialect, _ANY_SCHEMA, home, sharded)
    return tables, Statements(dialect, tables, template, sharded=sharded)


class Database(ABC):
    """One open database. Threads share it. Each engine writes and reads in its own way.

    The methods without a body are moments at which an engine may have something to do.
    """

    postgres = False
    read_only = False
    """Whether the store was opened read-only."""
    driver_error: type[Exception]
    """What the driver raises when the database refuses."""

    def __init__(self, engine: sa.Engine, schema: str | None, timeout: float) -> None:
        self.engine = engine
        self.timeout = timeout
        """Seconds that a call waits for another writer before it is StoreBusy."""
        self.tables = Tables(engine.dialect.name, schema)
        self._compile()
        self.fault: Callable[[str], None] | None = None
        """Tests set this to raise at named points inside a write."""
        self.heads: dict[tuple[str | None, str], Any] = {}
        """What the recorders of this database keep of tapes between writes, by owner and tape."""
        self.wakeup = WakeUp(self._watch if self._watched else None)
        self._closed = False
        self._halted = False
        """Whether a call has to ask ``check_open`` first: the store is closed, or the process forks or was forked."""
        self._running: set[Transaction] = set()
        """The transactions that are under way."""

    def _compile(self, home: str = HOME, *, sharded: bool = False) -> None:
        """Take the statements that the database needs; they are compiled once for all stores."""
        tables = self.tables
        self.tables, self.statements = _compiled(self.engine.dialect.name, tables.schema, home, sharded)

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

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` in a transaction that locks tapes as it goes, and commit it."""
        return self.write("", work)

    def recognize(self) -> None:  # noqa: B027
        """Find out, once the store is there, on what it is, and speak to it accordingly from then on."""

    def touch(self, tapes: Sequence[str]) -> None:  # noqa: B027
        """Lock tapes that are about to be written, if the transaction is one of several calls."""

    def outside(self, call: str) -> None:  # noqa: B027
        """Raise NotInTransaction if this is a transaction of several calls, in which ``call`` can have no part."""

    @abstractmethod
    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` against one unchanging state of the database."""

    def outdated(self, told: Broken) -> TapeError:
        """Return why a table or column is missing: SchemaTooNew if another process has migrated the database."""
        if not told.spoilt:
            try:
                revision = self.read(lambda tx: found_version(tx.execute, self.tables, KNOWN))
                if revision is not None:
                    check_revision(revision)
            except (SchemaTooNew, SchemaTooOld) as error:
                return error
            except TapeError:
                # The first error says more.
                return told
        return told

    def check_writable(self) -> None:
        """Raise ReadOnly for a store that is only to be read."""
        if self.read_only:
            raise ReadOnly("the store was opened read-only")

    def begin(self, connection: Any) -> None:  # noqa: B027
        """Begin a writing transaction on a connection that is the caller's own; PostgreSQL's need not be told."""

    @property
    def lone(self) -> bool:
        """Whether one connection is all there is, so that whoever reads waits for who writes."""
        return False

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._closed

    @property
    def inside(self) -> bool:
        """Whether this thread is inside a write that a close would have to wait for."""
        return False

    @property
    def local(self) -> str:
        """The statements that make the settings of a transaction; empty where connections have them."""
        return ""

    @property
    def _watched(self) -> bool:
        """Whether others can write to this database."""
        return True

    def _watch(self, ring: Callable[[], None], stop: threading.Event) -> None:  # noqa: B027
        """Ring for every commit of another process, until ``stop`` is set."""

    def backup(self, file: str | os.PathLike[str]) -> None:
        """Copy the database to a file."""
        raise StoreFailed("backup() works only on a SQLite store, outside of transactions; on PostgreSQL use pg_dump")

    def point(self, name: str) -> None:
        """A place where a test may make the write fail."""
        if self.fault is not None:
            self.fault(name)

    def close(self) -> None:
        """Give every connection back. Further use fails."""
        self._closed = self._halted = True
        self.wakeup.close()
        self.engine.dispose()

    def before_fork(self) -> bool:
        """Let go of what no thread uses; tells whether nothing is left that a child must not inherit."""
        return True

    def after_fork(self, *, child: bool) -> None:
        """Go on in the process that has forked; the child begins without a connection, a watch or a transaction."""
        if not child:
            return
        self.wakeup.forget()
        self.wakeup = WakeUp(self._watch if self._watched else None)
        self.engine.dispose(close=False)
        for transaction in self._running:
            transaction.sever()
        self._running = set()

    def _open_connection(self) -> Any:
        """Return a driver connection that is ours from now on: the pool only knows how to open one.

        Left to the pool, connections that are kept would count against its limit though they never come back to it,
        and in a forked process it would tidy up what it finds abandoned there, over the parent's own socket.
        """
        pooled = self.engine.raw_connection()
        driver = pooled.driver_connection
        pooled.detach()
        return driver

    def check_open(self) -> None:
        """Raise StoreFailed for a store that is closed, ProcessForked for one that this process must not use."""
        if self._closed:
            raise StoreFailed("the store is closed")
