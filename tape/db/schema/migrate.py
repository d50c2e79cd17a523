"""Schema versions at open: create what is not there, upgrade what is old, refuse what is newer.

The version is compared with a constant first; Alembic, whose import alone takes longer than opening a store, is
loaded only for a database that is behind. Creation and upgrade run in one transaction under a lock that every
opener takes, and look again once they hold it: of any number of simultaneous openers one does the work.

A process of an older release may have the store open meanwhile. Each of its writes moves a head on condition that the
revision is its own (``Heads.move_head``), and an upgrade keeps heads from moving until it is committed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from tape.db.engine.connect import Unreachable, address, cannot_open, damaged
from tape.db.engine.failures import READ_ONLY_STATES
from tape.db.engine.log import log
from tape.db.engine.process_fork import connect
from tape.db.engine.transaction import Database, lock_key
from tape.db.schema.found import Run, foreign, found_version, is_sharded, taken_names
from tape.db.schema.guards import guards, in_schema, run_ddl
from tape.db.schema.tables import KNOWN, REVISION, Tables
from tape.errors import NotAStore, ReadOnly, SchemaTooNew, SchemaTooOld, StoreBusy, StoreFailed, TablesTaken

__all__ = ["allow_guards", "begin_changing", "migrate", "require", "schema_version", "scripts"]

LOCK = lock_key("\0schema")
"""Held by who changes the tables of a store; one for all stores of a PostgreSQL database."""


def scripts() -> Path:
    """Return the folder of the Alembic scripts: packed beside the package, or in the checkout."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreFailed("the Alembic scripts of tape-store are missing: reinstall it")


def schema_version(connection: sa.Connection, database: Database) -> str | None:
    """Return the revision of the database, or None when it has no tables of ours."""
    if database.local and not connection.in_transaction():
        # A search path of the URL holds inside a transaction only.
        connection.exec_driver_sql("BEGIN")
        _settle(connection, database)
    return found_version(connection.exec_driver_sql, database.tables, KNOWN)


