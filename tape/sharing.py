"""Shared databases: the stores of a process that are opened with ``shared=True`` use one set of connections.

Each store holds a part of the database, and is closed by itself. The last part that is closed, or that nobody holds any
more, closes the database.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from inspect import isfunction
from typing import Any, NoReturn, cast

from tape.db.engine.transaction import Database
from tape.errors import StoreFailed

__all__ = ["join"]

_FIXED = ("engine", "timeout", "tables", "statements", "postgres", "read_only", "driver_error", "heads")
"""What never changes of an open database."""
_HARMLESS = frozenset({"outside", "check_writable", "point", "close"})
"""Methods that a closed store may call as well; they do not reach the database."""


class _Opened:
    """A database that is open, and who uses it."""

    def __init__(self, place: str, path: str | None) -> None:
        self.place = place
        self.path = path
        self.file: tuple[int, int] | None = None
        """The file as the system knows it, once it is open."""
        self.users: set[object] = set()
        self.over = False
        """Whether the last user has left, so that nobody may come any more."""
        self.opening = threading.Lock()
        self.database: Database | None = None

    def is_there(self) -> bool:
        """Whether the database is what others find at its place; not if its file was removed or replaced."""
        return self.database is None or self.file == _identity(self.path)

    def leave(self, user: object) -> None:
        """Let a user go, and close the database after the last one."""
        with _lock:
            self.users.discard(user)
            if self.users or self.over:
                return
            self.over = True
            if _opened.get(self.place) is self:
                del _opened[self.place]
        # Not under the lock: to close waits for writers, and one of them may come to ``leave`` by garbage collection.
        if self.database is not None:
            try:
                self.database.close()
            except BaseException:
                # From inside a write. It stays open, and its last user.
                with _lock:
                    self.users.add(user)
                    self.over = False
                    _opened.setdefault(self.place, self)
                raise


class _Part:
    """A database as one of several stores has it. Closed, it cannot be used, while the others go on."""

    def __init__(self, opened: _Opened, user: object) -> None:
        self._opened = opened
        self._user = user
        self._database = cast(Database, opened.database)
        self._closed = False
        self._leave = weakref.finalize(self, opened.leave, user)
        for name in _FIXED:
            setattr(self, name, getattr(self._database, name))
        self._bind()

    def _bind(self) -> None:
        """Have the methods of the database as its own, so that to call one costs nothing more; closed, they refuse."""
        for name in dir(type(self._database)):
            method = getattr(type(self._database), name)
            if isfunction(method) and not name.startswith("__") and name not in _HARMLESS:
                self.__dict__[name] = _refuse if self._closed else getattr(self._database, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Whoever asks whether this is SQLite means the database.
        return type(self._database)

    fault = property(lambda self: self._database.fault)
    """Asked for by every write, and so not left to ``__getattr__``, which takes longer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @property
    def closed(self) -> bool:
        """Whether this part was closed, or all of the database."""
        return self._closed or self._database.closed

    def close(self) -> None:
        """Let go of the database; a second close does nothing."""
        if not self._closed:
            self._closed = True
            self._bind()
            # Followers of this store look up, and find it closed.
            self._database.wakeup.ring()
            try:
                self._leave()
            except BaseException:
                self._closed = False
                self._bind()
                self._leave = weakref.finalize(self, self._opened.leave, self._user)
                raise


def _refuse(*args: object, **options: object) -> NoReturn:
    raise StoreFailed("the store is closed")


_opened: dict[str, _Opened] = {}
_lock = threading.RLock()
"""May be entered again: a store that nobody holds any more can vanish, and leave, while another one is opened."""


def _identity(path: str | None) -> tuple[int, int] | None:
    """Return which file is at a path, or None if there is none."""
    try:
        found = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def join(place: str, make: Callable[[], Database], path: str | None = None) -> Database:
    """Return a part of the database at a place, which is opened by ``make`` unless it is open in this process.

    ``path`` is its file, if it has one.
    """
    user = object()
    while True:
        with _lock:
            opened = _opened.get(place)
            if opened is None or not opened.is_there():
                # Who uses a file that is gone goes on with it, and nobody else joins.
                opened = _opened[place] = _Opened(place, path)
            opened.users.add(user)
            if not opened.over:
                break
    try:
        # Whoever comes meanwhile waits here, and tries it again if it fails.
        with opened.opening:
            if opened.database is None:
                opened.database = make()
                opened.file = _identity(path)
        return cast(Database, _Part(opened, user))
    except BaseException:
        opened.leave(user)
        raise


def _forked() -> None:
    """Let a forked process open databases of its own. Stores that it inherits have their own connections there."""
    global _lock
    _lock = threading.RLock()
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
