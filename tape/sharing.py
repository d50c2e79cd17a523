"""Shared databases: the stores of a process that are opened with ``shared=True`` use one set of connections.

Each store holds a part of the database, and is closed by itself. The last part that is closed, or that nobody holds any
more, closes the database. The end of the program closes nothing, as with a store that is not shared: what runs at exit
can still write.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import Any, NoReturn, TypeVar, cast

from tape.db.engine.process_fork import renew_in_child
from tape.db.engine.transaction import Database
from tape.errors import StoreFailed

__all__ = ["join"]

R = TypeVar("R")

_FIXED = ("engine", "timeout", "tables", "statements", "postgres", "read_only", "driver_error", "heads")
"""What never changes of an open database."""
_HARMLESS = frozenset({"outside", "check_writable", "point", "close"})
"""Methods that a closed store may call as well; they do not reach the database."""
_WRITES = frozenset({"write", "repeat", "share", "transact"})
"""Methods that write, for which a close waits."""


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

    def retire(self) -> None:
        """Let nobody else come. Who is here already goes on with it."""
        with _locked():
            if _opened.get(self.place) is self:
                del _opened[self.place]

    def leave(self, user: object) -> None:
        """Let a user go, and close the database after the last one."""
        nested = _lock._is_owned()  # type: ignore[attr-defined]
        with _locked():
            self.users.discard(user)
            if self.users:
                return
            self.over = True
            self.retire()
            if nested:
                _unused.append(self)
        if not nested:
            self.shut()

    def shut(self) -> None:
        """Close the database, never under the lock: that waits for writers, and one of them may come to ``leave``."""
        if self.database is not None:
            self.database.close()


class _Writes:
    """The writes of one store that are under way."""

    def __init__(self) -> None:
        self.closed = False
        self._threads: dict[object, int] = {}
        """The thread of each."""
        self._ended = threading.Condition()
        renew_in_child(self)

    def counted(self, method: Callable[..., R]) -> Callable[..., R]:
        """Return a method that writes, so that a close waits for it."""
        threads = self._threads

        def write(*args: Any, **options: Any) -> R:
            call = object()
            # A signal comes neither between this and ``try``, nor before ``del``.
            threads[call] = threading.get_ident()
            try:
                if self.closed:
                    _refuse()
                return method(*args, **options)
            finally:
                del threads[call]
                if self.closed:
                    with self._ended:
                        self._ended.notify_all()

        return write

    def close(self, database: Database) -> None:
        """Let no more writes begin, and wait for those under way where a store that is not shared does.

        StoreFailed from inside one of them, or from inside another write of this thread that they may wait for.
        """
        if self._threads and (threading.get_ident() in self._threads.values() or database.inside):
            raise StoreFailed("the store cannot be closed inside a write or a transaction; close it afterwards")
        self.closed = True
        try:
            with self._ended:
                while self._threads and not database.postgres:
                    # Looked at again, since a signal may have come before the notice.
                    self._ended.wait(1.0)
        except BaseException:
            self.closed = False
            raise

    def renew(self) -> None:
        """Forget the writes of threads that are not there in a process that was just forked."""
        me = threading.get_ident()
        for call in [call for call, thread in self._threads.items() if thread != me]:
            del self._threads[call]
        self._ended = threading.Condition()


class _Part:
    """A database as one of several stores has it. Closed, it cannot be used, while the others go on."""

    def __init__(self, opened: _Opened, user: object) -> None:
        self._opened = opened
        self._user = user
        self._database = cast(Database, opened.database)
        self._writes = _Writes()
        leave = weakref.finalize(self, opened.leave, user)
        leave.atexit = False
        self._leave = leave
        for name in _FIXED:
            setattr(self, name, getattr(self._database, name))
        self._bind()

    def _bind(self) -> None:
        """Have the methods of the database as its own, so that to call one costs little more; closed, they refuse."""
        for name in dir(type(self._database)):
            method = getattr(type(self._database), name)
            if isfunction(method) and not name.startswith("__") and name not in _HARMLESS:
                call = getattr(self._database, name)
                if name in _WRITES:
                    call = self._writes.counted(call)
                self.__dict__[name] = _refuse if self._writes.closed else call

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
        return self._writes.closed or self._database.closed

    def close(self) -> None:
        """Let go of the database; a second close does nothing."""
        if not self._writes.closed:
            self._writes.close(self._database)
        # All of this can be done again, after a signal that came in between.
        self._bind()
        # Followers of this store look up, and find it closed.
        self._database.wakeup.ring()
        self._opened.leave(self._user)
        self._leave.detach()


def _refuse(*args: object, **options: object) -> NoReturn:
    raise StoreFailed("the store is closed")


_opened: dict[str, _Opened] = {}
_unused: list[_Opened] = []
"""Those whose last user has left by garbage collection while this thread had the lock."""
_lock = threading.RLock()
"""May be entered again: a store that nobody holds any more can vanish, and leave, while another one is opened."""


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock, and close afterwards what was left meanwhile."""
    try:
        with _lock:
            yield
    finally:
        while _unused and not _lock._is_owned():  # type: ignore[attr-defined]
            with contextlib.suppress(IndexError):
                _unused.pop().shut()


def _identity(path: str | None) -> tuple[int, int] | None:
    """Return which file is at a path, or None if there is none."""
    try:
        found = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def join(
    place: str, make: Callable[[], Database], is_current: Callable[[Database], bool], path: str | None = None
) -> Database:
    """Return a part of the database at a place, which is opened by ``make`` unless it is open in this process.

    One that is not what ``make`` would open any more, as ``is_current`` tells, is left to those who use it: nobody else
    joins them. ``path`` is its file, if it has one.
    """
    user = object()
    while True:
        opened = None
        try:
            with _locked():
                opened = _opened.get(place)
                if opened is None or opened.over or not opened.is_there():
                    opened = _opened[place] = _Opened(place, path)
                opened.users.add(user)
            # Whoever comes meanwhile waits here, and tries it again if it fails.
            with opened.opening:
                if opened.database is None:
                    opened.database = make()
                    opened.file = _identity(path)
                elif not is_current(opened.database):
                    opened.retire()
                    opened.leave(user)
                    continue
            return cast(Database, _Part(opened, user))
        except BaseException:
            if opened is not None:
                opened.leave(user)
            raise


def _forked() -> None:
    """Let a forked process open databases of its own. Stores that it inherits have their own connections there."""
    global _lock
    _lock = threading.RLock()
    _opened.clear()
    _unused.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
