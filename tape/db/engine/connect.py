"""Opening engines: URLs, SQLite's pragmas, PostgreSQL's session settings, and connections that are kept.

A raw driver connection is taken from SQLAlchemy's pool once and kept, since a checkout costs as much as two statements.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import sqlite3
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import NullPool, StaticPool

from tape.db.engine.process_fork import connect
from tape.errors import InvalidEntry, StoreFailed

__all__ = [
    "DURABILITIES",
    "LeftoverLog",
    "Session",
    "Unreachable",
    "UnreadableLog",
    "Unwritable",
    "address",
    "cannot_open",
    "check_orphan",
    "check_replaceable",
    "damaged",
    "driver_options",
    "parse_url",
    "postgresql_engine",
    "schema_name",
    "session_settings",
    "sqlite_engine",
    "sqlite_loses_pages",
]

DURABILITIES = ("full", "normal")
LONGEST_SCHEMA = 63
"""Bytes that PostgreSQL keeps of a name."""
_OPTION = re.compile(r"(?:^|\s)(?:-c\s*|--)([A-Za-z_][\w.-]*)=((?:\\.|[^\s\\])*)", re.DOTALL)
"""A setting among the options that libpq sends to a server."""
_TRIES = 4
"""How often a session is looked for that has a statement, and one that has it not."""


class Unreachable(StoreFailed):
    """No connection to the server could be made."""


class LeftoverLog(StoreFailed):
    """The log of a store that was not closed lies where another file is to be. A retry does not help."""


class UnreadableLog(StoreFailed):
    """The log of a store holds commits that SQLite cannot read where the file is. A retry does not help."""


class Unwritable(StoreFailed):
    """A file that was to be written, such as a backup or an export, cannot be. The store itself is not at fault."""

    def __init__(self, file: str | os.PathLike[str] | None, why: object) -> None:
        name = "the file" if file is None else repr(os.fspath(file))
        super().__init__(f"cannot write {name}: {why}")
        self.file = file


def damaged(error: BaseException | None) -> str | None:
    """Return what SQLite's error says of a file that cannot be read as a database; None for every other error."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return "is not a SQLite database, or its first page is damaged"
    return f"is a damaged SQLite database ({error})" if code == sqlite3.SQLITE_CORRUPT else None


def cannot_open(url: sa.URL, error: BaseException | None) -> StoreFailed:
    """Return the error for a database that cannot be opened: its address, the reason, and what to do."""
    reason = " ".join(str(error).split())
    if url.get_backend_name() != "sqlite":
        if getattr(error, "sqlstate", None) is None:
            return Unreachable(f"cannot connect to {address(url)}: {reason}")
        return StoreFailed(f"cannot open the store in {address(url)}: {reason}")
    path = url.database or ":memory:"
    if (damage := damaged(error)) is not None:
        return StoreFailed(f"{path!r} {damage}: restore it from a backup, or open another file")
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN:
        if os.path.isdir(path):
            reason = "it is a folder"
        elif not os.path.exists(path):
            folder = os.path.dirname(os.path.realpath(path))
            reason = f"the file does not exist and cannot be created in {folder!r}; check the permissions of the folder"
        else:
            reason = f"{reason}; check the permissions of the file and its folder"
    return StoreFailed(f"cannot open the store {path!r}: {reason}")


def address(url: sa.URL) -> str:
    """Return the address of a database for messages: a quoted path, or a URL without its password."""
    if url.get_backend_name() == "sqlite":
        return repr(url.database or ":memory:")
    told = {name: value for name, value in url.query.items() if name in ("host", "port", "user", "dbname")}
    return url.set(drivername="postgresql", query=told)._replace(password=None).render_as_string(hide_password=True)


_DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}
"""The driver that works for each database."""


