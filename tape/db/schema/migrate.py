"""Schema versions at open: create what is not there, upgrade what is old, refuse what is newer.

The version is compared with a constant first; Alembic, whose import alone takes longer than opening a store, is
loaded only for a database that is behind. Creation and upgrade run in one transaction under a lock that every
opener takes, and look again once they hold it: of any number of simultaneous openers one does the work.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import sqlalchemy as sa

from tape.db.engine.log import log
from tape.db.engine.transaction import Database, lock_key
from tape.db.schema.guards import guards, run_ddl
from tape.db.schema.tables import REVISION
from tape.errors import SchemaTooNew, StoreBusy, StoreFailed

__all__ = ["migrate", "schema_version", "scripts"]

KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Every revision this release can upgrade from, oldest first."""

LOCK = lock_key("\0schema")


def scripts() -> Path:
    """Return the folder of the Alembic scripts: packed beside the package, or in the checkout."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_alembic", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreFailed("the Alembic scripts of tape-store are missing: reinstall it")


def schema_version(connection: sa.Connection, database: Database) -> str | None:
    """Return the revision of the database, or None when it has no tables of ours."""
    table = database.tables.version
    if not sa.inspect(connection).has_table(table.name, schema=table.schema):
        return None
    return connection.execute(sa.select(table.c.version_num)).scalar()


def migrate(database: Database) -> str | None:
    """Bring the schema to this release's revision; returns the revision it came from if anything was done."""
    engine = database.engine
    try:
        with engine.connect() as connection:
            found = schema_version(connection, database)
            _check(found)
            if found == REVISION:
                return None
            connection.rollback()
            _lock(connection, database.tables.schema)
            found = schema_version(connection, database)
            _check(found)
            if found == REVISION:
                return None
            if found is None:
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
        raise StoreFailed(f"cannot open the store: {error.orig}") from error
    log.info("tape.migrated", found=found, now=REVISION)
    return found or ""


def _check(found: str | None) -> None:
    if found is not None and found not in KNOWN:
        raise SchemaTooNew(found, REVISION)


def _lock(connection: sa.Connection, schema: str | None) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    # Connections of the pool commit by themselves; here everything has to be one transaction.
    connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
    if schema is not None:
        connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))


def _create(connection: sa.Connection, database: Database) -> None:
    """Create today's tables directly; a test holds the result equal to running every revision."""
    database.tables.metadata.create_all(connection, checkfirst=False)
    for ddl in guards(connection.dialect.name, database.tables.schema):
        run_ddl(connection, ddl)
    connection.execute(sa.insert(database.tables.epoch).values(base=0))
    connection.execute(sa.insert(database.tables.version).values(version_num=REVISION))


def upgrade(connection: sa.Connection, schema: str | None, to: str) -> None:
    """Run the Alembic revisions up to ``to`` inside the transaction that is open on ``connection``."""
    from alembic.config import Config

    from alembic import command

    config = Config()
    config.set_main_option("script_location", str(scripts()))
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema
    command.upgrade(config, to)
