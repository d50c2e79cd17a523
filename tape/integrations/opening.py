"""The store behind an adapter: taken as a ``Store``, an ``AsyncStore`` or a URL, used from sync and from async code.

An adapter has one ``Connected`` of what it was given. Its methods use ``connected.store``. Those that a framework
awaits are written the same way and decorated with ``awaited``, which runs each in one hop to a thread.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

import tape
from tape.aio.workers import WorkerThreads, until_ended

__all__ = ["Adapter", "AsyncAdapter", "Connected", "StoreLike", "awaited", "awaited_to_end", "delete"]

StoreLike = tape.Store | tape.AsyncStore | str | os.PathLike[str] | sa.URL
"""What every adapter takes as its ``store``."""

P = ParamSpec("P")
R = TypeVar("R")
_DELETED = "deleted, but a fork still reads it"
workers = WorkerThreads(8, "tape-adapter")
"""The threads in which async adapters call the store, the same for all of them."""
Method = Callable[Concatenate[Any, P], R]
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


class Connected:
    """The store that an adapter works with.

    A store that was given stays its giver's to close. A URL is opened at once, so that a wrong one fails where it is
    written; adapters of one process that name the same URL share the connections, which are released with the last of
    them: when that is closed, or no longer used. With ``read_only`` a URL is opened to be read only.
    """

    def __init__(self, store: StoreLike, *, read_only: bool = False) -> None:
        self._awaited = store if isinstance(store, tape.AsyncStore) else None
        self.own = not isinstance(store, tape.Store | tape.AsyncStore)
        """Whether the store was opened here. One that was given may be bound to what is rolled back later."""
        self.store: tape.Store
        if isinstance(store, tape.Store | tape.AsyncStore):
            self.store = store if isinstance(store, tape.Store) else store.sync
        else:
            self.store = tape.open(store, shared=True, read_only=read_only)

    async def run(self, work: Callable[[tape.Store], R]) -> R:
        """Call ``work`` with the store, in one hop to a thread.

        A write that has begun goes on when the waiting for it is cancelled.
        """
        if self._awaited is None:
            return await workers.start(functools.partial(work, self.store))
        return await self._awaited.run(work)

    async def finish(self, work: Callable[[tape.Store], R]) -> R:
        """Call ``work`` likewise, and stay until it has ended also when cancelled: what follows comes behind it."""
        if self._awaited is None:
            working = workers.start(functools.partial(work, self.store), to_end=True)
        else:
            working = until_ended(self._awaited.run(work))
        try:
            return await working
        except asyncio.CancelledError:
            # Looked at, so that nobody is told that its error was never seen.
            working.exception()
            raise

    def close(self) -> None:
        """Close a store that was opened here. A second close does nothing."""
        if self.own:
            self.store.close()

    async def aclose(self) -> None:
        """The same, awaited."""
        await workers.start(self.close)


class Adapter:
    """What is made of a store; to be closed from sync code, or awaited."""

    def __init__(self, store: StoreLike) -> None:
        self._connected = Connected(store)

    def close(self) -> None:
        """Give back a store that was opened here; one that was given stays open."""
        self._connected.close()

    async def aclose(self) -> None:
        """Give back a store that was opened here; one that was given stays open."""
        await self._connected.aclose()


class AsyncAdapter(Adapter):
    """What is made of a store for a framework that awaits everything, closing as well."""

    async def close(self) -> None:  # type: ignore[override]
        """Give back a store that was opened here; one that was given stays open."""
        await self._connected.aclose()


def awaited(method: Method[P, R]) -> Awaited[P, R]:
    """Return a method of an adapter to be awaited: same arguments, same result, in one hop to a thread."""
    return _hopping(method, Connected.run)


def awaited_to_end(method: Method[P, R]) -> Awaited[P, R]:
    """Return a method likewise that is waited for also when it is cancelled; see ``Connected.finish``."""
    return _hopping(method, Connected.finish)


def _hopping(method: Method[P, R], run: Callable[..., Coroutine[Any, Any, R]]) -> Awaited[P, R]:
    @functools.wraps(method)
    async def hopped(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await run(self._connected, lambda _: method(self, *args, **kwargs))

    return hopped


def delete(store: tape.Store, id: str, expected_head: int | None = None) -> None:
    """Purge a tape. A tape that forks still read is hidden; deleting the last of them here purges it, too."""
    ancestors: list[str] = []
    with suppress(tape.TapeNotFound):
        ancestors = [ancestor.tape for ancestor in store.get(id).lineage().ancestors]
    kept = any(_is_deleted(store, ancestor) for ancestor in ancestors)
    if not kept:
        try:
            store.purge(id, expected_head=expected_head)
        except tape.TapeInUse:
            kept = True
    if kept:
        with suppress(tape.TapeHidden):
            store.tape(id).hide(_DELETED, expected_head=expected_head)
    # The highest deleted tape takes along all that descends from it. Another call may have hidden one meanwhile.
    for top in (*reversed(ancestors), id):
        if _is_deleted(store, top) and all(info.hidden_reason == _DELETED for info in _descendants(store, top)):
            with suppress(tape.TapeInUse, tape.TapeNotFound):
                store.purge(top, forks=True)
                return


def _descendants(store: tape.Store, id: str) -> Iterator[tape.TapeInfo]:
    for hidden in (False, True):
        for info in store.tapes(parent=id, hidden=hidden):
            yield info
            yield from _descendants(store, info.id)


def _is_deleted(store: tape.Store, id: str) -> bool:
    """Whether ``delete`` hid a tape."""
    try:
        store.get(id)
    except tape.TapeNotFound as missing:
        return isinstance(missing, tape.TapeHidden) and missing.reason == _DELETED
    return False