def parse_url(url: str | os.PathLike[str] | sa.URL) -> sa.URL:
    """Return the database that a path, ``:memory:`` or URL names; raises InvalidEntry for anything else."""
    if isinstance(url, sa.URL):
        parsed = url
    else:
        text = os.fspath(url) if isinstance(url, str | os.PathLike) else ""
        if not isinstance(text, str) or not text:
            raise InvalidEntry("url", "must be a path, ':memory:' or a database URL")
        text = str.__str__(text)
        if text == ":memory:":
            parsed = sa.URL.create("sqlite")
        elif "://" in text:
            try:
                parsed = sa.make_url(text)
            except (sa.exc.ArgumentError, ValueError) as error:
                raise InvalidEntry("url", f"is not a database URL: {error}") from error
        else:
            parsed = sa.URL.create("sqlite", database=text)
    backend = parsed.get_backend_name()
    if backend == "postgres":
        raise InvalidEntry("url", "'postgres' is not supported; write it as postgresql://")
    if backend not in _DRIVERS:
        raise InvalidEntry("url", f"{backend!r} is not supported; use SQLite or PostgreSQL")
    driver = f"{backend}+{_DRIVERS[backend]}"
    if parsed.drivername not in (backend, driver):
        # Another driver may be another database, or reach the server in another way.
        why = f"the driver of {parsed.drivername!r} is not supported; write {backend}:// or {driver}://"
        raise InvalidEntry("url", why)
    if backend == "postgresql":
        return parsed.set(drivername=driver)
    if parsed.query:
        # Taken silently, a mode or a cache that was asked for would not hold.
        raise InvalidEntry(
            "url", f"SQLite URLs take no parameters such as {next(iter(parsed.query))!r}; remove '?' and all after it"
        )
    if parsed.host or parsed.port or parsed.username or parsed.password:
        raise InvalidEntry("url", "SQLite URLs have no host; write sqlite:///relative/path or sqlite:////absolute/path")
    path = parsed.database or ""
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidEntry("url", "the path must not contain lone surrogates") from error
    if "\0" in path:
        raise InvalidEntry("url", "the path must not contain NUL")
    return parsed.set(drivername=driver)


def schema_name(schema: Any) -> str:
    """Return the name of a PostgreSQL schema; raises InvalidEntry for what PostgreSQL could not take as it is."""
    if not isinstance(schema, str):
        raise InvalidEntry("schema", f"must be a string, not {type(schema).__name__}")
    name = str.__str__(schema)
    if not name or "\0" in name:
        raise InvalidEntry("schema", "must not be empty or contain NUL")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidEntry("schema", "must not contain lone surrogates") from error
    if size > LONGEST_SCHEMA:
        # PostgreSQL would cut it, and then look for it in vain.
        raise InvalidEntry("schema", f"must have at most {LONGEST_SCHEMA} bytes, not {size}")
    return name


def is_memory(url: sa.URL) -> bool:
    """Whether the database lives in this process only."""
    return url.get_backend_name() == "sqlite" and (not url.database or url.database == ":memory:")


