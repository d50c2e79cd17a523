"""Transactions of async functions: the function runs on its event loop, its calls in the one thread of its transaction.

That thread begins the transaction, serves the calls one after the other, and commits when the function has returned.
Meanwhile the function may await other things; the thread waits for it.

A cancelled task gives the transaction up. One lock decides between that and the commit: a transaction that is given up
before its thread begins to commit is rolled back.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tape.aio.threads import Workers, inside
from tape.aio.workers import is_ending, run_for
from tape.db.engine.process_fork import renew_in_child
from tape.errors import NotInTransaction, StoreFailed
from tape.handles.options import called
from tape.store import Store

__all__ = ["Serving", "run_async", "run_plain"]

R = TypeVar("R")

_LOOK = 0.5
"""Seconds after which a thread that waits for its function looks whether the event loop is still there."""


class _Failed(Exception):
    """The function failed or was cancelled: the transaction is rolled back."""


class _End(NamedTuple):
    """How the function ended; the thread reads it behind the last call."""

    result: Any
    failed: bool


class _Calls:
    """The calls of one transaction, run in its thread in the order in which they were made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun = False
        self._given_up = False
        self._queue: queue.SimpleQueue[Callable[[], Callable[[], object]] | _End] = queue.SimpleQueue()
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Take no calls; in a forked child the thread that would run them does not exist."""
        self._change = threading.Lock()
        self._open = False

    # -- on the event loop

    def start(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Have a call run by the thread."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        with self._change:
            if not self._open:
                raise _ended()
            self._queue.put(partial(run_for, future, call))
        return future

    def end(self, result: Any = None, *, failed: bool = False) -> bool:
        """Let the thread go on when it has run the calls before; False if the transaction was given up."""
        with self._change:
            self._end(result, failed=failed)
            return not self._given_up

    def give_up(self) -> bool:
        """Have everything undone that is not about to be committed; tells whether the thread has asked for calls."""
        with self._change:
            self._given_up = True
            # The thread may wait for a function that nobody will call.
            self._end(None, failed=True)
            return self._begun

    def _end(self, result: Any, *, failed: bool) -> None:
        if self._open:
            self._open = False
            self._queue.put(_End(result, failed))

    # -- in the thread

    def check(self) -> None:
        """Raise _Failed once the transaction was given up."""
        with self._change:
            if self._given_up:
                raise _Failed

    def begin(self) -> None:
        """Take calls from now on, unless the transaction was given up."""
        with self._change:
            if self._given_up:
                raise _Failed
            self._begun = self._open = True

    def serve(self) -> Any:
        """Run the calls until the function has ended; returns what it returned, to be committed."""
        while not isinstance(item := self._next(), _End):
            tell = item()
            tell()
            del item, tell
        if item.failed:
            raise _Failed
        # From here on it is too late to give up.
        self.check()
        return item.result

    def _next(self) -> Callable[[], Callable[[], object]] | _End:
        """Return the next call, or the end; an event loop that was closed or left for good gives neither."""
        while True:
            try:
                return self._queue.get(timeout=_LOOK)
            except queue.Empty:
                if self._loop.is_closed() or (is_ending() and not self._loop.is_running()):
                    raise _Failed from None


class Serving(Workers):
    """The thread of one transaction, as the place where the calls of its store run."""

    def __init__(self, of: Workers, prepare: Callable[[Store, Workers], Any]) -> None:
        self.of = of
        """Where the calls of the store run that the transaction is of."""
        self.over = False
        self._turns: deque[tuple[Any] | None] = deque()
        self._told: asyncio.Future[None] | None = None
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._calls = _Calls(self._loop)

    def read(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call in the order of the calls."""
        return self._calls.start(call)

    run = hold = read

    def write(self, handle: Any, method: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Run a write of a handle in the order of the calls."""
        return self.read(partial(method, handle, *args, **kwargs))

    def check(self, *, writes: bool) -> None:
        """Allow every call: they all belong to the transaction."""

    # -- in the thread

    def serve(self, store: Store) -> Any:
        """Have the function called with the store of a run, and serve its calls; returns what it returned."""
        self._calls.check()
        turn = self._prepare(store, self)
        self._calls.begin()
        try:
            self._loop.call_soon_threadsafe(self._tell, (turn,))
        except RuntimeError as error:
            raise _Failed from error
        return self._calls.serve()

    # -- on the event loop

    async def turn(self) -> tuple[Any] | None:
        """Wait for a run, and return what the function is called with; None when there will be no further one."""
        while not self._turns:
            # A future of its own: a queue of asyncio's complains when its event loop was closed.
            self._told = self._loop.create_future()
            await self._told
        return self._turns.popleft()

    def _tell(self, turn: tuple[Any] | None) -> None:
        self._turns.append(turn)
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    def finish(self, ended: asyncio.Future[Any]) -> None:
        """Note that the transaction is committed or undone."""
        self.over = True
        # Read here, or asyncio warns when nobody else waits for it any more.
        if not ended.cancelled():
            ended.exception()
        self._tell(None)

    def give_up(self) -> bool:
        """Do not call the function again, and commit nothing; tells whether there may be anything to undo."""
        return self._calls.give_up()

    async def call(self, fn: Callable[[Any], Awaitable[R]], turn: Any) -> tuple[R | None, BaseException | None]:
        """Run the function to its end, and return what it returned, or what it raised."""
        entered = inside.set((*inside.get(), self))
        try:
            result = await fn(turn)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.give_up()
            self._calls.end(failed=True)
            if isinstance(error, GeneratorExit):
                raise
            return None, error
        finally:
            # A function whose event loop is gone is closed outside of any task.
            with contextlib.suppress(ValueError):
                inside.reset(entered)
        return (result, None) if self._calls.end(result) else (None, _ended())


async def run_async(
    inner: Store, threads: Workers, face: Callable[[Store, Workers], Any], fn: Callable[[Any], Awaitable[R]]
) -> R:
    """Run an async function in one transaction of a store, with the async ``face`` of the transaction's own.

    When it is cancelled everything is undone, or committed if that has begun, before the cancellation goes on.
    """
    if isinstance(threads, Serving):
        raise _ended() if threads.over else _nested()
    serving = Serving(threads, face)
    ended = threads.hold(partial(inner.transaction, serving.serve))
    ended.add_done_callback(serving.finish)
    failure: BaseException | None = None
    try:
        while (turn := await serving.turn()) is not None:
            _, failure = await serving.call(fn, turn[0])
    except BaseException as error:
        # Cancelled while it waited for a lock or for the commit, or closed with its event loop.
        if serving.give_up() and isinstance(error, asyncio.CancelledError):
            await _until_done(ended)
        raise
    if failure is not None and isinstance(ended.exception(), _Failed):
        raise failure
    result: R = ended.result()
    return result


async def run_plain(inner: Store, threads: Workers, fn: Callable[[Store], R]) -> R:
    """Run a plain function in one transaction of a store, in a worker thread.

    When it is cancelled that goes on at once. What the function has written is undone when it returns.
    """
    if isinstance(threads, Serving):
        raise _ended() if threads.over else _nested()
    given_up = threading.Event()

    def run(store: Store) -> R:
        _check(given_up)
        result = called(fn, store)
        _check(given_up)
        return result

    try:
        return await threads.run(partial(inner.transaction, run))
    except BaseException:
        # It has ended, or goes on in its thread while nobody waits for it any more.
        given_up.set()
        raise


async def _until_done(ended: asyncio.Future[Any]) -> None:
    """Wait for the end of a transaction, however often the waiting is cancelled."""
    while not ended.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({ended})


def _check(given_up: threading.Event) -> None:
    if given_up.is_set():
        raise _Failed


def _nested() -> NotInTransaction:
    return NotInTransaction(
        "transaction", "call await store.run(fn), where fn may use the plain store's own transaction"
    )


def _ended() -> StoreFailed:
    return StoreFailed("the transaction has ended; use the outer store, not the store and tapes of the transaction")
