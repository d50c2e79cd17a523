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
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import sqlalchemy as sa

import tape
from tape.integrations.workers import start

__all__ = ["Adapter", "AsyncAdapter", "Connected", "StoreLike", "awaited", "awaited_to_end"]

StoreLike = tape.Store | tape.AsyncStore | str | os.PathLike[str] | sa.URL
"""What every adapter takes as its ``store``."""

P = ParamSpec("P")
R = TypeVar("R")


class Connected:
    """The store that an adapter works with.

    A store that was given stays its giver's to close. A URL is opened at once, so that a wrong one fails where it is
    written; adapters of one process that name the same URL share the store, which is closed with the last of them:
    when that is closed, or no longer used. With ``read_only`` a URL is opened to be read only.
    """

    def __init__(self, store: StoreLike, *, read_only: bool = False) -> None:
        self._awaited = store if isinstance(store, tape.AsyncStore) else None
        self._leave: Callable[[], object] | None = None
        if isinstance(store, tape.Store):
            self.store: tape.Store = store
        elif isinstance(store, tape.AsyncStore):
            self.store = _finished(store.run(_itself))
        else:
            self.store, leave = _share(store, read_only=read_only)
            self._leave = weakref.finalize(self, leave)

    async def run(self, work: Callable[Concatenate[tape.Store, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``work`` with the store, in one hop to a thread.

        A write that has begun goes on when the waiting for it is cancelled.
        """
        return await self._start(functools.partial(work, self.store, *args, **kwargs))

    async def finish(self, work: Callable[Concatenate[tape.Store, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``work`` likewise, and stay until it has ended also when cancelled: what follows comes behind it."""
        working = self._start(functools.partial(work, self.store, *args, **kwargs), to_end=True)
        try:
            return await (working if self._awaited is None else asyncio.shield(working))
        except asyncio.CancelledError:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({working})
            working.exception()
            raise

    def _start(self, call: Callable[[], R], *, to_end: bool = False) -> asyncio.Future[R]:
        if self._awaited is None:
            return start(call, to_end=to_end)
        return asyncio.ensure_future(self._awaited.run(lambda _: call()))

    def close(self) -> None:
        """Close the store if the adapter opened it and no other adapter uses it. A second close does nothing."""
        if self._leave is not None:
            self._leave()

    async def aclose(self) -> None:
        """The same, awaited."""
        await start(self.close)


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


Method: TypeAlias = Callable[Concatenate[Any, P], R]
Awaited: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


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


class _Shared:
    """A store that adapters opened, and a token for each that uses it."""

    def __init__(self, store: tape.Store) -> None:
        self.store = store
        self.users: set[object] = set()


_shared: dict[tuple[int, str, bool], _Shared] = {}
_lock = threading.RLock()
"""May be entered again: an adapter that nobody holds any more can vanish while another one is made."""


def _share(url: str | os.PathLike[str] | sa.URL, *, read_only: bool) -> tuple[tape.Store, Callable[[], None]]:
    """Return the store of this URL, opened if nobody has, and what its user calls when it leaves."""
    name = _name(url)
    if name is None:
        alone = tape.open(url, read_only=read_only)
        return alone, alone.close
    # A forked process opens its own: connections do not survive a fork.
    place, token = (os.getpid(), name, read_only), object()
    with _lock:
        shared = _enter(url, place, token)

    def leave() -> None:
        with _lock:
            shared.users.discard(token)
            if shared.users or place[0] != os.getpid():
                return
            if _shared.get(place) is shared:
                del _shared[place]
        shared.store.close()

    return shared.store, leave


def _enter(url: str | os.PathLike[str] | sa.URL, place: tuple[int, str, bool], token: object) -> _Shared:
    while True:
        if (shared := _shared.get(place)) is None:
            shared = _shared[place] = _Shared(tape.open(url, read_only=place[2]))
        shared.users.add(token)
        # Its last user may have vanished, and closed it, before this one was noted.
        if _shared.get(place) is shared:
            return shared


def _name(url: str | os.PathLike[str] | sa.URL) -> str | None:
    """Return what two equal URLs share, or None for a store in memory, which is nobody else's."""
    text = url.render_as_string(hide_password=False) if isinstance(url, sa.URL) else os.fspath(url)
    if ":memory:" in text or text in ("sqlite://", "sqlite:///"):
        return None
    return text if "://" in text else os.path.abspath(text)


# -- async stores


def _itself(store: tape.Store) -> tape.Store:
    return store


def _finished(work: Coroutine[Any, Any, R]) -> R:
    """Run a short coroutine to its end, also where an event loop is running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
