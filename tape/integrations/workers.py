"""The threads in which async adapters call the store.

A hop by ``asyncio.to_thread`` makes two futures that tell each other, which takes a third of the time of a small read.
Here a call has one future, and a thread that has ended a call waits for the next. The end of the program ends them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["start", "started"]

_THREADS = 8

R = TypeVar("R")


class _ToEnd(asyncio.Future[R]):
    """A future that a task which is cancelled goes on to wait for: the cancellation reaches the task behind it."""

    def cancel(self, msg: Any = None) -> bool:
        return False


class _Workers:
    def __init__(self) -> None:
        # Never asked with a timeout: Python 3.11 may then wait for ever if another thread takes what it was woken for.
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0
        """How many threads wait and have no call coming. Too many when there were more calls than threads can be."""

    def start(self, call: Callable[[], R], *, to_end: bool) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = _ToEnd(loop=loop) if to_end else loop.create_future()
        self._calls.put((call, future))
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < _THREADS:
                thread = threading.Thread(target=self._work, name="tape-adapter", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def stop(self) -> None:
        """End the threads, each behind the calls that were started."""
        with self._lock:
            threads, self._threads, self._idle = self._threads, [], 0
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            call, future = work
            result, error = None, None
            if not future.cancelled():
                try:
                    result = call()
                except BaseException as raised:
                    error = raised
            with self._lock:
                self._idle += 1
            # A loop that was closed meanwhile has nobody who waits.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            # Not kept while this thread waits.
            del work, call, future, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # No future takes it: inside a coroutine it would mean that this ended.
        future.set_exception(RuntimeError("a call of the store raised StopIteration"))
    else:
        future.set_exception(error)


_workers = _Workers()


def _renew() -> None:
    """Begin anew in a forked process, which has none of the threads."""
    global _workers
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
# Calls that were started are waited for, also those of a loop that nobody runs any more.
atexit.register(lambda: _workers.stop())


def start(call: Callable[[], R], *, to_end: bool = False) -> asyncio.Future[R]:
    """Run a call in a thread; await the future for its result. One that was cancelled before it began is left out.

    With ``to_end`` whoever awaits it is cancelled only when it has ended.
    """
    return _workers.start(call, to_end=to_end)


def started(work: Coroutine[Any, Any, R]) -> asyncio.Future[R]:
    """Begin what is awaited; whoever awaits the future is cancelled only when it has ended."""
    future, task = _ToEnd[R](), asyncio.ensure_future(work)
    task.add_done_callback(lambda done: _settle(future, None if done.exception() else done.result(), done.exception()))
    return future
