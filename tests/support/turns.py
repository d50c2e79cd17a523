"""Turns on a server that other test processes use as well.

Transaction ids count for a whole server: while any other program has a transaction open that writes, the feed of every
store there ends before it. Advisory locks, roles and databases are shared, too. So only one test at a time is on a
server that several processes were pointed at, whichever process it belongs to. A server that a process starts for
itself is its own, and nobody waits for it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

__all__ = ["Turn", "needs_postgres"]

LOCK = 0x7461_7065_2074_6573
"""The advisory lock that whoever has the turn holds: "tape tes" in ASCII."""
PATIENCE = "30min"
"""How long to wait for the tests of others. The longest at full size takes a few minutes."""

_MAY_USE_EITHER = "make_backend"
_USE_POSTGRES = {"postgres_url", "schemas", "pair"}


class Turn:
    """The right of this process to be on a server, taken for one test at a time."""

    def __init__(self, dsn: str, patience: str = PATIENCE) -> None:
        self._dsn = dsn
        self._patience = patience
        self._connection: psycopg.Connection[Any] | None = None
        self.taken = False

    def take(self) -> None:
        """Wait until no other process has the turn; who has it already goes on."""
        if self.taken:
            return
        if self._connection is None:
            # The lock is a session's, so that it is free again when this process is gone, however it went.
            self._connection = psycopg.connect(self._dsn, autocommit=True, application_name="tape tests in turn")
            self._connection.execute("SELECT set_config('lock_timeout', %s, false)", [self._patience])
        self._connection.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        self.taken = True

    def leave(self) -> None:
        """Let another process have its turn."""
        if self.taken and self._connection is not None:
            self.taken = False
            self._connection.execute("SELECT pg_advisory_unlock(%s)", [LOCK])

    def close(self) -> None:
        """Leave for good."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self.taken = None, False


def needs_postgres(item: pytest.Item) -> bool:
    """Tell whether a test is on PostgreSQL from its beginning, as far as its fixtures and parameters say."""
    fixtures = set(getattr(item, "fixturenames", ()))
    case = getattr(item, "callspec", None)
    engines = [] if case is None else [value for value in case.params.values() if isinstance(value, str)]
    if fixtures & _USE_POSTGRES or "postgresql" in engines:
        return True
    return _MAY_USE_EITHER in fixtures and "sqlite" not in engines
