"""The store behind an adapter: taken as a ``Store``, an ``AsyncStore`` or a URL, used from sync and from async code.

An adapter has one ``Connected`` of what it was given. Its methods use ``connected.store``. Those that a framework
awaits are written the same way and decorated with ``awaited``, which runs each in one hop to a thread.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

import tape
from tape.aio.workers import WorkerThreads, until_ended

__all__ = ["Adapter", "AsyncAdapter", "Connected", "StoreLike", "awaited", "awaited_to_end"]

StoreLike = tape.Store | tape.AsyncStore | str | os.PathLike[str] | sa.URL
"""What every adapter takes as its ``store``."""

P = ParamSpec("P")
R = TypeVar("R")
workers = WorkerThreads(8, "tape-adapter")
"""The threads in which async adapters call the store, the same for all of them."""
Method = Callable[Concatenate[Any, P], R]
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


class Connected:
    """The store that an adapter works with.

    A store that was given stays its giver's to close. A URL is opened at once, so that a wrong one fails where it is
    written; adapters of one process that name the same URL share the store, which is closed with the last of them:
    when that is closed, or no longer used. With ``read_only`` a URL is opened to be read only.
    """

    def __init__(self, store: StoreLike, *, read_only: bool = False) -> None:
        self._awaited = store if isinstance(store, tape.AsyncStore) else None
        self._opened: _Opened | None = None
        if isinstance(store, tape.Store):
            self.store: tape.Store = store
        elif isinstance(store, tape.AsyncStore):
            with ThreadPoolExecutor(1) as thread:
                # In a thread of its own, since an event loop may be running here.
                self.store = thread.submit(asyncio.run, store.run(lambda inner: inner)).result()
        else:
            self._opened = _open(store, read_only)
            self.store = self._opened.store

    @property
    def own(self) -> bool:
        """Whether the store was opened here. One that was given may be bound to what is rolled back later."""
        return self._opened is not None

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
        """Close the store if the adapter opened it and no other adapter uses it. A second close does nothing."""
        self._opened = None

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


class AsyncAdapter:
    """What is made of a store for a framework that awaits everything, closing as well."""

    def __init__(self, store: StoreLike) -> None:
        self._connected = Connected(store)

    async def close(self) -> None:
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


class _Opened:
    """A store that adapters opened, closed when none of them holds this any more."""

    def __init__(self, url: str | os.PathLike[str] | sa.URL, read_only: bool) -> None:
        self.store = tape.open(url, read_only=read_only)
        weakref.finalize(self, _close, self.store, os.getpid())


def _close(store: tape.Store, process: int) -> None:
    # A forked process has a copy, whose connections are not its own.
    if process == os.getpid():
        store.close()


_shared: weakref.WeakValueDictionary[tuple[int, str, bool], _Opened] = weakref.WeakValueDictionary()
_lock = threading.RLock()
"""May be entered again: an adapter that nobody holds any more can vanish while another one is made."""


def _open(url: str | os.PathLike[str] | sa.URL, read_only: bool) -> _Opened:
    """Return the store of a URL, opened if nobody in this process has; one in memory is nobody else's."""
    text = url.render_as_string(hide_password=False) if isinstance(url, sa.URL) else os.fspath(url)
    if ":memory:" in text or text in ("sqlite://", "sqlite:///"):
        return _Opened(url, read_only)
    place = (os.getpid(), text if "://" in text else os.path.abspath(text), read_only)
    with _lock:
        opened = _shared.get(place)
        if opened is None:
            opened = _shared[place] = _Opened(url, read_only)
        return opened
