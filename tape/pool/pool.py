"""A pool: owners over several databases, and calls that go over all of them."""

from __future__ import annotations

import builtins
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa

from tape.core import strict
from tape.core.places import RECORDS, Away, locate
from tape.core.records import Finding, Health, Hit, Report, Stats, TapeInfo
from tape.db.engine.process_fork import RenewedLock
from tape.db.read.catalog import MOST_AT_ONCE, Listed, check_listing
from tape.errors import DatabaseDown, InvalidEntry, OwnerMoved, StoreFailed
from tape.handles.consumer import check_timeout
from tape.handles.options import called, list_filters
from tape.opening import open as open_store
from tape.pool.cursors import ListCursor, Positions, decode_cursor
from tape.pool.following import FeedReader, PoolFeed
from tape.pool.listing import Across, all_pages, ask_each, merge_hits, merge_pages
from tape.pool.moving import Move, Mover
from tape.pool.records import Absences, absences, away_from, counts, record_of
from tape.store import Store

__all__ = ["PAUSES", "Address", "Place", "Pool", "open_pool"]

R = TypeVar("R")

Address = str | os.PathLike[str] | sa.URL | Mapping[str, Any]
"""How to open one database of a pool: what ``tape.open`` takes as its URL, or all of its arguments by name."""
Place = Mapping[str, str] | Callable[[str], str]
"""Which database an owner's tapes are in, by name."""

_KNOWN_TAPES = 10_000
PAUSES = (0.002, 0.1)
"""Seconds before a call is tried again while its owner is moved: at first, and at most."""


