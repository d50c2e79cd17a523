"""The threads in which async adapters call the store.

A hop by ``asyncio.to_thread`` makes two futures that tell each other, which takes a third of the time of a small read.
Here a call has one future, and a thread that has ended a call waits a moment for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

__all__ = ["start"]

_THREADS = 8
_PATIENCE = 0.1
"""How many seconds a thread waits for the next call. The end of the program waits as long."""

R = TypeVar("R")


class _ToEnd(asyncio.Future[R]):
    """A future that a task which is cancelled goes on to wait for: the cancellation reaches the task behind it."""

    def cancel(self, msg: Any = None) -> bool:
        return False


class _Workers:
    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tape-adapter")
        self._lock = threading.Lock()
        self._idle = 0
        """How many threads wait, or are about to, and have no call coming."""

    def start(self, call: Callable[[], R], *, to_end: bool) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = _ToEnd(loop=loop) if to_end else loop.create_future()
        self._calls.put((call, future))
        with self._lock:
            if self._idle:
                self._idle -= 1
                return future
        self._pool.submit(self._work)
        return future

    def _work(self) -> None:
        while True:
            try:
                call, future = self._calls.get(timeout=_PATIENCE)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                # The calls of all that wait are coming.
                continue
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
            del call, future, result, error


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


def start(call: Callable[[], R], *, to_end: bool = False) -> asyncio.Future[R]:
    """Run a call in a thread; await the future for its result. One that was cancelled before it began is left out.

    With ``to_end`` whoever awaits it is cancelled only when it has ended.
    """
    return _workers.start(call, to_end=to_end)
