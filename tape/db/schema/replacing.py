"""Another table in the place of the entries on SQLite, which changes neither a key nor a CHECK of one that is there.

An application may live in the same file. What it has on the entries or reads them with stays as it is.
"""

from __future__ import annotations

import sqlalchemy as sa

from tape.db.schema.guards import run_ddl

__all__ = ["replace_entries"]

_BELONGING = """SELECT sql FROM sqlite_master WHERE type IN ('trigger', 'index') AND lower(tbl_name) = 'tape_entries'
AND sql IS NOT NULL ORDER BY type, rowid"""
"""The triggers and indexes of the entries. Of a trigger the name of its table is kept as it was written."""


def replace_entries(connection: sa.Connection, name: str, create: str, columns: str) -> None:
    """Create a table, move all entries into it, and let it take the place and the name of the entries.

    The rows go over as they are, in the order in which they lie. Names are the usual ones, as in every revision.
    """
    belonging = [str(text) for (text,) in connection.execute(sa.text(_BELONGING))]
    driver = connection.connection.driver_connection
    if driver is None:
        raise AssertionError("a connection of a revision is open")
    (legacy,) = driver.execute("PRAGMA legacy_alter_table").fetchone() or (0,)
    run_ddl(connection, create)
    run_ddl(connection, f"INSERT INTO {name} ({columns}) SELECT {columns} FROM tape_entries ORDER BY position")
    run_ddl(connection, "DROP TABLE tape_entries")
    # Without this every view and trigger of the file would have to be right at a moment when there are no entries.
    driver.execute("PRAGMA legacy_alter_table = ON")
    try:
        run_ddl(connection, f"ALTER TABLE {name} RENAME TO tape_entries")
    finally:
        driver.execute(f"PRAGMA legacy_alter_table = {legacy}")
    for text in belonging:
        # By the driver itself: these are texts of the database, whose names are not to be replaced once more.
        driver.execute(text)
