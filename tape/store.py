"""The store: a database of tapes."""

from __future__ import annotations

import builtins
import math
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import sqlalchemy as sa

from tape import new_ids
from tape.core import strict
from tape.core.entries import payloads
from tape.core.memory.declaring import checked_clock, counting, declared_blocks, declared_slots
from tape.core.memory.state import BlockSpec, Slot
from tape.core.messages.tokens import Counter
from tape.core.plan.messages import message_intents
from tape.core.records import Entry, Health, Hit, Page, Problem, Report, Retention, Stats, TapeInfo, Transfer, micros
from tape.db.engine.connect import parse_url
from tape.db.engine.guests import Bound, Joined, check_transactional, open_database
from tape.db.engine.transaction import Database, Transaction
from tape.db.feed.feed import Feed, check_position, rebase_restored
from tape.db.read.memory import Settings
from tape.db.read.reader import Reader
from tape.db.record.recorder import Recorder
from tape.db.record.writing import Call, system_clock
from tape.db.schema.migrate import migrate
from tape.errors import InvalidEntry, TapeNotFound
from tape.handles.consumer import Consumer, check_timeout
from tape.handles.options import WriteOptions, call_of, encode_meta, list_options
from tape.handles.services import Services
from tape.handles.tape import Tape

if TYPE_CHECKING:
    from tape.db.search.search import Searcher
    from tape.db.transfer.files import File, Progress
    from tape.tools import Toolset

__all__ = ["Store", "open"]

R = TypeVar("R")


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
        owner = strict.identifier(owner, "owner")
    slow = strict.seconds(slow, "slow", math.inf)
    settings = Settings(declared_slots(slots), declared_blocks(blocks), counting(counter))
    ticking = system_clock if clock is None else checked_clock(clock)
    database = open_database(
        parse_url(url), schema=schema, durability=durability, timeout=strict.seconds(timeout, "timeout")
    )
    try:
        migrate(database)
        rebase_restored(database)
    except BaseException:
        database.close()
        raise
    return Store(database, owner=owner, clock=ticking, slow=slow, settings=settings)


