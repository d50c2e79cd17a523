"""A pool, awaited, and how it is opened."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

from tape.aio.hop import Hop, hop, hop_write, pages
from tape.aio.store import AsyncStore
from tape.aio.threads import Threads
from tape.aio.wakeup import wait, woken_by
from tape.core import strict
from tape.core.records import Entry, TapeInfo
from tape.errors import DatabaseDown, InvalidEntry, OwnerMoved, StoreFailed
from tape.handles.consumer import check_timeout
from tape.handles.options import arguments_of, called
from tape.pool.following import FeedReader
from tape.pool.pool import PAUSES, Address, Place, Pool
from tape.pool.pool import open_pool as open_sync
from tape.store import Store

__all__ = ["AsyncPool", "AsyncPoolFeed", "open_pool_async"]

R = TypeVar("R")


class AsyncPool(Hop):
    """Several databases of tapes as one, awaited; see ``Pool``. Use it in an ``async with`` statement."""

    _inner: Pool
    _threads: Threads
    _closed = False

    async def __aenter__(self) -> AsyncPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def names(self) -> list[str]:
        """The names of the databases."""
        return self._inner.names

    async def database(self, name: str) -> AsyncStore:
        """Return the store of one database, for all owners; see ``Pool.database``."""
        return self._face(await self._read(lambda: self._inner.database(name)))

    async def scoped(self, owner: str) -> AsyncStore:
        """Return a store for one owner, on the database that has the owner's tapes; see ``Pool.scoped``."""
        return self._face(await self._read(lambda: self._inner.scoped(owner)))

    @overload
    async def write(self, owner: str, fn: Callable[[AsyncStore], Awaitable[R]], *, timeout: float = 30.0) -> R: ...

    @overload
    async def write(self, owner: str, fn: Callable[[Store], R], *, timeout: float = 30.0) -> R: ...

    async def write(self, owner: str, fn: Callable[..., Any], *, timeout: float = 30.0) -> Any:
        """Run ``fn`` with the owner's store, again while the owner is moved; see ``Pool.write``.

        A plain function is given a synchronous store and runs in a worker thread, an async one an ``AsyncStore``.
        """
        until = time.monotonic() + strict.seconds(timeout, "timeout")
        pause = PAUSES[0]
        while True:
            try:
                store = await self.scoped(owner)
                if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
                    return await fn(store)
                return await self._write(lambda inner=store._inner: called(fn, inner))  # type: ignore[misc]
            except OwnerMoved as error:
                self._inner._forget(error.owner)
                left = until - time.monotonic()
                if left <= 0:
                    raise
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, PAUSES[1])

    locate = hop(Pool.locate)

    @arguments_of(Pool.tapes)
    def tapes(self, **filters: Any) -> AsyncIterator[TapeInfo]:
        """Yield the tapes of all databases that meet every filter; see ``Pool.tapes``."""
        found = self._inner.tapes(**filters)
        return pages(self, lambda: found)

    list = hop(Pool.list)
    search = hop(Pool.search)

    def feed(self, cursor: str | None = None) -> AsyncPoolFeed:
        """Return the entries of all databases behind a cursor; see ``Pool.feed``."""
        return AsyncPoolFeed(self, self._inner._reader(cursor, None), wait=False)

    def follow(self, cursor: str | None = None, *, timeout: float | None = None) -> AsyncPoolFeed:
        """Return the entries of all databases behind a cursor, and wait for more; see ``Pool.follow``."""
        return AsyncPoolFeed(self, self._inner._reader(cursor, check_timeout(timeout)), wait=True)

    health = hop(Pool.health)
    stats = hop(Pool.stats)
    verify = hop(Pool.verify)
    doctor = hop(Pool.doctor)
    move = hop_write(Pool.move)
    cancel_move = hop_write(Pool.cancel_move)

    async def close(self) -> None:
        """Wait for calls under way, then close every database. A second close does nothing."""
        if not self._closed:
            self._closed = True
            self._inner._end_feeds()
            await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        self._threads.shutdown()
        self._inner.close()

    def _face(self, store: Store) -> AsyncStore:
        self._threads.lone = self._threads.lone or store._db.lone
        return AsyncStore(store, self._threads, shared=True)


class AsyncPoolFeed:
    """The entries of all databases of a pool, as an async iterator that tells where it is; see ``PoolFeed``."""

    def __init__(self, pool: AsyncPool, reader: FeedReader, *, wait: bool) -> None:
        self._pool = pool
        self._reader = reader
        self._entries = self._follow() if wait else self._all()

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self

    async def __anext__(self) -> Entry:
        return await anext(self._entries)

    @property
    def cursor(self) -> str:
        """Where to go on behind the last entry that was given out."""
        return self._reader.cursor

    @property
    def down(self) -> dict[str, DatabaseDown]:
        """The databases that could not be reached when they were last asked."""
        return dict(self._reader.down)

    async def close(self) -> None:
        """End the iteration; a second close does nothing."""
        self._reader.closed = True

    async def _fill(self) -> bool:
        try:
            return await self._pool._read(self._reader.fill)
        except StoreFailed:
            # The pool was closed under a feed, which ends with it.
            if self._reader.closed:
                return False
            raise

    async def _all(self) -> AsyncIterator[Entry]:
        reader = self._reader
        while not reader.closed:
            while (entry := reader.next()) is not None:
                yield entry
            if not await self._fill() and reader.exhausted:
                return

    async def _follow(self) -> AsyncIterator[Entry]:
        reader = self._reader
        with woken_by([store._db.wakeup for store in self._pool._inner._open_stores()]) as committed:
            while not reader.closed:
                committed.clear()
                while (entry := reader.next()) is not None:
                    yield entry
                if await self._fill():
                    continue
                pause = reader.pause()
                if pause is None:
                    return
                if await wait(committed, pause):
                    reader.woken()


def open_pool_async(
    databases: Mapping[str, Address], *, place: Place, recheck: float = 1.0, threads: int = 8, **options: Any
) -> AsyncPool:
    """Open several databases as one, for use with asyncio: ``async with tape.open_pool_async(…) as pool``.

    Takes what ``tape.open_pool`` takes, and the number of worker ``threads`` for reads, which is also that for writes.
    """
    if type(threads) is not int or threads < 1:
        raise InvalidEntry("threads", f"must be an integer of at least 1, not {strict.shown(threads)}")
    return AsyncPool(open_sync(databases, place=place, recheck=recheck, **options), Threads(threads))
