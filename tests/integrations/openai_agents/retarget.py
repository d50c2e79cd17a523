"""A pytest plugin for the SDK's own tests: whoever asks for an SQLite session is given a TapeSession.

Each database of a test is a store of its own: a file, or a schema of the PostgreSQL that ``TAPE_SDK_STORE`` names.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory
import agents.extensions.memory.async_sqlite_session

# Before the replacement: it asks whether a session is SQLite's own.
import agents.extensions.memory.encrypt_session
import agents.memory
import agents.memory.sqlite_session

import tape
from tape.integrations.openai_agents import TapeSession

SERVER = os.environ.get("TAPE_SDK_STORE")
stores: dict[str, tape.Store] = {}


def store_of(path: str) -> tape.Store | str:
    """Return the store that stands for an SQLite file."""
    if SERVER is None:
        return path
    if path == ":memory:":
        path = secrets.token_hex(8)
    if path not in stores:
        stores[path] = tape.open(SERVER, schema=f"sdk_{secrets.token_hex(8)}")
    return stores[path]


def pytest_runtest_logfinish() -> None:
    """Give the connections of a test back: a server has only so many."""
    while stores:
        stores.popitem()[1].close()


class OnTape(TapeSession):
    """A TapeSession that is made as the SDK's SQLiteSession is."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", *, session_settings: Any = None) -> None:
        self.db_path = db_path
        super().__init__(session_id, store_of(str(db_path)), session_settings=session_settings)


class AwaitedOnTape(OnTape):
    """The same for AsyncSQLiteSession."""

    async def close(self) -> None:  # type: ignore[override]
        """Close it as that one is closed."""
        await self.aclose()


for module in (agents, agents.memory, agents.memory.sqlite_session):
    module.SQLiteSession = OnTape
for module in (agents.extensions.memory, agents.extensions.memory.async_sqlite_session):
    module.AsyncSQLiteSession = AwaitedOnTape
