"""The worker threads of an async store: some for reads, some for writes, and one hop for a whole group of writes.

Tasks of an event loop that write at the same moment go to a worker thread together. There their entries are composed
and recorded in one shared commit, and all results come back in one step. On PostgreSQL only writes of one
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
from tape.db.engine.process_fork import renew_in_child
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
"""The transactions whose async functions are running in this context, the outermost first."""


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
        for transaction in inside.get():
            if transaction.of is self and not transaction.over:
                raise StoreFailed(
                    "a call was started inside a transaction of the same store; "
                    "use the store that the transaction passes to your function"
                )


class Threads(Workers):
    """Where the synchronous core runs. Reads have threads of their own, so that they never queue behind writes."""

    lone = False
    """Whether reads wait for a transaction, too."""

    def __init__(self, count: int) -> None:
        self._reads = WorkerThreads(count, "tape-read")
        self._writes = WorkerThreads(count, "tape-write")
        self._transactions = WorkerThreads(count, "tape-transaction")
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Start without pending writes. A forked child must not run those of its parent."""
        self._change = threading.Lock()
        self._coming: dict[tuple[Any, asyncio.AbstractEventLoop], list[_Write]] = {}
        """The writes of each event loop that it has not yet handed to a thread."""
        self._ready: dict[Any, list[_Write]] = {}
        """Those that the next free thread takes."""
        self._busy: set[Any] = set()
        """The lanes that a thread records for."""

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
        write = _Write(handle, method.compose, args, kwargs, method.result, future, loop)
        database = handle._services.database
        lane = (database, handle.id if database.postgres else "")
        with self._change:
            coming = self._coming.get((lane, loop))
            if coming is not None:
                coming.append(write)
                return future
            self._coming[lane, loop] = [write]
        # Not at once: tasks that are about to run may write as well.
        loop.call_soon(self._start, lane, loop)
        return future

    def check(self, *, writes: bool) -> None:
        """Refuse a write inside a transaction, which may have locked what it would wait for."""
        if writes or self.lone:
            self._check_outside()

    def _start(self, lane: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Hand the writes of a loop to a thread, or to the one that records for this lane already."""
        with self._change:
            ready = self._ready.setdefault(lane, [])
            ready += self._coming.pop((lane, loop), [])
            if lane in self._busy or not ready:
                return
            self._busy.add(lane)
        try:
            self._writes.submit(partial(self._record_ready, lane))
        except RuntimeError as error:
            # They are shut down, or the system gives none.
            with self._change:
                self._busy.discard(lane)
                refused = self._ready.pop(lane, [])
            failure = closed(error) if isinstance(error, ShutDown) else error
            _resolve_all([(write, failure) for write in refused])

    def _record_ready(self, lane: Any) -> Callable[[], None]:
        """Record what is ready, a batch at a time, so that other work of this thread comes in between.

        Returns what resolves the futures of the tasks.
        """
        outcomes: list[tuple[_Write, Any]] = []
        while True:
            with self._change:
                ready = self._ready.get(lane, [])
                batch, self._ready[lane] = ready[:_MOST_TOGETHER], ready[_MOST_TOGETHER:]
            outcomes += _record([write for write in batch if not write.future.cancelled()])
            with self._change:
                if not self._ready[lane]:
                    del self._ready[lane]
                    self._busy.discard(lane)
                    break
            # If the threads are being shut down, the rest is done right here.
            with contextlib.suppress(RuntimeError):
                self._writes.submit(partial(self._record_ready, lane))
                break
        return partial(_resolve_all, outcomes)

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
    """Compose and record writes; returns how each ended."""
    outcomes: list[tuple[_Write, Any]] = []
    try:
        composed = []
        for write in writes:
            try:
                composed.append((write, write.compose(write.handle, *write.args, **write.kwargs)))
            except Exception as error:
                outcomes.append((write, error))
        full = [(write, request) for write, request in composed if request.intents]
        outcomes += [(write, write.result([])) for write, request in composed if not request.intents]
        recorded = record_all(
            [(write.handle._services.recorder, request.call, request.intents) for write, request in full]
        )
        for (write, _), outcome in zip(full, recorded, strict=True):
            outcomes.append((write, outcome if isinstance(outcome, Exception) else write.result(outcome)))
    except BaseException as error:
        # From a callback of the caller's, or from this thread. No task may wait for ever.
        answered = {id(write) for write, _ in outcomes}
        outcomes += [(write, error) for write in writes if id(write) not in answered]
    return outcomes


def _resolve_all(outcomes: Sequence[tuple[_Write, Any]]) -> None:
    """Resolve the futures of writes, each on its own event loop."""
    for loop in {write.loop for write, _ in outcomes}:
        # Nobody waits on a loop that was closed meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(
                _resolve, [(write.future, outcome) for write, outcome in outcomes if write.loop is loop]
            )


def _resolve(outcomes: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in outcomes:
        if isinstance(outcome, BaseException):
            settle(future, None, outcome)
        else:
            settle(future, outcome, None)
