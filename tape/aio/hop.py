"""The hop to a worker thread: how the synchronous core is awaited."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from tape.aio.threads import Workers
from tape.handles.options import misfit

__all__ = ["Hop", "hop", "hop_to", "hop_write", "pages"]

P = ParamSpec("P")
R = TypeVar("R")
Face = TypeVar("Face", bound="Hop")

_PAGE = 256


class Hop:
    """What an async face needs: the synchronous object behind it, and the threads to run it in."""

    def __init__(self, inner: Any, threads: Workers) -> None:
        self._inner = inner
        self._threads = threads

    async def _read(self, call: Callable[[], R]) -> R:
        """Run a call that only reads."""
        return await self._threads.read(call)

    async def _write(self, call: Callable[[], R]) -> R:
        """Run a call that may write, by itself."""
        return await self._threads.run(call)

    async def _run_to_end(self, call: Callable[[], R]) -> tuple[R, asyncio.CancelledError | None]:
        """Run a call and wait for its end, also when the waiting is cancelled; returns that cancellation."""
        running = self._threads.run(call)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError as error:
                cancelled = error
        failure = running.exception()
        if cancelled is not None and failure is not None:
            raise cancelled from failure
        return running.result(), cancelled


def hop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Hop, P], Coroutine[Any, Any, R]]:
    """Return a method that reads, to be awaited: same arguments, same result, in a worker thread."""

    @functools.wraps(method)
    async def hopped(self: Hop, /, *args: P.args, **kwargs: P.kwargs) -> R:
        reading = self._read(lambda: method(self._inner, *args, **kwargs))
        return await _explained(reading, method, (self, *args), kwargs)

    return hopped


def hop_write(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Hop, P], Coroutine[Any, Any, R]]:
    """Return a method that writes, to be awaited; what it records goes along with what other tasks record."""
    if hasattr(method, "compose"):

        @functools.wraps(method)
        async def shared(self: Hop, /, *args: P.args, **kwargs: P.kwargs) -> R:
            writing: Awaitable[R] = self._threads.write(self._inner, method, args, kwargs)
            return await _explained(writing, method, (self, *args), kwargs)

        return shared

    @functools.wraps(method)
    async def hopped(self: Hop, /, *args: P.args, **kwargs: P.kwargs) -> R:
        writing = self._write(lambda: method(self._inner, *args, **kwargs))
        return await _explained(writing, method, (self, *args), kwargs)

    return hopped


def hop_to(
    face: type[Face], method: Callable[Concatenate[Any, P], Any], *, writes: bool = False
) -> Callable[Concatenate[Hop, P], Coroutine[Any, Any, Face]]:
    """Return ``method`` to be awaited, with the tape or snapshot that it returns behind an async ``face``."""

    @functools.wraps(method)
    async def hopped(self: Hop, /, *args: P.args, **kwargs: P.kwargs) -> Face:
        run = self._write if writes else self._read
        running = run(lambda: method(self._inner, *args, **kwargs))
        return face(await _explained(running, method, (self, *args), kwargs), self._threads)

    return hopped


async def _explained(running: Awaitable[R], method: Callable[..., Any], args: Any, kwargs: Any) -> R:
    """Await a call; if its arguments do not fit, the TypeError names the method as it is known here."""
    try:
        return await running
    except TypeError:
        if (wrong := misfit(method, args, kwargs, f"Async{method.__qualname__}")) is not None:
            raise wrong from None
        raise


async def pages(face: Hop, make: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
    """Yield what an iterator yields, fetching a page of it per hop."""
    source = await face._read(make)

    def next_page() -> list[R]:
        return list(itertools.islice(source, _PAGE))

    while page := await face._read(next_page):
        for item in page:
            yield item
