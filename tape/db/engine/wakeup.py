"""The wake-up tells waiting callers that there may be new entries.

A commit in this process rings it. For commits of other processes a thread watches the database, but only while a caller
waits: on SQLite it polls the time and size of the file and its log, which every commit changes; on PostgreSQL it
listens for notifications. A ring is a hint and may be missed, so callers wait with a timeout.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

__all__ = ["WakeUp", "watch_files", "watch_postgres"]

_POLL = (0.005, 0.05)
"""Seconds between two looks at a SQLite file: soon after a change, and at most."""
_TICK = 0.02
"""Seconds in which a further change may leave a file's time unchanged: the kernel's clock advances in steps."""


class WakeUp:
    """Rung after every commit; waited for by followers of the feed."""

    def __init__(self, watch: Callable[[Callable[[], None], threading.Event], None] | None = None) -> None:
        self._watch = watch
        self._condition = threading.Condition()
        self._calls: dict[object, Callable[[], None]] = {}
        self.waiting = 0
        """The number of waiters and callbacks. While it is 0, a commit only increments the count."""
        self._followers = 0
        self._stop = threading.Event()
        self.count = 0
        """The approximate number of rings: followers only check whether it changed."""

    def ring(self) -> None:
        """Wake all waiters."""
        # Count first, then look for waiters: a follower registers before it reads the count.
        self.count += 1
        if self.waiting:
            with self._condition:
                self._condition.notify_all()
            for call in list(self._calls.values()):
                call()

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait at most ``seconds`` for a ring after the count was ``seen``; return whether it rang."""
        with self._condition:
            self.waiting += 1
            try:
                return self._condition.wait_for(lambda: self.count != seen, seconds)
            finally:
                self.waiting -= 1

    @contextmanager
    def following(self, call: Callable[[], None] | None = None) -> Iterator[None]:
        """Watch the database inside the block. Each ring calls ``call``, from any thread."""
        token = object()
        with self._condition:
            if call is not None:
                self._calls[token] = call
                self.waiting += 1
            self._followers += 1
            if self._followers == 1 and self._watch is not None:
                self._stop = threading.Event()
                threading.Thread(
                    target=self._watch, args=(self.ring, self._stop), name="tape-watch", daemon=True
                ).start()
        try:
            yield
        finally:
            with self._condition:
                if self._calls.pop(token, None) is not None:
                    self.waiting -= 1
                self._followers -= 1
                if self._followers == 0:
                    self._stop.set()

    def forget(self) -> None:
        """Forget the other threads, in a forked child that has none."""
        self._condition = threading.Condition()
        self._calls.clear()
        self.waiting = 0

    def close(self) -> None:
        """End the watch and wake all waiters, which find the store closed."""
        self._stop.set()
        self.ring()


def watch_files(path: str, ring: Callable[[], None], stop: threading.Event) -> None:
    """Ring when a SQLite file or its log has changed, until ``stop`` is set. It may ring without a change."""
    seen, pause = None, _POLL[0]
    while not stop.wait(pause):
        now = [_changed(path), _changed(f"{path}-wal")]
        age = time.time() - max(changed for _, changed in now) / 1e9
        if now != seen or 0 <= age <= _TICK:
            seen, pause = now, _POLL[0]
            ring()
        else:
            pause = min(pause * 1.5, _POLL[1])


def _changed(path: str) -> tuple[int, int]:
    """Return the size of a file and when it was changed."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def watch_postgres(connect: Callable[[], Any], channel: str, ring: Callable[[], None], stop: threading.Event) -> None:
    """Ring when another process announces a commit, until ``stop`` is set."""
    import psycopg

    with suppress(psycopg.Error), closing(connect()) as connection:
        connection.execute(f"LISTEN {channel}")
        while not stop.is_set():
            for _ in connection.notifies(timeout=0.5, stop_after=1):
                ring()
