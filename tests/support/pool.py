"""Databases that hold an empty store, ready for a test: making one anew takes longer than most tests.

An SQLite file is a copy of one that was made before. A PostgreSQL schema goes from test to test. When a test is over,
its sessions are ended and its rows are deleted, and the next test finds the schema as the first one did. A schema in
which anything but rows was changed is dropped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

import tape
from support.backends import CITUS, FILLED, PROCESS, Backend, drop, dsn, new_backend, take_turn

__all__ = ["EmptyFile", "LeftBehind", "SchemaPool"]

PATIENCE = 0.25
"""Seconds in which a session that was closed is gone; one that is not is ended."""
ROOMY = 5 * 1024**2
"""Bytes of rows past which a schema is not worth keeping: deleted rows are still read over."""


class LeftBehind(AssertionError):
    """A test changed what no schema holds, so that dropping its schema would not undo it."""


class EmptyFile:
    """An SQLite file with an empty store, to be copied."""

    def __init__(self, folder: Path) -> None:
        path = folder / "empty.db"
        tape.open(path).close()
        self._bytes = path.read_bytes()
        path.unlink()

    def copy(self, folder: Path) -> Backend:
        """Return a new database with an empty store."""
        made = new_backend(folder, None)
        Path(str(made.url.database)).write_bytes(self._bytes)
        return made


class SchemaPool:
    """PostgreSQL schemas with an empty store, which go from test to test."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.dropped = 0
        """How many schemas came back changed."""
        self._connection = psycopg.connect(dsn(url), autocommit=True)
        # A replica fires no triggers, which would refuse to delete entries.
        self._connection.execute("SET session_replication_role = replica; SET lock_timeout = '10s'")
        self._fresh: dict[str, Fingerprint] = {}
        self._free: list[str] = []
        self._around = self._outside()

    def lend(self, folder: Path) -> Backend:
        """Return an empty store, which comes back when the backend is left."""
        take_turn()
        if not self._free:
            made = new_backend(folder, self.url)
            made.open().close()
            schema = str(made.schema)
            self._fresh[schema] = Fingerprint(self._connection, schema)
            self._free.append(schema)
        schema = self._free.pop()
        return Backend("postgresql", self.url, schema, leave=lambda: self.take_back(schema))

    def take_back(self, schema: str) -> None:
        """Make the schema ready for the next test, or drop it."""
        take_turn()
        self._end_sessions(schema)
        fresh = self._fresh[schema]
        if not self._roll_back_prepared(schema) and fresh.holds(self._connection):
            fresh.sweep(self._connection)
            self._free.append(schema)
        else:
            del self._fresh[schema]
            self.dropped += 1
            drop(self._connection, schema)
        before, self._around = self._around, self._outside()
        if before != self._around:
            raise LeftBehind(f"roles and settings were {before}, and are {self._around}")

    def close(self) -> None:
        """Drop the schemas that are left."""
        take_turn()
        for schema in self._free:
            drop(self._connection, schema)
        self._connection.close()

    def _end_sessions(self, schema: str) -> None:
        """Wait until no session of the test is left, so that nothing it began can be committed later."""
        mine = "application_name = %(name)s OR starts_with(application_name, %(name)s || ' ')"
        query = f"FROM pg_stat_activity WHERE datname = current_database() AND ({mine})"
        until = time.monotonic() + PATIENCE
        while self._connection.execute(f"SELECT pid {query}".encode(), {"name": schema}).fetchone():
            if time.monotonic() > until:
                ended = f"SELECT bool_and(pg_terminate_backend(pid, 10000)) {query}"
                self._connection.execute(ended.encode(), {"name": schema})

    def _roll_back_prepared(self, schema: str) -> bool:
        """Undo transactions that were prepared and left so; tells whether there were any."""
        query = (
            "SELECT DISTINCT gid FROM pg_prepared_xacts JOIN pg_locks own ON own.transactionid = transaction"
            " JOIN pg_locks held USING (virtualtransaction) JOIN pg_class c ON c.oid = held.relation"
            " JOIN pg_namespace n ON n.oid = relnamespace WHERE own.pid IS NULL AND held.pid IS NULL AND nspname = %s"
        )
        left = self._connection.execute(query, [schema]).fetchall()
        for (gid,) in left:
            self._connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
        return bool(left)

    def _outside(self) -> list[Any]:
        """Return the roles of this process's tests, and the settings of those, of the user and of the database."""
        query = (
            "SELECT rolname, setconfig FROM pg_roles FULL JOIN pg_db_role_setting ON setrole = pg_roles.oid"
            " WHERE strpos(rolname, %s) > 0"
            " OR setconfig IS NOT NULL AND (rolname IS NULL OR rolname = current_user) ORDER BY 1, 2"
        )
        return self._connection.execute(query, [PROCESS]).fetchall()