@list_options
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
        shared: bool = False,
    ) -> None:
        self._db = database
        self._bound = bound
        self._shared = shared
        self._owner = owner
        self._clock = clock
        self._slow = slow
        self._recorder = Recorder(database, owner=owner, clock=clock, keep_heads=not bound, slow=slow)
        self._reader = Reader(database, owner=owner, settings=settings)
        self._feed = Feed(database, owner=owner)
        self._services = Services(database, owner, clock, self._recorder, self._reader, self._feed)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tape.Store {self._db.engine.url!r}>"

    @property
    def _searcher(self) -> Searcher:
        return self._services.searcher

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
        reuse: bool = False,
    ) -> Tape:
        """Create a tape, with its first messages if given, in one step. Raises TapeExists for a taken id.

        The id of a purged tape is taken, too, unless ``reuse`` says that another tape may have it.
        """
        tape_id = new_ids.new_id() if id is None else strict.identifier(id, "id")
        if owner is not None and self._owner is not None and owner != self._owner:
            raise InvalidEntry("owner", f"this store belongs to {self._owner!r}")
        opening = payloads.Open(
            name=None if name is None else strict.text(name, "name"),
            owner=self._owner if owner is None else strict.identifier(owner, "owner"),
            agent=None if agent is None else strict.identifier(agent, "agent"),
            labels=strict.distinct(() if labels is None else labels, "labels"),
        )
        call = Call(
            tape=tape_id,
            create=opening,
            create_key=new_ids.new_id(),
            tape_meta=None if meta is None else encode_meta(meta),
            reuse=strict.flag(reuse, "reuse"),
        )
        self._recorder.record(call, message_intents(() if messages is None else messages, None, new_ids.new_id))
        return Tape(self._services, tape_id)

    def get(self, id: str) -> Tape:
        """Return the tape with this id. Raises TapeNotFound when there is none."""
        id = strict.identifier(id, "id")
        if not self._reader.exists(id):
            raise TapeNotFound(id)
        return Tape(self._services, id)

    def list(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        label: str | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: str = "created",
    ) -> Page[TapeInfo]:
        """Return the tapes that meet every filter, newest first, a page at a time.

        Pass a page's ``cursor`` for the next one. In the order of creation no tape that was there when the first
        page was read is left out or given twice, whatever is written meanwhile. ``order="updated"`` gives the most
        recently changed first; there each page is true for itself, and a tape written to in between moves to the front.
        """
        filters = {
            "owner": owner,
            "agent": agent,
            "status": status,
            "parent": parent,
            "label": label,
            "updated_before": updated_before,
            "updated_after": updated_after,
        }
        for name in ("owner", "agent", "status", "parent", "label"):
            if filters[name] is not None:
                filters[name] = strict.identifier(filters[name], name)
        self._services.log_administrative("list", owner=owner)
        return self._services.catalog.page(filters, limit, cursor, order)

    def tape(self, id: str) -> Tape:
        """Return the tape with this id; it reads as empty, and is created with its first write."""
        return Tape(self._services, strict.identifier(id, "id"))

    def bind(self, connection: sa.Connection) -> Store:
        """Return this store on a connection of the caller's: what it writes commits or rolls back with the caller's
        own rows.

        Nothing is committed here, so that a connection in AUTOCOMMIT is refused. On SQLite the caller's transaction
        takes the write lock with the first call, and waits for it as long as the store would; on PostgreSQL the
        ``lock_timeout`` of the connection holds.
        """
        if not isinstance(connection, sa.Connection):
            raise InvalidEntry("connection", f"must be a SQLAlchemy Connection, not {type(connection).__name__}")
        if connection.dialect.name != self._db.engine.dialect.name:
            raise InvalidEntry("connection", f"is for {connection.dialect.name}, the store is not")
        check_transactional(connection)
        return self._like_this(Bound(connection, self._db), bound=True)

    def search(
        self,
        query: str,
        *,
        tape: str | None = None,
        owner: str | None = None,
        limit: int = 20,
        kind: str | None = None,
        role: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> builtins.list[Hit]:
        """Find the messages that have all words of ``query``, newest first, on one tape, of an owner, or anywhere.

        Any string is a query: ``"quoted words"`` must stand together, a trailing ``*`` finds all that begins so, and
        everything else that is no letter or digit is ignored. Retracted and superseded text is never found. Without
        ``tape`` a text is found on the tape that wrote it; with it, a fork is searched with all that it inherits.
        ``kind`` is "append" for messages as they were written or "revise" for revised ones; ``since`` and ``until``
        are moments.
        """
        if tape is None:
            self._services.log_administrative("search", owner=owner)
        return self._searcher.search(
            query,
            tape=None if tape is None else strict.identifier(tape, "tape"),
            owner=owner,
            limit=strict.limit(limit),
            kind=kind,
            role=role,
            since=since,
            until=until,
        )

    def feed(self, after: int = 0, *, limit: int | None = None) -> Iterator[Entry]:
        """Yield the entries of all tapes behind a position, in the order in which they became final.

        None is ever skipped: what commits later comes later, and the entries of a tape come in order. ``position`` of
        the last entry read is where to go on; it is opaque, and 0 is the start.
        """
        most, place = strict.most(limit), check_position(after, "after", postgres=self._db.postgres)
        self._services.log_administrative("feed")
        return self._feed.entries(place, most)

    def follow(self, after: int = 0, *, timeout: float | None = None) -> Iterator[Entry]:
        """Yield the entries of all tapes behind a position and wait for more, from whichever process.

        Ends when none came for ``timeout`` seconds, or with the store.
        """
        place, most = check_position(after, "after", postgres=self._db.postgres), check_timeout(timeout)
        self._services.log_administrative("follow")
        return self._feed.follow(place, most)

    def consumer(self, name: str) -> Consumer:
        """Return the reader of the feed with this name, which goes on behind the position it last committed."""
        name = strict.identifier(name, "name")
        self._services.log_administrative("consumer", name=name)
        return Consumer(self._services, name)

    def verify(self, id: str | None = None, *, against: Any = None, progress: Progress | None = None) -> Report:
        """Recompute every hash, fold every tape again and compare it with the view; names what is wrong.

        Without ``id`` it also names rows that belong to no tape, wrong tombstones and wrong words in the search index.
        With ``against`` (a receipt kept by the caller) a tape whose end was cut off, whose chain was recomputed, or
        that is gone without having been purged is found, too. ``progress`` is called with the entries done and the
        entries in all.
        """
        from tape.db.maintain.verify import check_receipt, verify

        strict.callback(progress, "progress")
        if id is not None:
            return self.tape(id)._verify(against, progress)
        self._services.log_administrative("verify")
        if against is not None:
            check_receipt(against, None)
        return verify(self._db, self._owner, None, against, self._clock(), progress)

    def rebuild(
        self,
        id: str | None = None,
        *,
        progress: Progress | None = None,
        skipped: Callable[[Problem], object] | None = None,
    ) -> int:
        """Make the view anew from the entries, of one tape or of all; returns how many tapes were rebuilt.

        With all tapes the search index is made anew as well, unless the store has an owner: it is one for all
        owners. Of all tapes, one whose entries cannot be read keeps its view and is not counted; ``verify`` names it,
        and ``skipped`` is called with the problem. ``progress`` is called as in ``verify``.
        """
        from tape.db.maintain.rebuild import rebuild

        strict.callback(progress, "progress")
        strict.callback(skipped, "skipped")
        if id is not None:
            id = self.get(id).id
        elif self._owner is None:
            self._services.log_administrative("rebuild")
            self._searcher.rebuild()
        return rebuild(self._db, self._owner, self._recorder, id, progress, skipped)

    def split(self, id: str, *, summary: str, name: str | None = None, **options: Unpack[WriteOptions]) -> Tape:
        """End a tape and return the next one, which begins with a handoff that holds ``summary``; one transaction.

        The next tape has the old one's name (or ``name``), owner, agent, labels, blocks and state. The old one stays
        readable: its ``info().redirect`` names the next, and writing to it is TapeClosed with that ``redirect``.
        With the key of an earlier call the tape that it made comes back.
        """
        from tape.db.forks.split import split

        call = call_of(strict.identifier(id, "id"), **options)
        successor = split(
            self._recorder,
            call,
            call.key,
            strict.text(summary, "summary"),
            None if name is None else strict.text(name, "name"),
        )
        return Tape(self._services, successor)

    def purge(self, id: str, *, forks: bool = False) -> Retention:
        """Remove a tape for good; with ``forks``, its forks and theirs as well. Returns what went.

        It vanishes at once, its rows go in batches; a call that was interrupted in between is finished by the next
        one. What stays is a tombstone: id, last seq and hash. The id is refused afterwards. Raises TapeInUse while
        another tape inherits from it or links to it.
        """
        return self._services.purging.purge(strict.identifier(id, "id"), forks=strict.flag(forks, "forks"))

    def retain(self, *, older_than: timedelta | datetime, status: str | None = None, dry_run: bool = True) -> Retention:
        """Purge tapes that were last written before a moment or longer ago than a time; by default only tells which.

        A tape that has a younger fork stays, as does one that a younger tape links to; ``kept`` tells why. Each
        family is purged by itself, so an interrupted run is simply run again.
        """
        strict.flag(dry_run, "dry_run")
        if status is not None:
            status = strict.identifier(status, "status")
        if isinstance(older_than, timedelta):
            if older_than < timedelta():
                # Meant the other way round it would purge everything.
                raise InvalidEntry("older_than", "must not be negative")
            limit = self._clock() - older_than // timedelta(microseconds=1)
            if limit < -strict.MAX_INT:
                raise InvalidEntry("older_than", f"reaches back further than time is told, by {older_than}")
        elif isinstance(older_than, datetime) and older_than.tzinfo is not None:
            limit = micros(older_than)
        else:
            raise InvalidEntry("older_than", "must be a timedelta or a datetime with a time zone")
        self._services.log_administrative("retain")
        return self._services.purging.retain(limit, status, dry_run=dry_run)

    def export(self, id: str, file: File, *, family: bool = False, progress: Progress | None = None) -> Transfer:
        """Write a tape to a file of JSON lines, with its ancestors up to the fork points, or with its whole ``family``.

        ``file`` is a path or a binary file. A named file appears when it is whole. Raises Corrupt rather than
        export what does not verify. ``progress`` is called with the entries done and the entries in all.
        """
        strict.callback(progress, "progress")
        id = strict.identifier(id, "id")
        self._services.log_administrative("export", tape=id)
        return self._services.exporter.export(id, file, family=strict.flag(family, "family"), progress=progress)

    def import_(self, file: File, *, progress: Progress | None = None, reuse: bool = False) -> Transfer:
        """Take in an exported file: all of it, or nothing.

        The whole file is checked first, and every reference in it. What is stored already is left as it is, so that
        importing twice changes nothing; a file that goes on where a stored tape ends extends it. Anything else is
        ImportFailed with the number of the line. ``progress`` is called with the bytes done and the bytes in all, over
        both readings of the file.
        """
        strict.callback(progress, "progress")
        return self._services.importer.import_(file, progress, reuse=strict.flag(reuse, "reuse"))

    def backup(self, file: str | os.PathLike[str]) -> None:
        """Copy a live SQLite store to a file, while others read and write it.

        On PostgreSQL use ``pg_dump``. A store of one owner cannot copy those of all.
        """
        if self._owner is not None:
            raise InvalidEntry("owner", "a backup holds every owner's tapes; open the store without an owner")
        self._services.log_administrative("backup")
        self._db.backup(file)

    def health(self, id: str | None = None) -> Health:
        """Tell whether the database answers, its schema, and up to where a tape was last verified.

        With ``id`` it is that tape's last check and head, otherwise the newest check of any. Scans nothing. A
        database that cannot be reached is reported as ``ok=False``, not raised.
        """
        return self._services.catalog.health(None if id is None else strict.identifier(id, "id"))

    def stats(self) -> Stats:
        """Count the tapes, entries, messages and bytes; reads the size of every entry, so it takes its time."""
        self._services.log_administrative("stats")
        return self._services.catalog.stats()

    def tools(self) -> Toolset:
        """Return the tools that let a model search all tapes that this store sees: of one owner, if it has one."""
        from tape.tools import store_tools

        return store_tools(self.search)

    def scoped(self, owner: str) -> Store:
        """Return this store for one owner: every other owner's tape looks like one that is not there.

        It uses the connections of this store, which are given back when this store is closed. A store that has an
        owner already can only be scoped to the same one.
        """
        owner = strict.identifier(owner, "owner")
        if self._owner is not None and owner != self._owner:
            raise InvalidEntry("owner", f"this store belongs to {self._owner!r}")
        return self._like_this(self._db, owner=owner, bound=self._bound, shared=True)

    def _like_this(
        self, database: Database, *, owner: str | None = None, bound: bool = False, shared: bool = False
    ) -> Store:
        """Return a store with the settings of this one on another database object, or for one owner."""
        return Store(
            database,
            owner=owner or self._owner,
            clock=self._clock,
            slow=self._slow,
            settings=self._reader.settings,
            bound=bound,
            shared=shared,
        )

    def _together(self, tape: str, work: Callable[[Store], R]) -> R:
        """Run ``work`` with this store in one transaction of its own, on as many tapes as it likes: all or nothing.

        Every entry that ``work`` writes must have a key: if the reply to the commit is lost it runs once more, and
        the keys tell what was recorded. Other writers wait meanwhile: all of them on SQLite, on PostgreSQL those of
        the same tapes.
        """

        def attempt(transaction: Transaction) -> R:
            transaction.lock(tape)
            return work(self._like_this(Joined(transaction, self._db)))

        result = self._db.repeat(tape, attempt)
        self._recorder.forget(tape)
        return result

    def close(self) -> None:
        """Give back every connection. Handles of this store fail from then on.

        A store made by ``scoped`` has no connections of its own, so that closing it does nothing.
        """
        if not self._shared:
            self._db.close()
