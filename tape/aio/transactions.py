"""Transactions of async functions: the function runs on its event loop, its calls in the one thread of its transaction.

That thread begins the transaction, serves the calls one after the other, and commits when the function has returned.
Meanwhile the function may await other things; the thread waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tape.aio.threads import Workers, inside
from tape.aio.workers import run_for
from tape.errors import StoreFailed
from tape.store import Store

__all__ = ["Serving", "run_async"]

R = TypeVar("R")


class _Failed(Exception):
    """The function failed or was cancelled: the transaction is rolled back."""


class _End(NamedTuple):
    """How the function ended; the thread reads it behind the last call."""

    result: Any
    failed: bool


class _Calls:
    """The calls of one transaction, run in its thread in the order in which they were made."""

    def __init__(self) -> None:
        self._change = threading.Lock()
        self._open = False
        self._queue: queue.SimpleQueue[Callable[[], Callable[[], object]] | _End] = queue.SimpleQueue()

    def start(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Have a call run by the thread."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        with self._change:
            if not self._open:
                raise StoreFailed("the transaction has ended; its store and handles cannot be used any more")
            self._queue.put(partial(run_for, future, call))
        return future

    def end(self, result: Any = None, *, failed: bool = False) -> None:
        """Let the thread go on when it has run the calls before."""
        with self._change:
            self._open = False
            self._queue.put(_End(result, failed))

    def begin(self) -> None:
        """Take calls from now on."""
        with self._change:
            self._open = True

    def serve(self) -> Any:
        """Run the calls until the function has ended; returns what it returned."""
        while not isinstance(item := self._queue.get(), _End):
            tell = item()
            tell()
            del item, tell
        if item.failed:
            raise _Failed
        return item.result


class Serving(Workers):
    """The thread of one transaction, as the place where the calls of its store run."""

    def __init__(self, of: Workers) -> None:
        self.of = of
        """Where the calls of the store run that the transaction is of."""
        self.over = False
        self.turns: asyncio.Queue[Store | None] = asyncio.Queue()
        """The store of each run, in which the function is called; None when there will be no further one."""
        self._calls = _Calls()
        self._loop = asyncio.get_running_loop()
        self._given_up = False

    def read(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call in the order of the calls."""
        self.check(writes=False)
        return self._calls.start(call)

    run = hold = read

    def write(self, handle: Any, method: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Run a write of a handle in the order of the calls."""
        return self.read(partial(method, handle, *args, **kwargs))

    def check(self, *, writes: bool) -> None:
        """Refuse every call inside a nested transaction, which has the thread to itself."""
        self._check_outside()

    # -- in the thread

    def serve(self, store: Store) -> Any:
        """Have the function called with the store of a run, and serve its calls; returns what it returned."""
        if self._given_up:
            raise _Failed
        self._calls.begin()
        try:
            self._loop.call_soon_threadsafe(self.turns.put_nowait, store)
        except RuntimeError as error:
            raise _Failed from error
        return self._calls.serve()

    # -- on the event loop

    def finish(self, ended: asyncio.Future[Any]) -> None:
        """Note that the transaction is committed or undone."""
        self.over = True
        # Read here, or asyncio warns when nobody else waits for it any more.
        if not ended.cancelled():
            ended.exception()
        self.turns.put_nowait(None)

    def give_up(self) -> None:
        """Do not call the function again."""
        self._given_up = True

    async def call(self, fn: Callable[[Any], Awaitable[R]], face: Any) -> BaseException | None:
        """Run the function to its end, and return what it raised, if anything."""
        entered = inside.set((*inside.get(), self))
        try:
            result = await fn(face)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.give_up()
            self._calls.end(failed=True)
            if isinstance(error, GeneratorExit):
                raise
            return error
        finally:
            # A function whose event loop is gone is closed outside of any task.
            with contextlib.suppress(ValueError):
                inside.reset(entered)
        self._calls.end(result)
        return None


async def run_async(
    inner: Store, threads: Workers, face: Callable[[Store, Workers], Any], fn: Callable[[Any], Awaitable[R]]
) -> R:
    """Run an async function in one transaction of a store, with the async ``face`` of the transaction's own.

    When it is cancelled everything is undone before the cancellation goes on.
    """
    serving = Serving(threads)
    ended = threads.hold(partial(inner.transaction, serving.serve))
    ended.add_done_callback(serving.finish)
    failure: BaseException | None = None
    while True:
        try:
            store = await serving.turns.get()
        except BaseException:
            # Cancelled while it waited for a lock or for the commit.
            serving.give_up()
            raise
        if store is None:
            break
        failure = await serving.call(fn, face(store, serving))
    if failure is not None and isinstance(ended.exception(), _Failed):
        raise failure
    result: R = ended.result()
    return result