def check_orphan(path: str | os.PathLike[str]) -> None:
    """Raise StoreFailed when a store is to begin where only the write-ahead log of another one is left.

    The log may be all that there is of acknowledged writes, and SQLite deletes one that has no database beside it.
    """
    file = os.path.realpath(path)
    # The log first: whoever creates a store meanwhile has a database before it has a log.
    if _bytes(f"{file}-wal") and not _bytes(file):
        why = f"belongs to a store that was not closed, and {file!r} is gone or empty"
        raise LeftoverLog(f"{f'{file}-wal'!r} {why}: put it back, or remove both")


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise StoreFailed when a file cannot get this name, since SQLite would replay what an old store left into it."""
    # A link of this name is replaced itself, so the logs of what it leads to do not matter.
    file = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for log in (f"{file}-wal", f"{file}-journal"):
        if _bytes(log) is not None:
            raise LeftoverLog(f"{log!r} belongs to a store that was not closed: open it once, or remove both")


def _bytes(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def driver_options() -> dict[str, Any]:
    """Return how every connection to SQLite is opened."""
    options: dict[str, Any] = {"check_same_thread": False, "isolation_level": None, "cached_statements": 256}
    if sys.version_info >= (3, 12):
        # Both newer modes begin and end transactions behind our back.
        options["autocommit"] = sqlite3.LEGACY_TRANSACTION_CONTROL
    return options


def sqlite_engine(url: sa.URL, durability: str, timeout: float) -> sa.Engine:
    """Return an engine for SQLite whose every connection is set up for the store."""
    options = driver_options()
    memory = is_memory(url)
    if not memory:
        try:
            folder = Path(url.database or "").resolve().parent
            there = folder.is_dir()
        except (OSError, RuntimeError) as error:
            raise StoreFailed(f"cannot open the store {url.database!r}: {error}") from error
        if not there:
            why = f"the folder {str(folder)!r} does not exist; create the folder first"
            if os.path.lexists(folder):
                why = f"{str(folder)!r} is not a folder"
            raise StoreFailed(f"cannot open the store {url.database!r}: {why}")
        check_orphan(url.database or "")
    if memory:
        # Otherwise each connection would open a separate database.
        engine = sa.create_engine(url, connect_args=options, poolclass=StaticPool)
    else:
        path = os.path.abspath(url.database or "")
        engine = sa.create_engine(url, creator=lambda: connect(path, **options), poolclass=NullPool)

    def prepare(connection: sqlite3.Connection, _: object) -> None:
        run = connection.execute
        # The wait comes first: switching to WAL takes a lock that another opener may hold.
        run(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
        if not memory:
            _log_ahead(connection, timeout)
        run(f"PRAGMA synchronous = {durability.upper()}")
        run("PRAGMA temp_store = MEMORY")
        run("PRAGMA cache_size = -32768")

    event.listen(engine, "connect", prepare)
    return engine


def _log_ahead(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to the write-ahead log, for which SQLite does not wait when two connections to a new file both try."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.001)


def session_settings(durability: str, timeout: float, *, read_only: bool = False) -> dict[str, str]:
    """Return what the store sets on PostgreSQL."""
    settings = {
        # 0 would mean to wait for ever.
        "lock_timeout": str(max(1, int(timeout * 1000))),
        # Every statement is served by an index. A plan that was made while a table was small and then kept would
        # otherwise scan it whole for each row, until the next ANALYZE.
        "enable_seqscan": "off",
        # A body is looked up once; to remember all of them takes a third of the time of a long path.
        "enable_memoize": "off",
        # Of a table without statistics PostgreSQL guesses, and where the guess is high it compiles the statement,
        # which takes longer than any of them runs.
        "jit": "off",
    }
    if durability == "normal":
        settings["synchronous_commit"] = "off"
    if read_only:
        settings["default_transaction_read_only"] = "on"
    return settings


class Session:
    """What the store sets on PostgreSQL: once per connection, or in every transaction behind a pooler.

    A pooler such as PgBouncer in transaction mode gives each transaction to whichever session is free. Settings must
    not stay in a session there, the driver cannot prepare statements, and nobody can listen for notifications. A pooler
    is recognized by the process that the client was told of when it connected, which is not the one that answers it.
    """

    __slots__ = ("_settings", "local", "options")

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self.options: dict[str, str] = {}
        """The settings of the URL, such as an owner or a search path, which a pooler does not pass on."""
        self.local = ""
        """The statements that make the settings of one transaction; empty as long as no pooler was met."""

    def prepare(self, connection: Any) -> None:
        """Make the settings of a new connection, unless its session is not its own."""
        own = f"WHERE pg_catalog.pg_backend_pid() = {connection.info.backend_pid}"
        if connection.execute(f"{_calls(self._settings, local=False)} {own}").fetchone() is not None:
            return
        connection.prepare_threshold = None
        self.options = _options(connection.info.options)
        # SET LOCAL takes half as long, but a list in another form than the URL has it.
        local = [_calls(self.options, local=True)] if self.options else []
        self.local = ";".join([*local, *(f"SET LOCAL {name} = {value}" for name, value in self._settings.items())])

    def run_alone(self, connection: Any, text: str, params: Sequence[Any]) -> Any:
        """Run a statement that is a transaction by itself, in one trip with its settings; returns its first row.

        To plan it takes longer than to run it. So it is prepared under a name that stands for its text: whoever meets a
        session that has it can use it, and a session without it is given it along with the first use.
        """
        import psycopg

        prepare, execute = _prepared(text, len(params))
        local = self.local.replace("%", "%%")
        # Each may go to another session. The last one needs nothing of it.
        for statement in (*(execute, f"{prepare};{execute}") * _TRIES, text):
            try:
                cursor = psycopg.ClientCursor(connection).execute(f"{local};{statement}", params)
            except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement):
                continue
            while cursor.nextset():
                pass
            return cursor.fetchone()
        raise AssertionError("the last one is not prepared")

    def run_batch(self, connection: Any, text: str, columns: Sequence[Any]) -> Any:
        """Run such a statement on columns in binary form, which no text can hold; returns its first row."""
        with connection.pipeline():
            # Up to the end of the pipeline all is one transaction.
            connection.execute(_calls(self._settings, local=True))
            cursor = connection.cursor(binary=True).execute(text, columns)
        return cursor.fetchone()


def _calls(settings: dict[str, str], *, local: bool) -> str:
    """Return the query that makes settings, for the transaction or the session."""
    values = {name: value.replace("'", "''") for name, value in settings.items()}
    calls = (f"pg_catalog.set_config('{name}', '{value}', {str(local).lower()})" for name, value in values.items())
    return f"SELECT {', '.join(calls)}"


def _options(text: str) -> dict[str, str]:
    """Return the settings among the options that libpq sends to a server."""
    return {name.replace("-", "_"): re.sub(r"\\(.)", r"\1", value) for name, value in _OPTION.findall(text)}


@functools.lru_cache(maxsize=256)
def _prepared(text: str, count: int) -> tuple[str, str]:
    """Return what prepares a statement of the driver's, and what executes it with so many parameters."""
    name = f"tape_{blake2b(text.encode(), digest_size=12).hexdigest()}"
    numbers = itertools.count(1)
    numbered = re.sub("%%|%s", lambda found: f"${next(numbers)}" if found[0] == "%s" else "%%", text)
    return f"PREPARE {name} AS {numbered}", f"EXECUTE {name}({', '.join(['%s'] * count)})"


