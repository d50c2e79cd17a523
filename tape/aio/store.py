"""A store, awaited, and how it is opened."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar, overload

import sqlalchemy as sa

from tape.aio.consumer import AsyncConsumer, follow
from tape.aio.hop import Hop, hop, hop_to, hop_write, pages
from tape.aio.tape import AsyncSnapshot, AsyncTape
from tape.aio.threads import Threads, Workers
from tape.aio.transactions import run_async, run_plain
from tape.core import strict
from tape.core.memory.state import BlockSpec, Slot
from tape.core.merge.diff import Diff
from tape.core.messages.tokens import Counter
from tape.core.records import Entry, TapeInfo
from tape.db.feed.feed import check_position
from tape.errors import InvalidEntry
from tape.handles.consumer import check_timeout
from tape.handles.options import arguments_of, called
from tape.opening import open as open_sync
from tape.replica import Written
from tape.store import Store

__all__ = ["AsyncStore", "open_async"]

R = TypeVar("R")


class AsyncStore(Hop):
    """A database of tapes, awaited; see ``Store``. Use it in an ``async with`` statement, or ``await close()``."""

    _inner: Store
    _closed = False
    _bound = False

    def __init__(self, inner: Store, threads: Workers, *, shared: bool = False) -> None:
        super().__init__(inner, threads)
        self._shared = shared

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def owner(self) -> str | None:
        """The owner whose tapes this store sees, or None for all."""
        return self._inner.owner

    @property
    def read_only(self) -> bool:
        """Whether the store was opened to be read only: then every write is ReadOnly."""
        return self._inner.read_only

    @property
    def sync(self) -> Store:
        """The plain store behind this one, for code that is not async: same connections, closed with this one.

        Its calls block, so they belong into another thread than that of the event loop. The one of a transaction can
        only be used by a plain function, which ``run`` calls.
        """
        return self._inner

    create = hop_to(AsyncTape, Store.create, writes=True)
    get = hop_to(AsyncTape, Store.get)
    split = hop_to(AsyncTape, Store.split, writes=True)

    def tape(self, id: str) -> AsyncTape:
        """Return the tape with this id; it reads as empty, and is created with its first write."""
        return AsyncTape(self._inner.tape(id), self._threads)

    async def run(self, fn: Callable[[Store], R]) -> R:
        """Run a plain function with the synchronous store, in one hop to a worker thread; returns what it returns."""
        return await self._write(lambda: called(fn, self._inner))

    @overload
    async def transaction(self, fn: Callable[[AsyncStore], Awaitable[R]]) -> R: ...

    @overload
    async def transaction(self, fn: Callable[[Store], R]) -> R: ...

    async def transaction(self, fn: Callable[..., Any]) -> Any:
        """Run ``fn`` with this store in one transaction: all of what it writes is there, or nothing; see
        ``Store.transaction``.

        A plain function is given a synchronous store and runs in a worker thread, in one hop. An async function is
        given an ``AsyncStore`` and runs here; while it awaits other things its tapes stay locked, on SQLite the whole
        store.

        When it is cancelled, an async function is undone before that goes on; a plain one ends in its thread first, and
        is undone then. A commit that has begun is not undone. Inside another transaction it raises NotInTransaction;
        there ``run`` a plain function that uses ``Store.transaction``.
        """
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
            return await run_async(self._inner, self._threads, _inside, fn)
        return await run_plain(self._inner, self._threads, fn)

    search = hop(Store.search)
    messages_by_id = hop(Store.messages_by_id)

    def feed(self, after: int = 0, *, limit: int | None = None) -> AsyncIterator[Entry]:
        """Yield the entries of all tapes behind a position; see ``Store.feed``."""
        return pages(self, lambda: self._inner.feed(after, limit=limit))

    def follow(self, after: int = 0, *, timeout: float | None = None) -> AsyncIterator[Entry]:
        """Yield the entries of all tapes behind a position and wait for more; see ``Store.follow``."""
        self._inner._db.outside("follow")
        start = check_position(after, "after", postgres=self._inner._db.postgres)
        return follow(self, self._inner._services, start, check_timeout(timeout))

    def consumer(self, name: str) -> AsyncConsumer:
        """Return the reader of the feed with this name; see ``Store.consumer``."""
        return AsyncConsumer(self._inner.consumer(name), self._threads)

    @arguments_of(Store.tapes)
    def tapes(self, **filters: Any) -> AsyncIterator[TapeInfo]:
        """Yield all tapes that ``list`` gives for these filters; see ``Store.tapes``."""
        found = self._inner.tapes(**filters)
        return pages(self, lambda: found)

    list = hop(Store.list)
    requests = hop(Store.requests)
    purge = hop_write(Store.purge)
    retain = hop_write(Store.retain)
    export = hop(Store.export)
    import_ = hop_write(Store.import_)
    backup = hop(Store.backup)
    health = hop(Store.health)
    stats = hop(Store.stats)
    usage = hop(Store.usage)

    async def diff(self, a: AsyncSnapshot | str, b: AsyncSnapshot | str) -> Diff:
        """Return what changed from one tape, or a point of it, to another; see ``Store.diff``."""
        before = a._inner if isinstance(a, AsyncSnapshot) else a
        after = b._inner if isinstance(b, AsyncSnapshot) else b
        return await self._read(lambda: self._inner.diff(before, after))

    tools = hop(Store.tools)

    def bind(self, connection: sa.Connection) -> AsyncStore:
        """Return this store on a connection of the caller's, a synchronous one; see ``Store.bind``.

        What it writes commits or rolls back with the caller's own rows. Await each call before using the connection.
        """
        bound = AsyncStore(self._inner.bind(connection), self._threads)
        bound._bound = True
        return bound

    verify = hop(Store.verify)
    doctor = hop(Store.doctor)
    rebuild = hop_write(Store.rebuild)

    def scoped(self, owner: str) -> AsyncStore:
        """Return this store for one owner; see ``Store.scoped``."""
        return AsyncStore(self._inner.scoped(owner), self._threads, shared=True)

    async def replica(self, *, at_least: Written | None = None, timeout: float = 10.0) -> AsyncStore:
        """Return this store on the replica at ``read_url``, once it has a write; see ``Store.replica``."""
        inner = await self._read(lambda: self._inner.replica(at_least=at_least, timeout=timeout))
        return AsyncStore(inner, self._threads, shared=True)

    async def close(self) -> None:
        """Wait for calls under way, then give back every connection. A second close does nothing."""
        if not self._closed and not self._shared:
            self._threads.check(writes=True)
            self._closed = True
            await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        if not self._bound and isinstance(self._threads, Threads):
            self._threads.shutdown()
        self._inner.close()


def _inside(store: Store, threads: Workers) -> AsyncStore:
    return AsyncStore(store, threads, shared=True)


class _Opening:
    """What ``open_async`` returns: await it for a store, or enter it with ``async with``."""

    def __init__(self, make: Callable[[], Store], threads: Threads) -> None:
        self._make = make
        self._threads = threads
        self._store: AsyncStore | None = None

    async def _open(self) -> AsyncStore:
        thread = ThreadPoolExecutor(1, thread_name_prefix="tape-open")
        opening = thread.submit(self._make)
        thread.shutdown(wait=False)
        try:
            inner = await asyncio.wrap_future(opening)
        except BaseException:
            # Cancelled while a thread was at it: nobody else would close what it opens.
            opening.add_done_callback(_close_opened)
            self._threads.abandon()
            raise
        self._threads.lone = inner._db.lone
        return AsyncStore(inner, self._threads)

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


def _close_opened(opening: Future[Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def open_async(
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
    threads: int = 8,
) -> _Opening:
    """Open a store for use with asyncio: ``async with tape.open_async(…) as store``, or ``await`` it.

    Takes what ``tape.open`` takes, and the number of worker ``threads`` for reads, which is also that for writes. One
    that is ``shared`` has threads of its own, and shares connections with plain stores as well.
    """

    def make() -> Store:
        return open_sync(
            url,
            owner=owner,
            durability=durability,
            schema=schema,
            read_only=read_only,
            timeout=timeout,
            slow=slow,
            clock=clock,
            slots=slots,
            blocks=blocks,
            counter=counter,
            read_url=read_url,
            shared=shared,
        )

    if type(threads) is not int or threads < 1:
        raise InvalidEntry("threads", f"must be an integer of at least 1, not {strict.shown(threads)}")
    return _Opening(make, Threads(threads))
