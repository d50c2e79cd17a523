"""Taking turns: a fair lock between the processes that write one SQLite file.

SQLite's own busy handler polls, so under contention some writer waits a hundred times longer than the rest. A
``flock`` on a side file queues writers in the kernel instead. It is also held while SQLite checkpoints, which keeps
clear of a fault that can lose pages when two connections write and checkpoint at one instant. Correctness does not
rest on it: BEGIN IMMEDIATE does, and where the lock cannot be had a writer goes without.
"""

from __future__ import annotations

import contextlib
import os
import threading

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; SQLite's busy handler alone serves there
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileLock"]


class FileLock:
    """A lock file beside the database, held for the length of one transaction. One thread at a time uses it."""

    def __init__(self, path: str | None) -> None:
        self._path = path if fcntl is not None else None
        self._file: int | None = None
        self._queued: _Queued | None = None

    def take(self, patience: float) -> bool:
        """Wait for the turn, at most ``patience`` seconds; tells whether to go on."""
        if self._file is None:
            if self._path is None:
                return True
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError:
                # Another user's file, or no descriptor left: SQLite's own lock will have to do.
                return True
        if self._queued is None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                pass
            except OSError:
                # Some network file systems have no such locks.
                self._path = None
                self.close()
                return True
        return self._wait(self._file, patience)

    def _wait(self, file: int, patience: float) -> bool:
        """Queue in the kernel, but give up after a while: a stopped process may hold the lock for ever.

        Whoever gave up leaves its place in the queue to the next call, so that however often one tries there is one
        thread and one descriptor that waits.
        """
        queued = self._queued
        if queued is None or not queued.resume():
            self._queued = None
            try:
                queued = self._queued = _Queued(file)
            except (OSError, RuntimeError):
                # No descriptor or thread left.
                return True
        if not queued.wait(patience):
            return False
        self._queued = None
        return True

    def give(self) -> None:
        """Let the next one have its turn."""
        if self._file is not None:
            try:  # noqa: SIM105 - every write comes by here, and a context manager takes as long as the call
                fcntl.flock(self._file, fcntl.LOCK_UN)
            except OSError:
                pass

    def forget(self) -> None:
        """Drop the descriptors without unlocking: after a fork it is the parent's lock, not ours."""
        if self._queued is not None:
            # The thread that waits stayed in the parent; its descriptor came along.
            with contextlib.suppress(OSError):
                os.close(self._queued.file)
            self._queued = None
        self.close()

    def close(self) -> None:
        """Drop the descriptor, and with it the lock if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _Queued:
    """A place in the kernel's queue, waited for by a thread because ``flock`` knows no timeout."""

    def __init__(self, file: int) -> None:
        # A descriptor of its own, so that it outlives a close; both are one open file and share the lock.
        self.file = os.dup(file)
        self._change = threading.Lock()
        self._taken = threading.Event()
        self._wanted = True
        self._over = False
        try:
            threading.Thread(target=self._run, name="tape-turn", daemon=True).start()
        except RuntimeError:
            os.close(self.file)
            raise

    def _run(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        with self._change:
            self._over = True
            if self._wanted:
                self._taken.set()
            else:
                fcntl.flock(self.file, fcntl.LOCK_UN)
            os.close(self.file)

    def resume(self) -> bool:
        """Want the turn again; tells whether the thread still waits for it."""
        with self._change:
            self._wanted = True
            return not self._over

    def wait(self, patience: float) -> bool:
        """Wait for the turn; tells whether it was had. If not, or when interrupted, it is not wanted any more."""
        try:
            self._taken.wait(patience)
        finally:
            with self._change:
                self._wanted = self._taken.is_set()
        return self._wanted
