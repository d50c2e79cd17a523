"""The store: a database of tapes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from tape.core import ids, payloads, strict
from tape.core.appending import message_intents
from tape.core.memory import BlockSpec, Slot
from tape.core.records import Report
from tape.core.tokens import Counter
from tape.db import audit
from tape.db.branching import Branching
from tape.db.connect import parse_url
from tape.db.contexts import ContextReader, Settings
from tape.db.migrate import migrate
from tape.db.record import Call, Recorder
from tape.db.transaction import Bound, Database, open_database
from tape.errors import InvalidEntry, TapeNotFound
from tape.handle import Tape

__all__ = ["Store", "open"]


def _now() -> int:
    return time.time_ns() // 1000


def open(
    url: str | os.PathLike[str] | sa.URL = "tape.db",
    *,
    owner: str | None = None,
    durability: str = "full",
    schema: str | None = None,
    timeout: float = 30.0,
    slow: float = 1.0,
    clock: Callable[[], int] | None = None,
    slots: Iterable[Slot] = (),
    blocks: Iterable[BlockSpec] = (),
    counter: Counter | None = None,
) -> Store:
    """Open a store, creating or upgrading its schema.

    ``url`` is a path, ``":memory:"``, ``sqlite:///…`` or ``postgresql+psycopg://…``. With ``owner`` the store sees
    and creates only tapes of that owner. ``durability="full"`` (the default) loses nothing that was acknowledged,
    not even when the power fails; ``"normal"`` is faster and may lose the last commits then, but never corrupts.
    ``schema`` is a PostgreSQL schema to live in. ``timeout`` bounds every wait for another writer, ``slow`` is the
    time after which a write is logged. ``clock`` returns microseconds since 1970 and is for tests. ``slots`` and
    ``blocks`` declare state and prompt blocks for all tapes of the store, ``counter`` replaces the token estimate.

    Raises SchemaTooNew for a database of a newer release, and StoreFailed when it cannot be opened.
    """
    if owner is not None:
        strict.identifier(owner, "owner")
    database = open_database(parse_url(url), schema=schema, durability=durability, timeout=timeout)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    settings = Settings({slot.name: slot for slot in slots}, list(blocks), counter)
    return Store(database, owner=owner, clock=clock or _now, slow=slow, settings=settings)


class Store:
    """A database of tapes. Threads may share one; ``close`` it, or use it in a ``with`` statement."""

    def __init__(
        self,
        database: Database,
        *,
        owner: str | None,
        clock: Callable[[], int],
        slow: float,
        settings: Settings,
        bound: bool = False,
    ) -> None:
        self._db = database
        self._owner = owner
        self._clock = clock
        self._slow = slow
        self._recorder = Recorder(database, owner=owner, clock=clock, keep_heads=not bound, slow=slow)
        self._reader = ContextReader(database, owner=owner)
        self._reader.settings = settings
        self._branching = Branching(self._recorder, self._reader)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tape.Store {self._db.engine.url!r}>"

    @property
    def owner(self) -> str | None:
        """The owner whose tapes this store sees, or None for all."""
        return self._owner

    def create(
        self,
        id: str | None = None,
        *,
        name: str | None = None,
        owner: str | None = None,
        agent: str | None = None,
        labels: Iterable[str] | None = None,
        meta: dict[str, Any] | None = None,
        messages: Iterable[dict[str, Any]] | None = None,
    ) -> Tape:
        """Create a tape, with its first messages if given, in one step. Raises TapeExists for a taken id."""
        tape_id = ids.new_id() if id is None else strict.identifier(id, "id")
        if owner is not None and self._owner is not None and owner != self._owner:
            raise InvalidEntry("owner", f"this store belongs to {self._owner!r}")
        opening = payloads.Open(
            name=None if name is None else strict.text(name, "name"),
            owner=self._owner if owner is None else strict.identifier(owner, "owner"),
            agent=None if agent is None else strict.identifier(agent, "agent"),
            labels=[strict.identifier(label, "labels") for label in strict.listed(labels or (), "labels")],
        )
        if meta is not None and not isinstance(meta, dict):
            raise InvalidEntry("meta", f"must be a dict, not {type(meta).__name__}")
        call = Call(
            tape=tape_id,
            create=opening,
            create_key=ids.new_id(),
            tape_meta=None if meta is None else strict.encode(meta, "meta"),
        )
        self._recorder.record(call, message_intents(messages or (), None))
        return Tape(self, tape_id)

    def get(self, id: str) -> Tape:
        """Return the tape with this id. Raises TapeNotFound when there is none."""
        if not self._reader.exists(strict.identifier(id, "id")):
            raise TapeNotFound(id)
        return Tape(self, id)

    def tape(self, id: str) -> Tape:
        """Return the tape with this id; it reads as empty, and is created with its first write."""
        return Tape(self, strict.identifier(id, "id"))

    def bind(self, connection: sa.Connection) -> Store:
        """Return this store on a connection of the caller's: what it writes commits or rolls back with the caller's
        own rows.

        On SQLite the caller's transaction takes the write lock with the first call. Nothing is committed here.
        """
        if not isinstance(connection, sa.Connection):
            raise InvalidEntry("connection", f"must be a SQLAlchemy Connection, not {type(connection).__name__}")
        if connection.dialect.name != self._db.engine.dialect.name:
            raise InvalidEntry("connection", f"is for {connection.dialect.name}, the store is not")
        return Store(
            Bound(connection, self._db),
            owner=self._owner,
            clock=self._clock,
            slow=self._slow,
            settings=self._reader.settings,
            bound=True,
        )

    def verify(self, id: str | None = None, *, against: Any = None) -> Report:
        """Recompute every hash, fold every tape again and compare it with the view; names what is wrong.

        With ``against`` (a receipt kept by the caller) a tape whose end was cut off or whose chain was recomputed
        is found, too.
        """
        if id is not None:
            self.get(id)
        return audit.verify(self._db, self._reader, id, against)

    def rebuild(self, id: str | None = None) -> int:
        """Make the view anew from the entries, of one tape or of all; returns how many tapes were rebuilt."""
        if id is not None:
            self.get(id)
        return audit.rebuild(self._db, self._reader, self._recorder, id)

    def close(self) -> None:
        """Give back every connection. Handles of this store fail from then on."""
        self._db.close()
