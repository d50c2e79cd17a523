"""Worker threads whose calls are awaited.

A hop through ``concurrent.futures`` makes two futures that tell each other, which takes half of the time of a hop. Here
a call has one future, and a thread that has ended a call waits for the next. The threads end when they are shut down,
when nobody holds what started them any more, or with the program, which waits for the calls that were made.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from tape.db.engine.process_fork import renew_in_child

__all__ = ["ShutDown", "WorkerThreads", "is_ending", "run_for", "settle", "until_ended"]

R = TypeVar("R")
Call = Callable[[], Callable[[], object]]
"""What a thread runs. It must not raise. What it returns is called when the thread is free for the next call."""


class ShutDown(RuntimeError):
    """The threads take no more calls."""


class _ToEnd(asyncio.Future[R]):
    """A future that a task which is cancelled goes on to wait for: the cancellation reaches the task behind it."""

    def cancel(self, msg: Any = None) -> bool:
        """Go on."""
        return False


class WorkerThreads:
    """Threads that are started when they are needed, so many at most."""

    def __init__(self, most: int, name: str) -> None:
        # The threads hold the crew and not this object, whose end is theirs.
        self._crew = _Crew(most, name)
        weakref.finalize(self, self._crew.stop).atexit = False

    def submit(self, call: Call) -> None:
        """Have a call run; raises ShutDown when no more are taken."""
        self._crew.add(call)

    def start(self, call: Callable[[], R], *, to_end: bool = False) -> asyncio.Future[R]:
        """Run a call; await the future for its result. One that was cancelled before it began is left out.

        With ``to_end`` whoever awaits it is cancelled only when it has ended.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = _ToEnd(loop=loop) if to_end else loop.create_future()
        self._crew.add(partial(run_for, future, call))
        return future

    def shutdown(self, *, wait: bool) -> None:
        """End the threads behind the calls that were made, and take no more."""
        threads = self._crew.stop()
        if wait:
            for thread in threads:
                thread.join()


class _Crew:
    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._stopped = False
        self.renew()
        _crews.add(self)
        renew_in_child(self)

    def renew(self) -> None:
        """Begin without threads, as a forked process has to, which has none of them."""
        # Never asked with a timeout: Python 3.11 may then wait for ever if another thread takes what it was woken for.
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        """How many threads wait and have no call coming. Too many when there were more calls than threads can be."""

    def add(self, call: Call) -> None:
        with self._lock:
            if self._stopped:
                raise ShutDown("the worker threads were shut down")
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < self._most:
                self._start()
            self._calls.put(call)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system gives no more: those that run take the call, if there are any.
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def stop(self) -> list[threading.Thread]:
        with self._lock:
            if not self._stopped:
                self._stopped = True
                for _ in self._threads:
                    self._calls.put(None)
            return self._threads

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            tell = call()
            # Counted first: whoever is told may come back with a call before this thread waits again.
            with self._lock:
                self._idle += 1
            tell()
            # Not kept while this thread waits.
            del call, tell


_crews: weakref.WeakSet[_Crew] = weakref.WeakSet()


_ending = threading.Event()
"""Set when the program ends."""


def is_ending() -> bool:
    """Whether the program ends, and waits for its threads."""
    return _ending.is_set()


def _stop_all() -> None:
    """Wait for the calls that were made, also those of a loop that nobody runs any more."""
    _ending.set()
    for thread in [thread for crew in list(_crews) for thread in crew.stop()]:
        thread.join()


atexit.register(_stop_all)


def run_for(future: asyncio.Future[R], call: Callable[[], R]) -> Callable[[], object]:
    """Run a call, and return what tells the event loop of the future how it ended."""
    result, error = None, None
    if not future.cancelled():
        try:
            result = call()
        except BaseException as raised:
            error = raised
    return partial(_tell, future, result, error)


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    try:  # noqa: SIM105 - every call comes by here, and a context manager takes as long as the call
        future.get_loop().call_soon_threadsafe(settle, future, result, error)
    except RuntimeError:
        # A loop that was closed meanwhile has nobody who waits.
        pass


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """End a future on its event loop."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # No future takes it: inside a coroutine it would mean that this ended.
        future.set_exception(RuntimeError("a callback raised StopIteration"))
    else:
        future.set_exception(error)


def until_ended(work: Coroutine[Any, Any, R]) -> asyncio.Future[R]:
    """Begin what is awaited; whoever awaits the future is cancelled only when it has ended."""
    future, task = _ToEnd[R](), asyncio.ensure_future(work)
    task.add_done_callback(lambda done: settle(future, None if done.exception() else done.result(), done.exception()))
    return future
