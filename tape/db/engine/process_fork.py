"""Forks: the process closes its connections to files first, and the child must not use a file that stays open.

SQLite keeps a process's locks on a file in the memory of the process. A forked child inherits that memory but not the
locks. If any connection had the file open at the fork, the child wrongly believes that it holds locks: another process
may delete the write-ahead log, and the child's commits are lost. So this module opens all connections to files, tracks
them, and closes them before a fork. If one stays open (another thread is in a transaction, or the application has its
own engine on the file), the child refuses to use that file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
import weakref
from typing import Any, Protocol, TypeVar

# Hooks for forks run in reverse order of registration. These two modules hold locks over a fork, which other threads
# may need to finish their work in the database. So they must register their hooks before this module.
import tape.core.typed
import tape.db.schema.lazy  # noqa: F401
from tape.errors import ProcessForked

__all__ = [
    "RenewedLock",
    "StoreConnection",
    "check_inherited",
    "connect",
    "keep",
    "on_fork",
    "renew_in_child",
    "wait_for_fork",
]

_PATIENCE = 0.5
"""The most seconds that a fork waits for other threads to finish their work in the database."""


class Forking(Protocol):
    """An object with hooks for forks of the process."""

    def before_fork(self) -> bool:
        """Release what no thread uses. Repeated until it returns that nothing is left, or the patience ends."""

    def after_fork(self, *, child: bool) -> None:
        """Resume in the parent, or start again in the child, which has no other threads."""


class Renewed(Protocol):
    """An object that a forked child resets."""

    def renew(self) -> None:
        """Forget the other threads of the parent, and their locks."""


class StoreConnection(sqlite3.Connection):
    """A connection to a file. An inherited one is never closed: closing it would undo a transaction of the parent."""

    inherited = False

    def close(self) -> None:
        """Close the connection, unless it is the parent's."""
        if not self.inherited:
            super().close()
            _connections.pop(id(self), None)


class RenewedLock:
    """A lock that is free in a forked child."""

    def __init__(self) -> None:
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


T = TypeVar("T")

_known: weakref.WeakValueDictionary[int, Forking] = weakref.WeakValueDictionary()
_renewed: weakref.WeakValueDictionary[int, Renewed] = weakref.WeakValueDictionary()
_connections: weakref.WeakValueDictionary[int, StoreConnection] = weakref.WeakValueDictionary()
"""The connections to files that are open in this process."""
_opening: set[object] = set()
"""Stands for the connections that threads are opening."""
_inherited: set[tuple[int, int]] = set()
"""The device and number of every file that was open when this process was forked."""
_one_fork = threading.RLock()
"""Held while the process forks."""
_forking = False


def on_fork(thing: Forking) -> None:
    """Tell something of every fork, for as long as it exists."""
    _known[id(thing)] = thing


def renew_in_child(thing: Renewed) -> None:
    """Renew something in every child, for as long as it exists."""
    _renewed[id(thing)] = thing


def connect(
    path: str, address: str | None = None, *, factory: type[StoreConnection] = StoreConnection, **options: Any
) -> StoreConnection:
    """Connect to the file at ``path``, by its URI if that is given. Raises ProcessForked."""
    while True:
        wait_for_fork()
        check_inherited(path)
        token = object()
        _opening.add(token)
        try:
            # A fork that began before this was noted does not wait for it.
            if not _forking or _one_fork._is_owned():  # type: ignore[attr-defined]
                connection = sqlite3.connect(address or path, uri=address is not None, factory=factory, **options)
                _connections[id(connection)] = connection
                return connection
        finally:
            _opening.discard(token)


def wait_for_fork() -> None:
    """Wait while another thread forks."""
    if _forking:
        with _one_fork:
            pass


def check_inherited(path: str) -> None:
    """Raise ProcessForked for a file that was open when this process was forked."""
    if _inherited:
        try:
            status = os.stat(path)
        except OSError:
            return
        if (status.st_dev, status.st_ino) in _inherited:
            raise ProcessForked(repr(path))


def keep(thing: object) -> None:
    """Keep something beyond the end of the program, since to collect it would speak on a connection of the parent."""
    with contextlib.suppress(ImportError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _alive(known: weakref.WeakValueDictionary[int, T]) -> list[T]:
    # In one step of the interpreter, since other threads may add to it.
    return [thing for reference in known.valuerefs() if (thing := reference()) is not None]


def _open_files() -> set[tuple[int, int]]:
    """Return the device and number of every file that this process has open."""
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        numbers = list(range(min(os.sysconf("SC_OPEN_MAX"), 65_536)))
    files = set()
    for number in numbers:
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode):
                files.add((status.st_dev, status.st_ino))
    return files


def _before() -> None:
    global _forking
    _one_fork.acquire()
    _forking = True
    deadline = time.monotonic() + _PATIENCE
    while True:
        waiting = [thing for thing in _alive(_known) if not thing.before_fork()]
        if not (waiting or _connections or _opening) or time.monotonic() >= deadline:
            return
        time.sleep(0.001)


def _after_in_parent() -> None:
    global _forking
    _forking = False
    for thing in _alive(_known):
        thing.after_fork(child=False)
    _one_fork.release()


def _after_in_child() -> None:
    global _forking, _one_fork
    _forking, _one_fork = False, threading.RLock()
    _opening.clear()
    _inherited.update(_open_files())
    for connection in _alive(_connections):
        connection.inherited = True
        keep(connection)
    _connections.clear()
    for thing in _alive(_known):
        thing.after_fork(child=True)
    for renewed in _alive(_renewed):
        renewed.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
