"""The database of a store: one opened by URL, a connection of its caller's, or a transaction under way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.core import strict
from tape.db.engine.connect import (
    DURABILITIES,
    Session,
    postgresql_engine,
    schema_name,
    session_settings,
    sqlite_engine,
)
from tape.db.engine.failures import Again, Broken, Lost, Undone
from tape.db.engine.postgres.database import PostgresDatabase, ReadOnlyPostgres
from tape.db.engine.postgres.errors import postgres_error
from tape.db.engine.sqlite import SqliteDatabase, sqlite_error
from tape.db.engine.transaction import Database, Transaction
from tape.errors import InvalidEntry, ProcessForked, StoreFailed

__all__ = ["Bound", "Joined", "check_transactional", "open_database"]

R = TypeVar("R")


def open_database(
    url: sa.URL,
    *,
    schema: str | None,
    durability: str,
    timeout: float,
    read_only: bool = False,
) -> Database:
    """Return the database at ``url``, not yet migrated; or not to be, if it is ``read_only``."""
    durability = strict.one_of(durability, DURABILITIES, "durability")
    if schema is not None:
        schema = schema_name(schema)
        if url.get_backend_name() != "postgresql":
            raise InvalidEntry("schema", "is only for PostgreSQL")
    if url.get_backend_name() == "postgresql":
        session = Session(session_settings(durability, timeout, read_only=read_only))
        made = ReadOnlyPostgres if read_only else PostgresDatabase
        return made(postgresql_engine(url, session), session, schema, timeout)
    if read_only:
        from tape.db.engine.sqlite_read_only import ReadOnlySqlite, read_only_engine

        return ReadOnlySqlite(read_only_engine(url, timeout), url, timeout)
    return SqliteDatabase(sqlite_engine(url, durability, timeout), url, timeout)


class _Guest(Database):
    """A transaction on someone else's connection: tables, statements and limits are those of the store it is from.

    What collides in it is left to the recorder, which tries again.
    """

    def __init__(self, parent: Database) -> None:
        # No super().__init__: there is no engine of its own to compile for, to watch or to close.
        self.engine = parent.engine
        self.timeout = parent.timeout
        self.tables = parent.tables
        self.statements = parent.statements
        self.fault = parent.fault
        self.postgres = parent.postgres
        self.read_only = parent.read_only
        self.driver_error = parent.driver_error
        self.heads = {}
        self.wakeup = parent.wakeup
        self._closed = self._halted = False
        self.parent = parent


class Bound(_Guest):
    """A caller's own connection: writes join its transaction, and nothing is committed here."""

    def __init__(self, connection: sa.Connection, parent: Database) -> None:
        super().__init__(parent)
        self._connection = connection
        self._process = os.getpid()

    def _cursor(self) -> Any:
        self.parent.check_open()
        if self._process != os.getpid():
            raise ProcessForked("the bound connection")
        if self._closed or self._connection.closed:
            raise StoreFailed("the bound connection is closed")
        check_transactional(self._connection)
        if not self._connection.in_transaction():
            # Without this SQLAlchemy would not know that there is something to commit.
            self._connection.begin()
        driver = self._connection.connection.driver_connection
        if not self.postgres and driver is not None and not driver.in_transaction:
            # A deferred transaction that reads before it writes fails at once when another writer was faster.
            self.begin(driver)
        return driver.cursor() if driver is not None else None

    def begin(self, connection: Any) -> None:
        """Begin where the store's own writers do."""
        self.parent.begin(connection)

    def write(
        self,
        tape: str,
        work: Callable[[Transaction], R],
        *,
        patience: float | None = None,
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
        """Run ``work`` inside a savepoint of the caller's transaction."""
        self.check_writable()
        try:
            cursor = self._cursor()
            cursor.execute("SAVEPOINT tape_write")
            transaction = Transaction(cursor, self.statements, postgres=self.postgres)
            try:
                result = work(transaction)
                self.point("commit")
                cursor.execute("RELEASE SAVEPOINT tape_write")
            except BaseException:
                with contextlib.suppress(Exception):
                    transaction.say("ROLLBACK TO SAVEPOINT tape_write", "RELEASE SAVEPOINT tape_write")
                raise
            return result
        except Exception as error:
            raise self._judge(error) from error

    def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` inside a savepoint, or without one where it can only read."""
        return self.read(work) if self.read_only else self.write("", work)

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
        told = postgres_error(error, 0) if self.postgres else sqlite_error(error, 0)
        if isinstance(told, Broken):
            return self.parent.outdated(told)
        # The caller owns the transaction, so the caller decides whether to run it again.
        return StoreFailed(str(error)) if isinstance(told, Lost | Again | Undone) else told

    def close(self) -> None:
        """Let go of the connection; it stays the caller's."""
        self._closed = True


def check_transactional(connection: sa.Connection) -> None:
    """Refuse a connection in AUTOCOMMIT: what is written to it would be answered with a receipt, and rolled back."""
    # Of SQLite only SQLAlchemy knows it, by an option of the connection or of its engine; a driver's own mode as well.
    level = connection.get_execution_options().get("isolation_level")
    level = level or getattr(connection.dialect, "_on_connect_isolation_level", None)
    driver = None if connection.closed else connection.connection.driver_connection
    if level == "AUTOCOMMIT" or getattr(driver, "autocommit", None) is True:
        raise InvalidEntry(
            "connection", "is in AUTOCOMMIT mode, so there is no transaction to join; use another isolation level"
        )


class Joined(_Guest):
    """A transaction that is under way on the store's own connection: several calls join it and commit together."""

    def __init__(self, transaction: Transaction, parent: Database) -> None:
        super().__init__(parent)
        self._transaction = transaction

    def write(
        self,
        tape: str,
        work: Callable[[Transaction], R],
        *,
        patience: float | None = None,
        again: Callable[[Transaction], R] | None = None,
    ) -> R:
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
                transaction.say("ROLLBACK TO SAVEPOINT tape_join", "RELEASE SAVEPOINT tape_join")
            told = self._judge(error)
            if told is error:
                raise
            raise told from error
        # Within this transaction the call is done, and the next one may rely on the head it leaves.
        done, transaction.after_commit = transaction.after_commit, None
        if done is not None:
            done()
        return result

    def repeat(self, tape: str, work: Callable[[Transaction], R], *, patience: float | None = None) -> R:
        """Run ``work`` once: it is the whole transaction that would have to be run again."""
        return self.write(tape, work)

    def read(self, work: Callable[[Transaction], R]) -> R:
        """Run ``work`` where it sees what was written before."""
        return work(self._transaction)

    def _told(self, error: BaseException) -> BaseException:
        """Return what an error means, whatever is to become of the transaction."""
        if self.postgres:
            return postgres_error(error, self.timeout, self._transaction.connection)
        return sqlite_error(error, self.timeout)

    def _judge(self, error: BaseException) -> BaseException:
        told = self._told(error)
        # With the connection all of the transaction is lost, so that trying this call again cannot help.
        return StoreFailed(str(error)) if isinstance(told, Lost) else told
