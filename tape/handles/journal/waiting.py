"""Waiting for a write of another process: read again after every commit, until the timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tape.db.engine.transaction import Database
from tape.db.feed.pauses import Pauses

__all__ = ["Waiting", "wait_for"]

T = TypeVar("T")


class Waiting(Generic[T]):
    """A read that is repeated until it is ``done``, and the pauses in between. The caller does the waiting."""

    def __init__(self, look: Callable[[], T], done: Callable[[T], bool], seconds: float) -> None:
        self.look = look
        self._done = done
        self._pauses = Pauses(seconds)

    def pause(self, value: T) -> float | None:
        """Return how long to wait before the next read, or None to end with the last value."""
        return None if self._done(value) else self._pauses.next()


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