class Fingerprint:
    """What a schema looked like with a new store in it."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._queries = _catalog(schema)
        self._was = self._found(connection)
        self._sweep = _sweep(connection, schema)

    def _found(self, connection: psycopg.Connection[Any]) -> list[Any]:
        return [connection.execute(query).fetchone() for query in self._queries]

    def sweep(self, connection: psycopg.Connection[Any]) -> None:
        """Delete everything that tests write."""
        if len(self._sweep) == 1:
            connection.execute(self._sweep[0], prepare=True)
            return
        with connection.transaction(), connection.pipeline():
            for statement in self._sweep:
                connection.execute(statement, prepare=False)

    def holds(self, connection: psycopg.Connection[Any]) -> bool:
        """Tell whether nothing but rows was changed since, and not too many of them."""
        try:
            return self._found(connection) == self._was
        except psycopg.Error:
            return False


def _catalog(schema: str) -> list[bytes]:
    """Return the query that asks how many objects a schema has and which transaction changed one last.

    It also asks for the rows that a new store has, and whether the schema has grown large. Citus answers for catalogs
    and for rows on workers in queries of their own.
    """
    space = f"'{schema}'::regnamespace"
    tables = f"(SELECT oid FROM pg_class WHERE relnamespace = {space})"
    catalogs = {
        "pg_namespace": f"oid = {space}",
        "pg_class": f"relnamespace = {space}",
        "pg_type": f"typnamespace = {space}",
        "pg_proc": f"pronamespace = {space}",
        "pg_constraint": f"connamespace = {space}",
        "pg_statistic_ext": f"stxnamespace = {space}",
        "pg_default_acl": f"defaclnamespace = {space}",
        "pg_attribute": f"attrelid IN {tables}",
        "pg_attrdef": f"adrelid IN {tables}",
        "pg_index": f"indrelid IN {tables}",
        "pg_trigger": f"tgrelid IN {tables}",
        "pg_policy": f"polrelid IN {tables}",
        "pg_rewrite": f"ev_class IN {tables}",
    }
    parts = [
        f"(SELECT (count(*), max(xmin::text::bigint))::text FROM {table} WHERE {condition})"
        for table, condition in catalogs.items()
    ]
    filled = [f"(SELECT string_agg(t::text, '') FROM \"{schema}\".{table} t)" for table in FILLED]
    # Asking for the total, with indexes and maps, takes as long as all of the rest.
    large = f"sum(pg_relation_size(oid) + coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0)) > {ROOMY}"
    parts += [f"(SELECT {large} FROM pg_class WHERE relnamespace = {space} AND relkind = 'r')"]
    if CITUS in os.environ:
        return [f"SELECT {', '.join(parts)}".encode(), *(f"SELECT {part}".encode() for part in filled)]
    return [f"SELECT {', '.join(parts + filled)}".encode()]


def _sweep(connection: psycopg.Connection[Any], schema: str) -> list[bytes]:
    """Return the statement that leaves a schema as a new store has it; being one, it is planned only once.

    On Citus there is one for each table, since it would run the parts of one by one anyhow.
    """
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
    counters = connection.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = %s", [schema]).fetchall()
    deleting = [f'of_{name} AS (DELETE FROM "{schema}".{name})' for (name,) in tables if name not in FILLED]
    resetting = [f"setval('\"{schema}\".{name}', 1, false)" for (name,) in counters]
    if CITUS in os.environ:
        # What the session says of triggers does not reach the worker.
        told = ["citus.propagate_set_commands = 'local'", "session_replication_role = replica"]
        deletes = [f'DELETE FROM "{schema}".{name}' for (name,) in tables if name not in FILLED]
        statements = [*(f"SET LOCAL {setting}" for setting in told), *deletes, f"SELECT {', '.join(resetting)}"]
        return [statement.encode() for statement in statements]
    return [f"WITH {', '.join(deleting)} SELECT {', '.join(resetting)}".encode()]
