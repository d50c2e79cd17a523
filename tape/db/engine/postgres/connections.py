"""The connections of a store on PostgreSQL: kept when they are not in use, and only so many in use at once.

A signal may interrupt a caller between any two steps. Whatever it was doing, it leaves no place occupied, and no
connection is used again that waits for the rest of an exchange.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tape.db.engine.connect import Unreachable
from tape.db.engine.failures import Raised
from tape.db.engine.process_fork import keep
from tape.db.engine.sharing import Ticket
from tape.errors import StoreBusy

__all__ = ["Connections"]

R = TypeVar("R")

_MOST = 64
"""How many connections one store uses at once; further callers wait for one."""
_KNOCKS = 3
"""How often a connection is tried before the database counts as away."""
_AT_REST = 0
"""What libpq calls a connection outside a transaction, without a statement or a pipeline under way."""


class Connections:
    """Connections for callers in any thread."""

    def __init__(self, connect: Callable[[], Any], timeout: float) -> None:
        self.idle: deque[Any] = deque()
        self._connect = connect
        self._timeout = timeout
        self._closed = False
        self._severed = False
        """Whether the connections are those of the process that this one was forked from."""
        self._change = threading.Lock()
        self._inside: set[Ticket] = set()
        """Those who use a connection."""
        self._queue: deque[Ticket] = deque()
        """Those who wait for one. When it is not empty, nobody else can come in."""

    def use(self, work: Callable[[Any], R]) -> R:
        """Call ``work`` with a connection; StoreBusy if none is to be had in time, Unreachable without a server."""
        ticket = Ticket(())
        connection: Any = None
        left = harmed = False
        interrupted: BaseException | None = None
        try:
            self._enter(ticket)
            connection = self._take()
            return work(connection)
        except BaseException as error:
            harmed = not isinstance(error.error if isinstance(error, Raised) else error, Exception)
            raise
        finally:
            # However often a signal interrupts it, and in no function of its own: the way to it would be interrupted.
            while not left:
                try:
                    used, connection = connection, None
                    if used is not None:
                        self._give_back(used, harmed=harmed)
                    self._leave(ticket)
                    left = True
                except BaseException as error:
                    interrupted = error
            if interrupted is not None:
                raise interrupted

    def drain(self) -> None:
        """Close those that are not in use: the store is closed, or one of them is dead and then all may be."""
        while self.idle:
            with contextlib.suppress(IndexError):
                self.idle.pop().close()

    def close(self) -> None:
        """Close all of them, those in use when they are given back."""
        self._closed = True
        self.drain()

    def sever(self) -> None:
        """Leave the connections to the parent process, whose sockets they are."""
        self._severed = True
        self._change = threading.Lock()

    def _enter(self, ticket: Ticket) -> None:
        with self._change:
            if len(self._inside) < _MOST:
                self._inside.add(ticket)
                return
            self._queue.append(ticket)
        if not ticket.woken.acquire(timeout=self._timeout):
            with self._change:
                if ticket in self._queue:
                    raise StoreBusy(self._timeout)

    def _leave(self, ticket: Ticket) -> None:
        """Make room, however far the caller came; to be called once more where it was interrupted itself."""
        with self._change:
            self._inside.discard(ticket)
            with contextlib.suppress(ValueError):
                self._queue.remove(ticket)
            while self._queue and len(self._inside) < _MOST:
                # Taken from the queue at last: interrupted before, the next who leaves does all of it again.
                self._queue[0].wake()
                self._inside.add(self._queue[0])
                self._queue.popleft()

    def _take(self) -> Any:
        import psycopg

        with contextlib.suppress(IndexError):
            return self.idle.pop()
        attempt = 1
        while True:
            try:
                return self._connect()
            except psycopg.Error as error:
                # A server that restarts may end a connection while it is being made.
                if attempt == _KNOCKS:
                    raise Unreachable(f"cannot connect: {error}") from error
            attempt += 1

    def _give_back(self, connection: Any, *, harmed: bool) -> None:
        if self._severed:
            keep(connection)
        elif harmed or connection.pgconn.transaction_status != _AT_REST or _in_pipeline(connection):
            # Dead, or interrupted inside a statement, whose answer is still to come.
            connection.close()
        else:
            self.idle.append(connection)
            if self._closed:
                self.drain()


def _in_pipeline(connection: Any) -> bool:
    """Whether a pipeline has not been left: after a signal that may be so for the server, or for psycopg alone."""
    return connection.pgconn.pipeline_status != _AT_REST or getattr(connection, "_pipeline", None) is not None
