"""Waiting for a commit of this or another process, without a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from tape.db.engine.wakeup import WakeUp

__all__ = ["wait", "woken_by"]


@contextlib.contextmanager
def woken_by(wakeups: Iterable[WakeUp]) -> Iterator[asyncio.Event]:
    """Yield an event that every commit sets. The caller clears it before it reads."""
    loop, committed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        # The loop may have been closed while somebody else still writes.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(committed.set)

    with contextlib.ExitStack() as following:
        for wakeup in wakeups:
            following.enter_context(wakeup.following(wake))
        yield committed


async def wait(committed: asyncio.Event, seconds: float) -> bool:
    """Wait for a commit; tells whether there was one."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(committed.wait(), seconds)
        return True
    return False
