"""The store: a database of tapes."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import sqlalchemy as sa

from tape import new_ids
from tape.core import strict
from tape.core.entries import payloads
from tape.core.messages.objects import MessageLike
from tape.core.meta import encode as encode_meta
from tape.core.plan.messages import message_intents
from tape.core.records import Entry, Finding, Hit, Page, TapeInfo
from tape.db.engine.guests import Bound, check_transactional
from tape.db.engine.transacting import Transacting
from tape.db.engine.transaction import Database
from tape.db.feed.feed import Feed, check_position
from tape.db.read.memory import Settings
from tape.db.read.reader import Reader
from tape.db.record.recorder import Recorder
from tape.db.record.transactions import run_transaction
from tape.db.record.writing import Call
from tape.errors import InvalidEntry
from tape.handles.consumer import Consumer, check_timeout
from tape.handles.journal.requests import RequestLister
from tape.handles.messages import say_beside
from tape.handles.options import WriteOptions, call_of, called, list_filters, public_as
from tape.handles.services import Services
from tape.handles.snapshot import Snapshot
from tape.handles.tape import Tape, difference, difference_by_content, family
from tape.handles.upkeep import Upkeep
from tape.replica import Replica, Written, wait_for

if TYPE_CHECKING:
    from tape.core.memory.prices import Prices, UsageRow
    from tape.core.merge.diff import Diff
    from tape.core.records import Message
    from tape.db.search.search import Searcher
    from tape.db.transfer.files import Progress
    from tape.tools import Toolset

__all__ = ["Store"]

R = TypeVar("R")


@public_as("Store")
class Store(Upkeep, RequestLister):
    """A database of tapes. Threads may share one; ``close`` it, or use it in a ``with`` statement."""

    def __init__(
        self,
        database: Database,
        *,
        owner: str | None,
        clock: Callable[[], int],
        slow: float,
        settings: Settings,
        new_id: Callable[[], str] | None = None,
        bound: bool = False,
        shared: bool = False,
        fenced: bool = False,
        replica: Replica | None = None,
    ) -> None:
        self._db = database
        self._replica = replica
        self._bound = bound
        self._shared = shared
        self._owner = owner
        self._clock = clock
        self._slow = slow
        self._fenced = fenced
        self._recorder = Recorder(
            database,
            owner=owner,
            clock=clock,
            keep_heads=not bound,
            slow=slow,
            new_id=new_id or new_ids.new_id,
            fenced=fenced,
        )
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

    @property
    def read_only(self) -> bool:
        """Whether the store was opened read-only. Then every write raises ReadOnly."""
        return self._db.read_only

    def create(
        self,
        id: str | None = None,
        *,
        name: str | None = None,
        owner: str | None = None,
        agent: str | None = None,
        labels: Iterable[str] | None = None,
        meta: dict[str, Any] | None = None,
        messages: Iterable[MessageLike] | None = None,
        ids: Iterable[str | None] | None = None,
        metas: Iterable[dict[str, Any] | None] | None = None,
        reuse: bool = False,
        exists_ok: bool = False,
        key: str | None = None,
    ) -> Tape:
        """Create a tape, with its first messages if given, in one transaction. Raises TapeExists for a taken id.

        ``ids`` and ``metas`` belong to the messages, as in ``Tape.extend``; ``meta`` is the tape's own. The id of a
        purged tape is taken, too, unless ``reuse`` allows another tape to have it. With the ``id`` and ``key`` of an
        earlier call, the tape of that call is returned; with other content it is a ProvenanceConflict.

        With ``exists_ok`` the tape that has the id is returned, whoever created it and when. Then nothing is written:
        neither the messages nor any other fact that was given. A hidden tape is TapeExists all the same, and so is
        that of another owner than ``owner``.
        """
        tape_id = self._services.new_id() if id is None else strict.identifier(id, "id")
        if owner is not None and self._owner is not None and owner != self._owner:
            raise InvalidEntry("owner", f"this store belongs to {self._owner!r}")
        opening = payloads.Open(
            name=None if name is None else strict.text(name, "name"),
            owner=self._owner if owner is None else strict.identifier(owner, "owner"),
            agent=None if agent is None else strict.identifier(agent, "agent"),
            labels=strict.distinct(() if labels is None else labels, "labels"),
        )
        if key is not None:
            key = strict.identifier(key, "key")
        call = Call(
            tape=tape_id,
            key=key,
            batch=key,
            create=opening,
            create_key=key or self._services.new_id(),
            tape_meta=encode_meta(meta),
            reuse=strict.flag(reuse, "reuse"),
            exists_ok=strict.flag(exists_ok, "exists_ok"),
        )
        first = () if messages is None else messages
        intents = message_intents(first, key, self._services.new_id, message_ids=ids)
        say_beside(intents, None, metas)
        # A look first: most are there, and to read waits for no other writer. Whether it is there is decided below.
        if not (exists_ok and id is not None and self._reader.exists(tape_id, opening.owner)):
            self._recorder.record(call, intents)
        return Tape(self._services, tape_id)

    def get(self, id: str) -> Tape:
        """Return the tape with this id. Raises TapeNotFound when there is none, TapeHidden (one of those) if hidden."""
        id = strict.identifier(id, "id")
        self._reader.check_exists(id)
        return Tape(self._services, id)

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
    ) -> Page[TapeInfo]:
        """Return the tapes that match every filter, newest first, a page at a time.

        Pass a page's ``cursor`` for the next one. In the order of creation, no tape that existed when the first page
        was read is missing or repeated, whatever is written meanwhile. ``order="updated"`` gives the most recently
        changed first. There each page is consistent by itself, and a tape written to in between moves to the front.
        ``prefix`` is the beginning of the id. ``hidden=True`` lists the hidden tapes, and no others.
        """
        filters = list_filters(owner, agent, status, parent, label, name, prefix, updated_before, updated_after)
        self._services.log_administrative("list", owner=owner)
        return self._services.catalog.page(filters, limit, cursor, order, hidden=strict.flag(hidden, "hidden"))

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
        """Yield all tapes that ``list`` gives for these filters, page after page.

        Each page is read when it is reached, so that a long iteration keeps no transaction open. What ``list`` says of
        tapes that are written between two pages holds here, too.
        """
        filters = list_filters(owner, agent, status, parent, label, name, prefix, updated_before, updated_after)
        tapes = self._services.catalog.tapes(filters, order, hidden=strict.flag(hidden, "hidden"))
        self._services.log_administrative("tapes", owner=owner)
        return tapes

    def tape(self, id: str) -> Tape:
        """Return the tape with this id; it reads as empty, and is created with its first write."""
        return Tape(self._services, strict.identifier(id, "id"))

    def bind(self, connection: sa.Connection) -> Store:
        """Return this store on a connection of the caller. Its writes commit or roll back with the caller's own rows.

        Nothing is committed here, so a connection in AUTOCOMMIT is refused. On SQLite the caller's transaction takes
        the write lock with the first call, and waits for it as long as the store would. On PostgreSQL the
        ``lock_timeout`` of the connection applies.
        """
        self._db.outside("bind")
        if not isinstance(connection, sa.Connection):
            raise InvalidEntry("connection", f"must be a SQLAlchemy Connection, not {type(connection).__name__}")
        if connection.dialect.name != self._db.engine.dialect.name:
            raise InvalidEntry(
                "connection", f"is for {connection.dialect.name}, but the store uses {self._db.engine.dialect.name}"
            )
        check_transactional(connection)
        return self._like_this(Bound(connection, self._db), bound=True)

    def transaction(self, fn: Callable[[Store], R]) -> R:
        """Run ``fn`` with this store in one transaction, and return what it returns.

        Its writes, on any number of tapes, are committed together, or rolled back when ``fn`` raises. ``fn`` gets a
        store, and must read and write with that one only, in this thread and until it returns. It sees its own writes.
        A tape that it reads or writes is locked until the commit, so that nobody changes what it has read. On SQLite
        all other writers wait. After a deadlock ``fn`` is run again from its beginning, with the same generated ids,
        so it should have no other side effects. Inside another transaction, or on a bound store, it is a savepoint.
        On a store that was opened to be read only it reads one state, locks nothing, and a write in it is ReadOnly; on
        one that is bound as well it reads what the caller's transaction reads.
        """
        database = self._db
        if isinstance(database, Transacting):
            return database.nested(lambda: called(fn, self))
        ids = new_ids.FixedIds()

        def run(transacting: Transacting) -> R:
            ids.rewind()
            return called(fn, self._like_this(transacting, new_id=ids, shared=True))

        return run_transaction(self._recorder, run)

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

        Any string is a query: ``"quoted words"`` must be adjacent, a trailing ``*`` matches a prefix, and everything
        else that is no letter or digit is ignored. Retracted and superseded text is never found. Without ``tape`` a
        text is found on the tape that wrote it; with it, a fork is searched with all that it inherits. ``kind`` is
        "append" for messages as they were written or "revise" for revised ones; ``since`` and ``until`` are moments.
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

    def messages_by_id(self, id: str, *, limit: int | None = None) -> builtins.list[Message]:
        """Return the messages with this id on every tape that this store sees, oldest tape first.

        Each is returned once, from the tape that wrote it and as it is there now. Forks that inherit it are not
        listed, and a message that is retracted there is left out.
        """
        id, most = strict.identifier(id, "id"), strict.most(limit)
        self._services.log_administrative("messages_by_id")
        return self._reader.messages_by_id(id, most)

    def feed(self, after: int = 0, *, limit: int | None = None) -> Iterator[Entry]:
        """Yield the entries of all tapes after a position, in the order in which they became final.

        None is ever skipped: what commits later comes later, and the entries of a tape come in order. To continue, pass
        the ``position`` of the last entry read. It is opaque, and 0 is the start.
        """
        self._db.outside("feed")
        most, place = strict.most(limit), check_position(after, "after", postgres=self._db.postgres)
        self._services.log_administrative("feed")
        return self._feed.entries(place, most)

    def follow(self, after: int = 0, *, timeout: float | None = None) -> Iterator[Entry]:
        """Yield the entries of all tapes after a position and wait for more, from any process.

        Ends when none came for ``timeout`` seconds, or when the store is closed.
        """
        self._db.outside("follow")
        place, most = check_position(after, "after", postgres=self._db.postgres), check_timeout(timeout)
        self._services.log_administrative("follow")
        return self._feed.follow(place, most)

    def consumer(self, name: str) -> Consumer:
        """Return the reader of the feed with this name, which continues after the position it last committed."""
        self._db.outside("consumer")
        name = strict.identifier(name, "name")
        self._services.log_administrative("consumer", name=name)
        return Consumer(self._services, name)

    def split(self, id: str, *, summary: str, name: str | None = None, **options: Unpack[WriteOptions]) -> Tape:
        """End a tape and return the next one, which begins with a handoff that holds ``summary``; one transaction.

        The next tape has the old one's name (or ``name``), owner, agent, labels, blocks and state. The old one stays
        readable: its ``info().redirect`` names the next, and writing to it is TapeClosed with that ``redirect``.
        With the key of an earlier call, the tape of that call is returned.
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

    def usage(
        self,
        *,
        by: str = "model",
        tape: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        prices: Prices | None = None,
    ) -> builtins.list[UsageRow]:
        """Return tokens and cost by ``"model"``, ``"day"`` or ``"tape"``, of all tapes or of one.

        One tape can also be grouped by ``"turn"``. Each tape counts its own usage. The cost of a call is the one
        recorded with it, or else computed from ``prices``, by default those of ``tape.load_prices()``. Days and bounds
        use the time when a call happened, if that is known, and else when it was recorded. Reads every usage entry.
        """
        from tape.handles.spending import spending

        if tape is None:
            self._services.log_administrative("usage")
        chat = None if tape is None else self.get(tape)
        return spending(self._services.catalog, chat, by, since, until, prices)

    def diff(self, a: Snapshot | str, b: Snapshot | str) -> Diff:
        """Return what changed from one tape to another, or between two points of them (``store.get(id).at(7)``).

        Messages of one family are identified by their ids. Unrelated tapes share no ids, so they are compared by the
        content of their messages, and ``parted`` of the result is the last message of each before they differ.
        """
        before = a if isinstance(a, Snapshot) else self.get(a)
        after = b if isinstance(b, Snapshot) else self.get(b)
        if family(before) == family(after):
            return difference(before, after)
        return difference_by_content(before, after)

    def doctor(self, *, quick: bool = False, progress: Progress | None = None) -> builtins.list[Finding]:
        """Examine the store from its engine to its search index; each finding names the command that repairs it.

        It checks the engine's version, the log, the guards of the entries, transactions that hold back the feed, purges
        and imports that did not end, the search index, the database's file and all that ``verify`` checks. ``quick``
        leaves out the last two, which read the whole store. Repairs nothing.
        """
        from tape.handles.doctor import examine

        self._db.outside("doctor")
        strict.callback(progress, "progress")
        self._services.log_administrative("doctor")
        return builtins.list(examine(self, self._db, quick=strict.flag(quick, "quick"), progress=progress))

    def tools(self, scope: str = "search", *, actor: str | None = None, room: int = 16_000) -> Toolset:
        """Return the tools that let a model use all tapes that this store sees: of one owner, if it has one.

        "search" is one tool. "read" has those that find, read and compare tapes, and "write" also those that write to
        them, as ``actor``, unless the store is read-only. Answers of these have about ``room`` bytes at most, and tell
        by ``truncated`` whether there is more. Each ``tool.run`` is a typed function that other frameworks take as a
        tool. The tools of an async store are the same plain functions: call them in a thread.
        """
        from tape.store_tools import store_tools

        return store_tools(self, scope, actor, room)

    def scoped(self, owner: str) -> Store:
        """Return this store for one owner. Tapes of other owners look as if they did not exist.

        It uses the connections of this store, which are released when this store is closed. A store that has an owner
        already can only be scoped to the same one.
        """
        owner = strict.identifier(owner, "owner")
        if self._owner is not None and owner != self._owner:
            raise InvalidEntry("owner", f"this store belongs to {self._owner!r}")
        return self._like_this(self._db, owner=owner, bound=self._bound, shared=True)

    def replica(self, *, at_least: Written | None = None, timeout: float = 10.0) -> Store:
        """Return this store on the replica at ``read_url``: to be read only, and a little behind.

        With ``at_least`` (a receipt or an entry) it is returned once it has that write, so that none of its reads is
        older. Raises ReplicaBehind when that takes longer than ``timeout`` seconds, and StoreFailed when the replica
        cannot be reached. It is not needed that the primary can be. Positions of the feed are the same on both.
        """
        if self._replica is None:
            raise InvalidEntry("read_url", "is missing: open the store with read_url= to use a replica")
        self._db.outside("replica")
        timeout = strict.seconds(timeout, "timeout")
        whole = self._replica.store()
        store = whole if self._owner is None else whole.scoped(self._owner)
        if at_least is not None:
            wait_for(store, at_least, timeout)
        return store if store is not whole else whole._like_this(whole._db, shared=True)

    def _like_this(
        self,
        database: Database,
        *,
        owner: str | None = None,
        new_id: Callable[[], str] | None = None,
        bound: bool = False,
        shared: bool = False,
        fenced: bool | None = None,
    ) -> Store:
        """Return a store with the settings of this one on another database object, or for one owner."""
        return Store(
            database,
            owner=owner or self._owner,
            new_id=new_id or self._services.new_id,
            clock=self._clock,
            slow=self._slow,
            settings=self._reader.settings,
            bound=bound,
            shared=shared,
            fenced=self._fenced if fenced is None else fenced,
            replica=self._replica,
        )

    def close(self) -> None:
        """Release every connection. Handles of this store fail from then on.

        A store made by ``scoped`` has no connections of its own, so closing it does nothing.
        """
        if not self._shared:
            self._db.close()
            if self._replica is not None:
                self._replica.close()
