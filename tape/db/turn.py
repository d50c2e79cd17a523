"""Taking turns: a fair lock between the processes that write one SQLite file.

SQLite's own busy handler polls, so under contention some writer waits a hundred times longer than the rest. A
``flock`` on a side file queues writers in the kernel instead. It is also held while SQLite checkpoints, which keeps
clear of a fault that can lose pages when two connections write and checkpoint at one instant. Correctness does not
rest on it: BEGIN IMMEDIATE does.
"""

from __future__ import annotations

import os
import threading

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; SQLite's busy handler alone serves there
    fcntl = None  # type: ignore[assignment]

from tape.errors import StoreBusy

__all__ = ["Turn"]


class Turn:
    """A lock file beside the database, held for the length of one transaction."""

    def __init__(self, path: str | None, timeout: float) -> None:
        self._path = path if fcntl is not None else None
        self._timeout = timeout
        self._file: int | None = None

    def take(self) -> None:
        """Wait for the turn. Raises StoreBusy after the timeout."""
        if self._file is None:
            if self._path is None:
                return
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait(self._file)

    def _wait(self, file: int) -> None:
        """Queue in the kernel, but give up after the timeout: a stopped process may hold the lock for ever."""
        gave_up = threading.Event()
        taken = threading.Event()
        hand = threading.Lock()

        def queue() -> None:
            # A descriptor of its own, so that giving up never drops a lock that a later turn took.
            own = os.dup(file)
            try:
                fcntl.flock(own, fcntl.LOCK_EX)
                with hand:
                    if gave_up.is_set():
                        fcntl.flock(own, fcntl.LOCK_UN)
                        os.close(file)
                    else:
                        taken.set()
            finally:
                os.close(own)

        threading.Thread(target=queue, name="tape-turn", daemon=True).start()
        if not taken.wait(self._timeout):
            with hand:
                if not taken.is_set():
                    gave_up.set()
                    # The thread shares this open file, so the next turn needs another.
                    self._file = None
                    raise StoreBusy(self._timeout)

    def give(self) -> None:
        """Let the next one have its turn."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def forget(self) -> None:
        """Drop the descriptor without unlocking: after a fork it is the parent's lock, not ours."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    close = forget