def require(database: Database) -> None:
    """Raise unless the database holds a store that this release reads as it is; writes nothing."""
    try:
        revision = database.read(lambda tx: found_version(tx.execute, database.tables, KNOWN))
    except StoreFailed as error:
        if (getattr(error.__cause__, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_NOTADB:
            told = cannot_open(database.engine.url, error.__cause__)
            raise NotAStore(str(told)) from error.__cause__
        if isinstance(error, Unreachable) or damaged(error.__cause__) is not None:
            raise cannot_open(database.engine.url, error.__cause__) from error.__cause__
        raise
    if revision is None:
        contents = database.read(lambda tx: foreign(tx.execute, database.tables))
        raise NotAStore(f"{address(database.engine.url)} is not a store: it is {contents}")
    _check(revision)
    if revision != REVISION:
        raise SchemaTooOld(revision, REVISION)


def migrate(database: Database) -> str | None:
    """Bring the schema to this release's revision; returns the revision it came from if anything was done."""
    engine = database.engine
    try:
        _look_first(database)
        with engine.connect() as connection:
            revision = schema_version(connection, database)
            _check(revision)
            if revision == REVISION:
                return None
            connection.rollback()
            _lock(connection, database)
            revision = schema_version(connection, database)
            _check(revision)
            if revision == REVISION:
                return None
            if revision is None:
                _create(connection, database)
            else:
                upgrade(connection, database.tables.schema, REVISION)
            connection.commit()
    except sa.exc.DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) or 0
        if (
            code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            or getattr(error.orig, "sqlstate", "") == "55P03"
        ):
            raise StoreBusy(database.timeout) from error
        if code & 0xFF == sqlite3.SQLITE_READONLY or getattr(error.orig, "sqlstate", "") in READ_ONLY_STATES:
            raise ReadOnly(f"the store can only be read ({error.orig}): open it with read_only=True") from error
        raise cannot_open(engine.url, error.orig) from error
    log.info("tape.migrated", found=revision, now=REVISION)
    return revision or ""


def _look_first(database: Database) -> None:
    """Refuse a SQLite file of another program or a newer release before it is switched to the write-ahead log.

    The connections of the store do that when they are opened, and the file would keep it.
    """
    if database.postgres or database.lone:
        return
    path = os.path.realpath(database.engine.url.database or "")
    if os.path.exists(f"{path}-wal") or not os.path.exists(path):
        return
    began = time.monotonic()
    # Through SQLite alone: whoever else opens and closes the file takes the locks of this process on it away.
    try:
        connection = connect(path, f"file:{quote(os.fsencode(path))}?mode=rw", timeout=database.timeout)
        with contextlib.closing(connection):
            if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
                return
            # One state of the file: another opener may be making the store at this moment.
            connection.execute("BEGIN")
            revision = found_version(connection.execute, database.tables, KNOWN)
            _check(revision)
            if revision is None:
                _check_free(connection.execute, database.tables)
    except sqlite3.Error as error:
        # Whatever else is wrong with the file is told by whoever opens it to write. So it is where SQLite did not wait.
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY and time.monotonic() - began >= database.timeout:
            raise StoreBusy(database.timeout) from error


def _check(revision: str | None) -> None:
    if revision is not None and revision not in KNOWN:
        raise SchemaTooNew(revision, REVISION)


def _lock(connection: sa.Connection, database: Database) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    # Connections of the pool commit by themselves; here everything has to be one transaction.
    begin_changing(connection, database)
    tables = database.tables
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
    if tables.schema is not None and not _has_schema(connection, tables.schema):
        connection.execute(sa.schema.CreateSchema(tables.schema, if_not_exists=True))


def begin_changing(connection: sa.Connection, database: Database) -> None:
    """Begin a transaction on PostgreSQL, whose connections commit by themselves, with the settings of the store."""
    connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    _settle(connection, database)


def _settle(connection: sa.Connection, database: Database) -> None:
    """Make the settings of a transaction where its session has none."""
    if database.local:
        connection.exec_driver_sql(database.local, execution_options={"no_parameters": True})


def _has_schema(connection: sa.Connection, schema: str) -> bool:
    """Whether the schema is there: Citus takes one for its own that is created once more, with IF NOT EXISTS."""
    rows = connection.exec_driver_sql("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,))
    return rows.first() is not None


def _create(connection: sa.Connection, database: Database) -> None:
    """Create today's tables directly; a test holds the result equal to running every revision."""
    tables = database.tables
    _check_free(connection.exec_driver_sql, tables)
    allow_guards(connection, tables.schema)
    tables.metadata.create_all(connection, checkfirst=False)
    for ddl in guards(connection.dialect.name, tables.schema):
        run_ddl(connection, ddl)
    connection.execute(sa.insert(tables.epoch).values(base=0))
    connection.execute(sa.insert(tables.version).values(version_num=REVISION))


def _check_free(run: Run, tables: Tables) -> None:
    """Refuse to make a store where another program has something of its names."""
    taken_by_others = taken_names(run, tables)
    if taken_by_others:
        raise TablesTaken(taken_by_others, schemas=tables.postgres)


def allow_guards(connection: sa.Connection, schema: str | None) -> None:
    """Let Citus take the triggers: what they read is on the same worker as the entries."""
    if connection.dialect.name == "postgresql" and is_sharded(connection.exec_driver_sql, schema):
        connection.exec_driver_sql("SET LOCAL citus.enable_unsafe_triggers = on")


def upgrade(connection: sa.Connection, schema: str | None, to: str) -> None:
    """Run the Alembic revisions up to ``to`` inside the transaction that is open on ``connection``."""
    from alembic.config import Config

    from alembic import command

    config = Config()
    config.set_main_option("script_location", str(scripts()))
    config.attributes |= {"connection": connection, "schema": schema}
    allow_guards(connection, schema)
    heads = f"{in_schema(schema)}tape_heads"
    if connection.dialect.name == "postgresql" and connection.scalar(sa.select(sa.func.to_regclass(heads))) is not None:
        run_ddl(connection, f"LOCK TABLE {heads} IN EXCLUSIVE MODE")
    command.upgrade(config, to)
