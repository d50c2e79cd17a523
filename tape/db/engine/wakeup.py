"""The wake-up: how whoever waits for new entries learns that there may be some.

A commit in this process gives one. For commits of other processes somebody has to watch the database, and only while
somebody waits: on SQLite a thread asks for ``data_version``, a counter in memory that every commit changes; on
PostgreSQL a thread listens for notifications. A ring is a hint and may be missed, so whoever waits bounds the wait.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

__all__ = ["WakeUp", "watch_postgres", "watch_sqlite"]

_POLL = (0.005, 0.05)
"""Seconds between two looks at a SQLite file: soon after a change, and at most."""


class WakeUp:
    """Rung after every commit; waited for by followers of the feed."""

    def __init__(self, watch: Callable[[Callable[[], None], threading.Event], None] | None = None) -> None:
        self._watch = watch
        self._condition = threading.Condition()
        self._calls: dict[object, Callable[[], None]] = {}
        self.waiting = 0
        """How many wait or are to be called: without any, a commit only has to count."""
        self._followers = 0
        self._stop = threading.Event()
        self.count = 0
        """How often it rang, more or less: followers only ask whether it changed."""

    def ring(self) -> None:
        """Wake everybody who waits."""
        # Counted before anybody is looked for: a follower registers before it looks at the count.
        self.count += 1
        if self.waiting:
            with self._condition:
                self._condition.notify_all()
            for call in list(self._calls.values()):
                call()

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait until it rang after the count was ``seen``, or for so many seconds; tells whether it did."""
        with self._condition:
            self.waiting += 1
            try:
                return self._condition.wait_for(lambda: self.count != seen, seconds)
            finally:
                self.waiting -= 1

    @contextmanager
    def following(self, call: Callable[[], None] | None = None) -> Iterator[None]:
        """Have the database watched meanwhile; ``call`` is called, from any thread, whenever it rings."""
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

    def close(self) -> None:
        """End the watch and wake everybody, who will find the store closed."""
        self._stop.set()
        self.ring()


def watch_sqlite(connect: Callable[[], Any], ring: Callable[[], None], stop: threading.Event) -> None:
    """Ring when another connection has committed to the file, until ``stop`` is set."""
    seen, pause = None, _POLL[0]
    # Without a watch followers still look by themselves, only less often.
    with suppress(sqlite3.Error), closing(connect()) as connection:
        while not stop.wait(pause):
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            pause = _POLL[0] if version != seen else min(pause * 1.5, _POLL[1])
            if version != seen:
                seen = version
                ring()


def watch_postgres(connect: Callable[[], Any], channel: str, ring: Callable[[], None], stop: threading.Event) -> None:
    """Ring when another process announces a commit, until ``stop`` is set."""
    import psycopg

    with suppress(psycopg.Error), closing(connect()) as connection:
        connection.execute(f"LISTEN {channel}")
        while not stop.is_set():
            for _ in connection.notifies(timeout=0.5, stop_after=1):
                ring()
