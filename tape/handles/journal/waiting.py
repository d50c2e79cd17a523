"""Waiting for what another process will write: look again after every commit, until the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from tape.db.engine.transaction import Database

__all__ = ["Waiting", "wait_for"]

T = TypeVar("T")
_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.25
"""Seconds between two looks while nobody is woken: a bound transaction wakes nobody, nor does time that passes."""


class Waiting(Generic[T]):
    """A look that is repeated until it is ``done``, and how long to wait in between; whoever waits does the waiting."""

    def __init__(self, look: Callable[[], T], done: Callable[[T], bool], seconds: float) -> None:
        self.look = look
        self._done = done
        self._until = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE

    def pause(self, value: T) -> float | None:
        """Return how long to wait before the next look, or None to end with what the last one gave."""
        left = self._until - time.monotonic()
        if left <= 0 or self._done(value):
            return None
        pause, self._pause = self._pause, min(2 * self._pause, _LAST_PAUSE)
        return min(pause, left)


def wait_for(database: Database, waiting: Waiting[T]) -> T:
    """Look until it is done or the time is over, and return what the last look gave."""
    value = waiting.look()
    if waiting.pause(value) is None:
        return value
    wakeup = database.wakeup
    with wakeup.following():
        while True:
            seen = wakeup.count
            value = waiting.look()
            pause = waiting.pause(value)
            if pause is None:
                return value
            wakeup.wait(seen, pause)
