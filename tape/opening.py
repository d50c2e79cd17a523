"""Opening a store: what is declared for it is checked, and its schema made, upgraded or only looked at."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable

import sqlalchemy as sa
from msgspec import Struct

from tape.core import strict
from tape.core.memory.declaring import checked_clock, counting, declared_blocks, declared_slots
from tape.core.memory.state import BlockSpec, Slot
from tape.core.messages.tokens import Counter
from tape.db.engine.connect import is_memory, parse_url
from tape.db.engine.guests import open_database
from tape.db.engine.transaction import Database
from tape.db.feed.feed import rebase_restored
from tape.db.read.memory import Settings
from tape.db.record.writing import system_clock
from tape.db.schema.found import found_version
from tape.db.schema.migrate import migrate, require
from tape.db.schema.tables import KNOWN, REVISION
from tape.errors import InvalidEntry, StoreFailed
from tape.replica import Replica
from tape.store import Store

__all__ = ["open"]


def open(
    url: str | os.PathLike[str] | sa.URL = "tape.db",
    *,
    owner: str | None = None,
    durability: str = "full",
    schema: str | None = None,
    read_only: bool = False,
    timeout: float = 30.0,
    slow: float = 1.0,
    clock: Callable[[], int] | None = None,
    slots: Iterable[Slot] = (),
    blocks: Iterable[BlockSpec] = (),
    counter: Counter | None = None,
    read_url: str | os.PathLike[str] | sa.URL | None = None,
    shared: bool = False,
) -> Store:
    """Open a store, creating or upgrading its schema.

    ``url`` is a path, ``":memory:"``, ``sqlite:///…`` or ``postgresql+psycopg://…``. With ``owner`` the store sees
    and creates only tapes of that owner. ``durability="full"`` (the default) loses nothing that was acknowledged,
    not even when the power fails; ``"normal"`` is faster and may lose the last commits then, but never corrupts.
    ``schema`` is the PostgreSQL schema of the tables, so that several stores can share a database. ``timeout`` bounds
    every wait for another writer, ``slow`` is the time after which a write is logged. ``clock`` returns microseconds
    since 1970 and is for tests. ``slots`` and ``blocks`` declare state and prompt blocks for all tapes of the store,
    ``counter`` replaces the token estimate.

    With ``read_only`` nothing is created, upgraded or written, not even an index or a file beside the store: it works
    on a file and a folder that can only be read, for a PostgreSQL role that may only SELECT, and on a standby. Every
    write is ReadOnly. Others may write meanwhile, and what they commit is seen.

    ``read_url`` names a streaming replica of a PostgreSQL, for reads that may be a little old: see ``Store.replica``.

    With ``shared`` all stores of the process that are opened so on one database, with the same ``durability``,
    ``schema``, ``timeout`` and ``read_only``, use the same connections; the other options are each store's
    own. Each is closed by itself, as if it were alone. The connections are released with the last one: when it is
    closed, or when nobody holds it any more. The end of the program closes none. A store in memory is never shared.

    Raises SchemaTooNew for a database of a newer release, TablesTaken when another program has tables of the store's
    names, and StoreFailed when it cannot be opened. With ``read_only`` also SchemaTooOld for one of an older release,
    and NotAStore when there is none.
    """
    readable = None if read_url is None else parse_url(read_url)
    if readable is not None and {readable.get_backend_name(), parse_url(url).get_backend_name()} != {"postgresql"}:
        raise InvalidEntry("read_url", "is for PostgreSQL only: it names a streaming replica")
    how = _How(
        schema=schema,
        durability=durability,
        timeout=strict.seconds(timeout, "timeout"),
        owner=None if owner is None else strict.identifier(owner, "owner"),
        clock=checked_clock(system_clock if clock is None else clock),
        slow=strict.seconds(slow, "slow", math.inf),
        settings=Settings(declared_slots(slots), declared_blocks(blocks), counting(counter)),
        shared=strict.flag(shared, "shared"),
    )
    replica = None if readable is None else Replica(lambda: how.open(readable, read_only=True))
    return how.open(parse_url(url), read_only=strict.flag(read_only, "read_only"), replica=replica)


class _How(Struct):
    """What was said of a store and checked, for the database and for its replica."""

    schema: str | None
    durability: str
    timeout: float
    owner: str | None
    clock: Callable[[], int]
    slow: float
    settings: Settings
    shared: bool

    def open(self, url: sa.URL, *, read_only: bool, replica: Replica | None = None) -> Store:
        """Open a store, on a database that others use as well if it is to be shared."""
        if self.shared and not is_memory(url):
            from tape.sharing import join

            if url.get_backend_name() == "sqlite":
                url = url.set(database=os.path.realpath(url.database or ""))
            options = (self.schema, self.durability, self.timeout, read_only, _libpq_settings(url))
            database = join(
                f"{url.render_as_string(hide_password=False)} {options!r}",
                lambda: self._database(url, read_only=read_only),
                _is_current,
                url.database if url.get_backend_name() == "sqlite" else None,
            )
        else:
            database = self._database(url, read_only=read_only)
        return Store(
            database, owner=self.owner, clock=self.clock, slow=self.slow, settings=self.settings, replica=replica
        )

    def _database(self, url: sa.URL, *, read_only: bool) -> Database:
        """Open a database, creating or upgrading its schema unless it is only to be read."""
        database = open_database(
            url,
            schema=self.schema,
            durability=self.durability,
            timeout=self.timeout,
            read_only=read_only,
        )
        try:
            if database.read_only:
                require(database)
                database.recognize()
            else:
                migrate(database)
                database.recognize()
                rebase_restored(database)
        except BaseException:
            database.close()
            raise
        return database


def _is_current(database: Database) -> bool:
    """Whether an open database is still a store of this release, as one that is opened now would be."""
    try:
        revision = database.read(lambda tx: found_version(tx.execute, database.tables, KNOWN))
        if revision == REVISION and not database.read_only:
            rebase_restored(database)
    except StoreFailed:
        # To open it says why, if it fails there as well.
        return False
    return revision == REVISION


def _libpq_settings(url: sa.URL) -> list[tuple[str, str]]:
    """Return what decides besides a URL where PostgreSQL is, and as whom: variables such as PGHOST and PGUSER."""
    if url.get_backend_name() != "postgresql":
        return []
    return sorted((name, value) for name, value in os.environ.items() if name.startswith("PG"))
