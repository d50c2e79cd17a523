"""Waiting for a write of another process: read again after every commit, until the timeout."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from tape.db.engine.transaction import Database

__all__ = ["Waiting", "wait_for"]

T = TypeVar("T")
_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.25
"""Seconds between two reads without a wakeup: a bound transaction sends none, nor does an expiry."""


class Waiting(Generic[T]):
    """A read that is repeated until it is ``done``, and the pauses in between. The caller does the waiting."""

    def __init__(self, look: Callable[[], T], done: Callable[[T], bool], seconds: float) -> None:
        self.look = look
        self._done = done
        self._until = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE

    def pause(self, value: T) -> float | None:
        """Return how long to wait before the next read, or None to end with the last value."""
        remaining = self._until - time.monotonic()
        if remaining <= 0 or self._done(value):
            return None
        pause, self._pause = self._pause, min(2 * self._pause, _LAST_PAUSE)
        return min(pause, remaining)


def wait_for(database: Database, waiting: Waiting[T]) -> T:
    """Read until it is done or the timeout is reached, and return the last value."""
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