def postgresql_engine(url: sa.URL, session: Session) -> sa.Engine:
    """Return an engine for PostgreSQL whose connections have the settings of a session."""
    try:
        from psycopg.types.numeric import Int8Dumper

        from tape.db.engine.postgres import arrays
    except ImportError as error:
        raise StoreFailed("PostgreSQL needs psycopg 3: pip install 'tape-store[postgres]'") from error
    engine = sa.create_engine(url, pool_size=16, max_overflow=48)

    def prepare(connection: Any, _: object) -> None:
        # One type for every integer: psycopg would otherwise prepare a statement anew for each mix of sizes.
        connection.adapters.register_dumper(int, Int8Dumper)
        arrays.register(connection.adapters)
        connection.autocommit = True
        session.prepare(connection)

    event.listen(engine, "connect", prepare)
    return engine


def sqlite_loses_pages(version: tuple[int, int, int] | None = None) -> bool:
    """Whether this SQLite can lose committed pages when two connections write and checkpoint at one instant.

    Fixed in 3.51.3, 3.50.7 and 3.44.6. The store avoids the fault by checkpointing only under its writer lock, which
    other programs that write the same file do not take.
    """
    version = version or sqlite3.sqlite_version_info[:3]
    fixed = {(3, 50): 7, (3, 44): 6}
    if version[:2] in fixed:
        return version[2] < fixed[version[:2]]
    return version < (3, 51, 3)
