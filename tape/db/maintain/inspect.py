"""Inspecting a database: what is there before a store is opened, and what is wrong with it.

Nothing here changes anything. Inspecting a database that is not a store, or a path without a file, leaves no table, no
journal mode and no file behind.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import sqlalchemy as sa
from msgspec import Struct

from tape.db.engine.connect import UnreadableLog, cannot_open, damaged, is_memory
from tape.db.engine.guests import open_database
from tape.db.engine.sqlite import SqliteDatabase
from tape.db.engine.transaction import Database
from tape.db.feed.position import join_position
from tape.db.schema.found import foreign, found_version
from tape.db.schema.guards import guards
from tape.db.schema.migrate import schema_version
from tape.db.schema.tables import KNOWN, PREFIX, REVISION
from tape.errors import StoreFailed, TablesTaken

__all__ = ["Oldest", "StoreState", "feed_now", "integrity", "look", "missing_guards", "oldest_transaction", "wal_size"]


class StoreState(Struct, frozen=True):
    """What is at the address of a store."""

    there: bool
    """The file or the server's database exists."""
    revision: str | None = None
    """The schema of the store in it; None when there is none."""
    damaged: str | None = None
    """Why it cannot be read at all, as the predicate of a sentence: "is damaged (...)"."""
    contents: str | None = None
    """What the database is, if there is one without a store in it."""

    @property
    def current(self) -> bool:
        """Whether this release works with it as it is."""
        return self.revision == REVISION

    @property
    def newer(self) -> bool:
        """Whether a newer release wrote it."""
        return self.revision is not None and self.revision not in KNOWN


class Oldest(Struct, frozen=True):
    """The transaction on a PostgreSQL server that has the lowest id of those open, and so holds the feed back."""

    pid: int
    seconds: float
    state: str
    application: str
    prepared: str | None = None
    """The name of one that was prepared: no process has it, and ``application`` is the database it belongs to."""


def look(url: sa.URL, schema: str | None = None, timeout: float = 30.0, prefix: str = PREFIX) -> StoreState:
    """Return what is at a database URL without opening it as a store. Raises StoreFailed when it cannot be reached."""
    if url.get_backend_name() == "sqlite":
        return StoreState(False) if is_memory(url) else _look_at_file(url, prefix, timeout)
    database = open_database(url, schema=schema, prefix=prefix, durability="full", timeout=timeout, read_only=True)
    try:
        with database.engine.connect() as connection:
            revision = schema_version(connection, database)
            contents = None if revision is not None else foreign(connection.exec_driver_sql, database.tables)
            return StoreState(True, revision, contents=contents)
    except sa.exc.DBAPIError as error:
        raise cannot_open(url, error.orig) from error
    finally:
        database.close()


def _look_at_file(url: sa.URL, prefix: str, timeout: float) -> StoreState:
    path = Path(url.database or "")
    if not path.is_file():
        if path.exists():
            raise StoreFailed(f"{str(path)!r} is not a file")
        return StoreState(False)
    if not os.access(path, os.R_OK):
        raise StoreFailed(f"the file {str(path)!r} cannot be read")
    if path.stat().st_size == 0:
        # To SQLite an empty file is an empty database.
        return StoreState(True, contents="an empty file")
    database = open_database(url, schema=None, prefix=prefix, durability="full", timeout=timeout, read_only=True)
    try:
        revision = database.read(lambda tx: found_version(tx.execute, database.tables, KNOWN))
        contents = None
        if revision is None:
            contents = database.read(lambda tx: foreign(tx.execute, database.tables))
        return StoreState(True, revision, contents=contents)
    except StoreFailed as error:
        cause = error.__cause__
        if (damage := damaged(cause)) is not None:
            return StoreState(True, damaged=damage)
        if isinstance(error, TablesTaken | UnreadableLog):
            raise
        raise cannot_open(url, cause or error) from cause
    finally:
        database.close()


def integrity(database: Database) -> list[str]:
    """Return what SQLite finds wrong with the pages and indexes of the file; PostgreSQL has no such check."""
    if database.postgres:
        return []
    rows = database.read(lambda tx: tx.execute("PRAGMA integrity_check(20)").fetchall())
    return [str(problem) for (problem,) in rows if problem != "ok"]


def wal_size(database: Database) -> int | None:
    """Return the bytes in the file's write-ahead log; None where there is none."""
    if not isinstance(database, SqliteDatabase):
        return None
    try:
        return Path(f"{database.engine.url.database}-wal").stat().st_size
    except OSError:
        return 0


def missing_guards(database: Database) -> list[str]:
    """Return the triggers that should keep entries immutable and are gone or switched off."""
    schema = database.tables.schema
    # Without the name of the schema, which may contain anything.
    wanted = re.findall(
        r"CREATE TRIGGER (\w+)", "\n".join(guards(database.engine.dialect.name, None, database.tables.prefix))
    )
    query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    if database.postgres:
        query = (
            "SELECT tgname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE tgenabled <> 'D' AND nspname = {'current_schema()' if schema is None else '%s'}"
        )
    params = () if schema is None else (schema,)
    there = {name for (name,) in database.read(lambda tx: tx.execute(query, params).fetchall())}
    return [name for name in wanted if name not in there]


def oldest_transaction(database: Database) -> Oldest | None:
    """Return the oldest transaction on the PostgreSQL server that has an id and is not over, if any.

    It may be in any database of the server, because all draw ids from one sequence. Transactions that only read have
    no id and do not hold the feed back.
    """
    if not database.postgres:
        return None
    query = (
        "SELECT pid, extract(epoch FROM clock_timestamp() - since)::float8, state, application, prepared FROM ("
        "SELECT pid, xact_start AS since, coalesce(state, '') AS state, coalesce(application_name, '') AS application, "
        "NULL AS prepared, backend_xid AS xid FROM pg_stat_activity "
        "WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() "
        "UNION ALL SELECT 0, prepared, 'prepared', database::text, gid, transaction FROM pg_prepared_xacts"
        ") AS running ORDER BY age(xid) DESC LIMIT 1"
    )
    row = database.read(lambda tx: tx.execute(query).fetchone())
    if row is None:
        return None
    pid, seconds, *rest = row
    return Oldest(int(pid), float(seconds or 0.0), *rest)


def feed_now(database: Database) -> int:
    """Return the position up to which the feed is final; later entries may still be uncommitted."""
    if not database.postgres:
        end = database.read(lambda tx: tx.one(tx.statements.feed_end, ()))
        return 0 if end is None else end.position
    xids = database.read(lambda tx: tx.one(tx.statements.xid_state, tx.snapshot()))
    return 0 if xids is None else join_position(xids.oldest, 0)