class Pool:
    """Several databases of tapes as one. Threads may share a pool; ``close`` it, or use it in a ``with`` statement.

    Made by ``tape.open_pool``. A database that cannot be reached is named, and the others serve.
    """

    def __init__(self, addresses: Mapping[str, Address], place: Place, recheck: float, options: dict[str, Any]) -> None:
        self._addresses = dict(addresses)
        self._place = place
        self._recheck = recheck
        self._options = options
        self._stores: dict[str, Store] = {}
        self._opening = {name: RenewedLock() for name in addresses}
        self._places: dict[str, tuple[str, float]] = {}
        self._owners: dict[tuple[str, str], str | None] = {}
        self._readers: weakref.WeakSet[FeedReader] = weakref.WeakSet()
        self._closed = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tape.Pool {', '.join(self._addresses)}>"

    @property
    def names(self) -> builtins.list[str]:
        """The names of the databases."""
        return [*self._addresses]

    def database(self, name: str) -> Store:
        """Return the store of one database, for all owners: for administration, and for tapes without an owner.

        Raises DatabaseDown when it cannot be opened.
        """
        # Without kept heads: each write reads the tape, and with it whether its owner was moved.
        return self._store(name)._like_this(self._store(name)._db, bound=True, shared=True, fenced=True)

    def scoped(self, owner: str) -> Store:
        """Return a store for one owner, on the database that has the owner's tapes.

        Take one for each piece of work rather than for good: once the owner is moved, writes of an older one are
        OwnerMoved, and its reads show what was there before. Where the owner is, is asked at most every ``recheck``
        seconds. Raises DatabaseDown when that database cannot be reached.
        """
        owner = strict.identifier(owner, "owner")
        store = self._store(self._known_place(owner))
        return store._like_this(store._db, owner=owner, shared=True, fenced=True)

    def write(self, owner: str, fn: Callable[[Store], R], *, timeout: float = 30.0) -> R:
        """Run ``fn`` with the owner's store; while the owner is moved it waits and runs it again where the tapes are.

        Give writes a ``key``, so that what a first run has written is found and not written twice. After ``timeout``
        seconds the OwnerMoved of the last run is raised.
        """
        until = time.monotonic() + strict.seconds(timeout, "timeout")
        pause = PAUSES[0]
        while True:
            try:
                return called(fn, self.scoped(owner))
            except OwnerMoved as error:
                self._forget(error.owner)
                left = until - time.monotonic()
                if left <= 0:
                    raise
                time.sleep(min(pause, left))
                pause = min(2 * pause, PAUSES[1])

    def locate(self, owner: str) -> str:
        """Ask which database has an owner's tapes, and return its name."""
        owner = strict.identifier(owner, "owner")
        place = locate(self._home(owner), lambda name: self._away(name, owner))
        self._places[owner] = place, time.monotonic() + self._recheck
        return place

    def list(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        label: str | None = None,
        name: str | None = None,
        prefix: str | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: str = "created",
        hidden: bool = False,
    ) -> Across[TapeInfo]:
        """Return the tapes of all databases that meet every filter, a page at a time; see ``Store.list``.

        Each database keeps its order, and between them the newer tape comes first. What a database that is down has
        comes with later pages, once it is back. A tape that is moved between two pages may be missed or come twice.
        """
        filters = list_filters(owner, agent, status, parent, label, name, prefix, updated_before, updated_after)
        strict.flag(hidden, "hidden")
        known, _ = self._absences()
        names = self.names if owner is None else [self._known_place(owner)]
        at: dict[str, str | None] = dict.fromkeys(names, "")
        if cursor is not None:
            before = decode_cursor(cursor, ListCursor, "cursor")
            if before.order != order:
                raise InvalidEntry("cursor", f"belongs to a list with order {before.order!r}, not {order!r}")
            at = {name: before.at.get(name, "") for name in names}

        def read(name: str, cursor: str | None, size: int) -> tuple[builtins.list[Listed], bool]:
            return self._store(name)._services.catalog.listed(filters, size, cursor, order, hidden=hidden)

        def is_listed(name: str, info: TapeInfo) -> bool:
            return not info.id.startswith(RECORDS) and counts(known, name, info.owner)

        return merge_pages(read, at, order, strict.limit(limit), is_listed)

    def tapes(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        label: str | None = None,
        name: str | None = None,
        prefix: str | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        order: str = "created",
        hidden: bool = False,
    ) -> Iterator[TapeInfo]:
        """Yield the tapes of all databases that meet every filter; see ``list`` and ``Store.tapes``.

        Raises DatabaseDown once only tapes of a database that is down are left: what was yielded is not all.
        """
        filters = list_filters(owner, agent, status, parent, label, name, prefix, updated_before, updated_after)
        check_listing(filters, order)
        strict.flag(hidden, "hidden")
        wanted: dict[str, Any] = {"owner": owner, "agent": agent, "status": status, "parent": parent, "label": label}
        wanted |= {"name": name, "prefix": prefix, "updated_before": updated_before, "updated_after": updated_after}
        return all_pages(partial(self.list, **wanted, limit=MOST_AT_ONCE, order=order, hidden=hidden))

    def search(
        self,
        query: str,
        *,
        owner: str | None = None,
        limit: int = 20,
        kind: str | None = None,
        role: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Across[Hit]:
        """Find messages in all databases, newest first, or in that of one owner; see ``Store.search``."""
        known, _ = self._absences()

        def search(name: str, size: int) -> builtins.list[Hit]:
            return self._store(name).search(
                query, owner=owner, limit=size, kind=kind, role=role, since=since, until=until
            )

        def is_counted(name: str, hit: Hit) -> bool:
            return not known[name] or counts(known, name, self._owner_of(name, hit.tape))

        names = self.names if owner is None else [self._known_place(owner)]
        return merge_hits(search, names, strict.limit(limit), is_counted)

    def feed(self, cursor: str | None = None) -> PoolFeed:
        """Return the entries of all databases behind a cursor, each once and those of a tape in order.

        There is no order between databases, but for a tape that was moved: its entries come in order, too. The
        ``cursor`` of what is returned is where to go on; None is the start.
        """
        return PoolFeed(self._reader(cursor, None), wait=False, stores=self._open_stores)

    def follow(self, cursor: str | None = None, *, timeout: float | None = None) -> PoolFeed:
        """Return the entries of all databases behind a cursor, and wait for more; see ``feed``.

        Ends when none came for ``timeout`` seconds, or with the pool.
        """
        return PoolFeed(self._reader(cursor, check_timeout(timeout)), wait=True, stores=self._open_stores)

    def health(self) -> dict[str, Health | DatabaseDown]:
        """Tell of each database whether it answers; one that was never reached is a DatabaseDown."""
        return self._of_each(lambda store: store.health())

    def stats(self) -> dict[str, Stats | DatabaseDown]:
        """Count what each database holds. Tapes that were moved count in both, as their rows do."""
        return self._of_each(lambda store: store.stats())

    def verify(self) -> dict[str, Report | DatabaseDown]:
        """Verify every database; see ``Store.verify``."""
        return self._of_each(lambda store: store.verify())

    def doctor(self, *, quick: bool = False) -> dict[str, builtins.list[Finding] | DatabaseDown]:
        """Examine every database; see ``Store.doctor``."""
        return self._of_each(lambda store: store.doctor(quick=strict.flag(quick, "quick")))

    def move(self, owner: str, to: str, *, verify: bool = True) -> Move:
        """Move all tapes of an owner to another database while they are read and written.

        Only its last step keeps writers out: their calls are OwnerMoved, and ``write`` waits for it. If a move fails,
        the owner stays where it was; if its process dies, run it again, or ``cancel_move``. Everybody who writes tapes
        of the owner must do so through a pool. The source keeps its rows, which nobody is shown.
        """
        owner, to = strict.identifier(owner, "owner"), strict.one_of(to, self.names, "to")
        source = self.locate(owner)
        if source == to:
            return Move(owner=owner, source=to, target=to, tapes=[], entries=0, seconds=0.0, closed_seconds=0.0)
        mover = Mover(owner, (source, self._unfenced(source)), (to, self._unfenced(to)))
        try:
            return mover.run(verify=strict.flag(verify, "verify"))
        finally:
            self._forget(owner)

    def cancel_move(self, owner: str) -> str:
        """Let an owner whose move was interrupted be written where it was; returns the name of that database.

        Only when no process is moving the owner.
        """
        owner = strict.identifier(owner, "owner")
        source = self.locate(owner)
        if self._away(source, owner) is not None:
            record_of(self._unfenced(source), owner).reopen()
        return source

    def close(self) -> None:
        """Close every database. Stores and feeds of this pool fail or end from then on."""
        self._closed = True
        self._end_feeds()
        for name, opening in self._opening.items():
            # Whoever is opening it ends first, and nobody opens it afterwards.
            with opening:
                if name in self._stores:
                    self._stores[name].close()

    # -- databases

    def _store(self, name: str) -> Store:
        """Return the store of a database, which is opened when it is first needed."""
        store = self._stores.get(name)
        if store is None:
            if name not in self._addresses:
                raise InvalidEntry("database", f"must be one of {', '.join(self._addresses)}, not {strict.shown(name)}")
            with self._opening[name]:
                if self._closed:
                    raise StoreFailed("the pool is closed")
                store = self._stores.get(name)
                if store is None:
                    store = self._stores[name] = self._opened(name)
        return store

    def _opened(self, name: str) -> Store:
        address = self._addresses[name]
        own = dict(address) if isinstance(address, Mapping) else {"url": address}
        try:
            return open_store(**{**self._options, **own})
        except StoreFailed as error:
            raise DatabaseDown(name, str(error)) from error

    def _unfenced(self, name: str) -> Store:
        """Return the store by which owners are moved: records do not refuse it, and it keeps no heads."""
        store = self._store(name)
        return store._like_this(store._db, bound=True, shared=True, fenced=False)

    def _open_stores(self) -> builtins.list[Store]:
        return list(self._stores.values())

    def _of_each(self, ask: Callable[[Store], R]) -> dict[str, R | DatabaseDown]:
        answers, down = ask_each(self.names, lambda name: ask(self._store(name)))
        both: dict[str, R | DatabaseDown] = {**answers, **down}
        return {name: both[name] for name in self.names}

    def _reader(self, cursor: str | None, timeout: float | None) -> FeedReader:
        positions = {} if cursor is None else decode_cursor(cursor, Positions, "cursor").numbers()
        reader = FeedReader(self._store, self.names, positions, timeout)
        reader.closed = self._closed
        self._readers.add(reader)
        return reader

    def _end_feeds(self) -> None:
        """Let every feed of the pool end at its next look."""
        for reader in list(self._readers):
            reader.closed = True

    # -- owners

    def _home(self, owner: str) -> str:
        """Return where the caller's map has an owner."""
        try:
            name = self._place(owner) if callable(self._place) else self._place[owner]
        except LookupError as error:
            raise InvalidEntry("owner", f"{owner!r} has no database in this pool; add it to place") from error
        if name not in self._addresses:
            known = ", ".join(self._addresses)
            raise InvalidEntry("place", f"names {strict.shown(name)} for owner {owner!r}; must be one of {known}")
        return name

    def _known_place(self, owner: str) -> str:
        place = self._places.get(owner)
        if place is not None and time.monotonic() < place[1]:
            return place[0]
        try:
            return self.locate(owner)
        except StoreFailed:
            if place is None:
                raise
            # The database that the map names is down, but it was known before that the tapes are elsewhere.
            return place[0]

    def _forget(self, owner: str) -> None:
        """Ask again where an owner is, when it is next needed."""
        self._places.pop(owner, None)

    def _away(self, name: str, owner: str) -> Away | None:
        try:
            return away_from(self._store(name), owner)
        except DatabaseDown:
            raise
        except StoreFailed as error:
            raise DatabaseDown(name, str(error)) from error

    def _absences(self) -> tuple[dict[str, Absences], dict[str, DatabaseDown]]:
        """Return the owners that are not in each database; none for one that is down."""
        known, down = ask_each(self.names, lambda name: absences(self._store(name)))
        return {name: known.get(name, {}) for name in self.names}, down

    def _owner_of(self, name: str, tape: str) -> str | None:
        """Return the owner of a tape, which never changes."""
        if (name, tape) not in self._owners:
            if len(self._owners) >= _KNOWN_TAPES:
                self._owners.clear()
            self._owners[name, tape] = self._store(name).tape(tape).info().owner
        return self._owners[name, tape]


def open_pool(databases: Mapping[str, Address], *, place: Place, recheck: float = 1.0, **options: Any) -> Pool:
    """Open several databases as one: each owner's tapes are in one of them.

    ``databases`` gives each a name for good, which cursors and records hold, and a URL, or the arguments of
    ``tape.open`` by name. ``place`` says where an owner's tapes are: a map, or a function from owner to name. An owner
    that was moved is found where it is, whatever ``place`` says. ``options`` go to ``tape.open`` for every database.
    A database is opened when it is first needed, so that one which is down keeps nobody from opening the pool.
    """
    if not isinstance(databases, Mapping) or not databases:
        raise InvalidEntry("databases", "must be a map from names to databases, with at least one name")
    if "owner" in options or "url" in options:
        raise InvalidEntry("options", "must not contain owner or url; use scoped() and databases")
    addresses = {strict.identifier(name, "databases"): address for name, address in databases.items()}
    if not (callable(place) or isinstance(place, Mapping)):
        raise InvalidEntry("place", "must be a map or a function from owner to the name of a database")
    return Pool(addresses, place, strict.seconds(recheck, "recheck"), options)
