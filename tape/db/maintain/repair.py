"""Small repairs that lose no data: restoring triggers, and checkpointing a long write-ahead log into its file."""

from __future__ import annotations

import re

from tape.db.engine.sqlite import SqliteDatabase
from tape.db.engine.transaction import Database
from tape.db.maintain.inspect import missing_guards
from tape.db.schema.guards import guards, in_schema, run_ddl
from tape.db.schema.migrate import allow_guards, begin_changing

__all__ = ["fold_wal", "restore_guards"]


def restore_guards(database: Database) -> list[str]:
    """Create or enable again the triggers that keep entries immutable; returns those that were missing."""
    missing = missing_guards(database)
    if not missing:
        return []
    schema = database.tables.schema
    at = in_schema(schema)
    with database.engine.connect() as connection:
        if not database.postgres:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            begin_changing(connection, database)
            allow_guards(connection, schema)
            # A trigger that was only disabled is dropped as well, so that one repair covers both cases.
            for name in missing:
                run_ddl(connection, f"DROP TRIGGER IF EXISTS {name} ON {at}{database.tables.entries.name}")
        for ddl in guards(connection.dialect.name, schema):
            trigger = re.match(r"CREATE TRIGGER (\w+)", ddl)
            if trigger is None:
                run_ddl(connection, ddl.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1))
            elif trigger[1] in missing:
                run_ddl(connection, ddl)
        connection.commit()
    return missing


def fold_wal(database: Database, patience: float = 5.0) -> bool:
    """Checkpoint the write-ahead log of an SQLite file; False while a reader needs it, StoreBusy beside a writer."""
    return not isinstance(database, SqliteDatabase) or database.fold_wal(patience)
