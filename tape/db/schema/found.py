"""What a database has under the names of a store: its revision, or the tables of another program.

Asked in plain statements, so that it can be asked inside any transaction, on a standby, and by a role that only reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from tape.core.amounts import count
from tape.db.schema.guards import in_schema
from tape.db.schema.tables import KNOWN, REVISION, Tables
from tape.errors import SchemaTooNew, SchemaTooOld, TablesTaken

__all__ = ["Run", "check_revision", "foreign", "found_home", "found_version", "is_sharded", "taken_names"]

Run = Callable[[str, tuple[Any, ...]], Any]
"""Runs a statement with its parameters and returns what can be fetched from."""

_ENTRY = {"tape_id", "seq", "kind", "key", "payload", "stamp", "version", "hash"}
"""Columns that the entries have had from the first revision on."""


def found_version(run: Run, tables: Tables, known: tuple[str, ...]) -> str | None:
    """Return the revision of the store that a database holds, None if there is none.

    Raises TablesTaken when the tables of these names are not a store's: they lack what every store has, or are of a
    revision that is not ``known`` without being entries.
    """
    version, entries = tables.version.name, tables.entries.name
    columns = _columns(run, tables, version)
    if not columns:
        return None
    if "version_num" not in columns:
        raise TablesTaken([version], schemas=tables.postgres)
    # A per cent sign in the name of the schema is no place of a parameter.
    where = in_schema(tables.schema).replace("%", "%%")
    revision = next(
        (str(number) for (number,) in run(f"SELECT version_num FROM {where}{version}", ()).fetchall()), None
    )
    columns = _columns(run, tables, entries)
    if columns and not columns >= _ENTRY:
        raise TablesTaken([entries], schemas=tables.postgres)
    if revision is not None and revision not in known and not columns:
        raise TablesTaken([version], schemas=tables.postgres)
    return revision


def check_revision(revision: str) -> None:
    """Raise SchemaTooNew or SchemaTooOld unless the database is at the revision of this release."""
    if revision != REVISION:
        raise (SchemaTooOld if revision in KNOWN else SchemaTooNew)(revision, REVISION)


def _columns(run: Run, tables: Tables, name: str) -> set[str]:
    """Return the columns of a table, none if it is not there."""
    if not tables.postgres:
        rows = run("SELECT name FROM pragma_table_info(?)", (name,))
    else:
        query = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
        rows = run(f"{query} AND NOT attisdropped", (f"{in_schema(tables.schema)}{name}",))
    return {column for (column,) in rows.fetchall()}


def foreign(run: Run, tables: Tables) -> str:
    """Describe a database without a store: which engine, and how many tables other programs have in it."""
    if tables.postgres:
        query = "SELECT count(*) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'p') "
        (number,) = run(query + "AND nspname = coalesce(%s, current_schema())", (tables.schema,)).fetchone()
        engine = "PostgreSQL"
    else:
        query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite#_%' ESCAPE '#'"
        (number,) = run(query, ()).fetchone()
        engine = "SQLite"
    if not number:
        return f"a {engine} database without tables"
    where = f" in schema {tables.schema!r}" if tables.schema is not None else ""
    return f"a {engine} database with {count(number, 'table')}{where} of another program"


def found_home(run: Run, tables: Tables) -> str:
    """Return the PostgreSQL schema in which a store is that names none."""
    query = "SELECT nspname::text FROM pg_namespace n JOIN pg_class c ON n.oid = relnamespace"
    (home,) = run(f"{query} WHERE c.oid = to_regclass(%s)", (tables.heads.name,)).fetchone()
    return str(home)


def is_sharded(run: Run, schema: str | None) -> bool:
    """Whether PostgreSQL is the coordinator of a Citus cluster, and the schema is one that lives on a worker."""
    (has_citus,) = run("SELECT to_regclass('pg_catalog.pg_dist_schema') IS NOT NULL", ()).fetchone()
    if not has_citus:
        return False
    query = "SELECT count(*) > 0 FROM pg_catalog.pg_dist_schema JOIN pg_catalog.pg_namespace n ON n.oid = schemaid"
    (sharded,) = run(f"{query} WHERE nspname = coalesce(%s, current_schema())", (schema,)).fetchone()
    return bool(sharded)


def taken_names(run: Run, tables: Tables) -> list[str]:
    """Return the names that a new store would need and something else in the database has."""
    own_tables = tables.metadata.sorted_tables
    names = {table.name for table in own_tables} | {str(index.name) for table in own_tables for index in table.indexes}
    if not tables.postgres:
        rows = run("SELECT lower(name) FROM sqlite_master", ())
        names.add("tape_words")
    else:
        names.add("tape_entries_guard")
        # There a key makes an index of its name.
        keys = (sa.UniqueConstraint, sa.PrimaryKeyConstraint)
        constraints = (one for table in own_tables for one in table.constraints if isinstance(one, keys))
        names |= {str(one.name) for one in constraints if one.name is not None}
        rows = run(
            "SELECT relname::text FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname = coalesce(%s, current_schema()) "
            "UNION ALL SELECT proname::text FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace "
            "WHERE pronargs = 0 AND nspname = coalesce(%s, current_schema())",
            (tables.schema, tables.schema),
        )
    return sorted(names & {name for (name,) in rows.fetchall()})
