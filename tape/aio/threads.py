"""The worker threads of an async store: some for reads, some for writes, and one hop for a whole group of writes.

Tasks of an event loop that write at the same moment are taken to a worker thread together. There their entries are
composed, recorded in one shared commit, and the results of all come back in one step. On PostgreSQL only writes of one
tape go together, since those of different tapes need not wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from tape.aio.workers import ShutDown, WorkerThreads, settle
from tape.core.records import Receipt
from tape.db.record.recorder import record_all
from tape.errors import StoreFailed
from tape.handles.recorded import Request

__all__ = ["Threads", "Workers", "closed", "inside"]

R = TypeVar("R")

_MOST_TOGETHER = 512
"""How many writes go into one transaction."""


def closed(error: ShutDown) -> StoreFailed:
    """Return what it means that the threads take no more work: they were shut down with the store."""
    failed = StoreFailed("the store is closed")
    failed.__cause__ = error
    return failed


class _Write(Struct):
    """One write that a task awaits."""

    handle: Any
    compose: Callable[..., Request]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Callable[[list[Receipt]], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


inside: ContextVar[tuple[Any, ...]] = ContextVar("tape_transactions", default=())
"""The transactions whose async functions have led to where one is."""


class Workers(ABC):
    """Where the calls of an async store run: in threads, or in the one of a transaction."""

    @abstractmethod
    def read(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call that only reads."""

    @abstractmethod
    def run(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call that may write, by itself."""

    @abstractmethod
    def hold(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call that holds a transaction while it waits for its async function."""

    @abstractmethod
    def write(self, handle: Any, method: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Run a write of a handle."""

    @abstractmethod
    def check(self, *, writes: bool) -> None:
        """Raise StoreFailed for a call that would wait for the function that makes it."""

    def _check_outside(self) -> None:
        for one in inside.get():
            if one.of is self and not one.over:
                raise StoreFailed(
                    "a call was started from inside a transaction of the same store; "
                    "use the store that its function is given"
                )


class Threads(Workers):
    """Where the synchronous core runs. Reads have threads of their own, so that they never queue behind writes."""

    lone = False
    """Whether reads wait for a transaction, too."""

    def __init__(self, count: int) -> None:
        self._reads = WorkerThreads(count, "tape-read")
        self._writes = WorkerThreads(count, "tape-write")
        self._transactions = WorkerThreads(count, "tape-transaction")
        self._change = threading.Lock()
        self._coming: dict[tuple[Any, asyncio.AbstractEventLoop], list[_Write]] = {}
        """The writes that came since an event loop last had nothing else to do."""
        self._ready: dict[Any, list[_Write]] = {}
        """Those that the next free thread takes."""
        self._busy: set[Any] = set()

    def read(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call in a thread that writes never use."""
        self.check(writes=False)
        return _start(self._reads, call)

    def run(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call in a thread for writes."""
        self.check(writes=True)
        return _start(self._writes, call)

    def hold(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Run a call in a thread for transactions, which others do not wait for."""
        self.check(writes=True)
        return _start(self._transactions, call)

    def write(self, handle: Any, method: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Run a write of a handle, together with those of other tasks."""
        self.check(writes=True)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        one = _Write(handle, method.compose, args, kwargs, method.result, future, loop)
        database = handle._services.database
        lane = (database, handle.id if database.postgres else "")
        with self._change:
            coming = self._coming.get((lane, loop))
            if coming is not None:
                coming.append(one)
                return future
            self._coming[lane, loop] = [one]
        # Not at once: tasks that are about to run may write as well.
        loop.call_soon(self._start, lane, loop)
        return future

    def check(self, *, writes: bool) -> None:
        """Refuse a write inside a transaction, which may have locked what it would wait for."""
        if writes or self.lone:
            self._check_outside()

    def _start(self, lane: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Give what came from a loop to a thread, or to the one that is at it."""
        with self._change:
            ready = self._ready.setdefault(lane, [])
            ready += self._coming.pop((lane, loop), [])
            if lane in self._busy or not ready:
                return
            self._busy.add(lane)
        try:
            self._writes.submit(partial(self._work, lane))
        except RuntimeError as error:
            # They are shut down, or the system gives none.
            with self._change:
                self._busy.discard(lane)
                refused = self._ready.pop(lane, [])
            failure = closed(error) if isinstance(error, ShutDown) else error
            _tell_all([(one, failure) for one in refused])

    def _work(self, lane: Any) -> Callable[[], None]:
        """Record what is ready, some at a time: other work of this thread comes in between. Returns what tells it."""
        told: list[tuple[_Write, Any]] = []
        while True:
            with self._change:
                ready = self._ready.get(lane, [])
                taken, self._ready[lane] = ready[:_MOST_TOGETHER], ready[_MOST_TOGETHER:]
            told += _record([one for one in taken if not one.future.cancelled()])
            with self._change:
                if not self._ready[lane]:
                    del self._ready[lane]
                    self._busy.discard(lane)
                    break
            # If the threads are being shut down, the rest is done right here.
            with contextlib.suppress(RuntimeError):
                self._writes.submit(partial(self._work, lane))
                break
        return partial(_tell_all, told)

    def shutdown(self) -> None:
        """Run what was asked for, then stop."""
        for lane, loop in list(self._coming):
            self._start(lane, loop)
        self._end(wait=True)

    def abandon(self) -> None:
        """Stop without waiting."""
        self._end(wait=False)

    def _end(self, *, wait: bool) -> None:
        for threads in (self._transactions, self._writes, self._reads):
            threads.shutdown(wait=wait)


def _start(threads: WorkerThreads, call: Callable[[], R]) -> asyncio.Future[R]:
    try:
        return threads.start(call)
    except ShutDown as error:
        raise closed(error) from error


def _record(writes: Sequence[_Write]) -> list[tuple[_Write, Any]]:
    """Compose and record writes; returns what to tell their tasks."""
    told: list[tuple[_Write, Any]] = []
    try:
        composed = []
        for one in writes:
            try:
                composed.append((one, one.compose(one.handle, *one.args, **one.kwargs)))
            except Exception as error:
                told.append((one, error))
        full = [(one, request) for one, request in composed if request.intents]
        told += [(one, one.result([])) for one, request in composed if not request.intents]
        outcomes = record_all([(one.handle._services.recorder, each.call, each.intents) for one, each in full])
        for (one, _), outcome in zip(full, outcomes, strict=True):
            told.append((one, outcome if isinstance(outcome, Exception) else one.result(outcome)))
    except BaseException as error:
        # Of a callback of the caller's, or of this thread: nobody must wait for ever.
        known = {id(one) for one, _ in told}
        told += [(one, error) for one in writes if id(one) not in known]
    return told


def _tell_all(told: Sequence[tuple[_Write, Any]]) -> None:
    """Let each event loop tell its own tasks."""
    for loop in {one.loop for one, _ in told}:
        # A loop that was closed meanwhile has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_tell, [(one.future, outcome) for one, outcome in told if one.loop is loop])


def _tell(told: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in told:
        if isinstance(outcome, BaseException):
            settle(future, None, outcome)
        else:
            settle(future, outcome, None)
