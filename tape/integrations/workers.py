"""The threads in which async adapters call the store, the same for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tape.aio.workers import ToEnd, WorkerThreads, settle

__all__ = ["start", "started"]

R = TypeVar("R")

_workers = WorkerThreads(8, "tape-adapter")


def start(call: Callable[[], R], *, to_end: bool = False) -> asyncio.Future[R]:
    """Run a call in a thread; await the future for its result. One that was cancelled before it began is left out.

    With ``to_end`` whoever awaits it is cancelled only when it has ended.
    """
    return _workers.start(call, to_end=to_end)


def started(work: Coroutine[Any, Any, R]) -> asyncio.Future[R]:
    """Begin what is awaited; whoever awaits the future is cancelled only when it has ended."""
    future, task = ToEnd[R](), asyncio.ensure_future(work)
    task.add_done_callback(lambda done: settle(future, None if done.exception() else done.result(), done.exception()))
    return future
