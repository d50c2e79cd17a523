"""Claude Agent SDK: it brings no store for files, so the other side is the plainest one: a table of JSON lines."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.adapters import Side, answer, question
from benchmarks.peers import Place

PACKAGE = "claude-agent-sdk"
THEIRS = "a table of JSON lines"
BAR = None

KEY = {"project_key": "-home-dev-shop", "session_id": "chat"}
Line = dict[str, Any]


class Table:
    """Lines in a table, unique by uuid, with the summary that the SDK asks for; a transaction per batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE line (number INTEGER PRIMARY KEY, key TEXT, uuid TEXT UNIQUE, line TEXT)")
        connection.execute("CREATE INDEX place ON line (key, number)")
        connection.execute("CREATE TABLE summary (key TEXT PRIMARY KEY, data TEXT)")
        self._connection = connection

    async def append(self, key: dict[str, str], lines: list[Line]) -> None:
        await asyncio.to_thread(self._append, json.dumps(key), key, lines)

    async def load(self, key: dict[str, str]) -> list[Line]:
        return await asyncio.to_thread(self._load, json.dumps(key))

    def _append(self, name: str, key: dict[str, str], lines: list[Line]) -> None:
        from claude_agent_sdk import fold_session_summary

        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        rows = [(name, line.get("uuid"), json.dumps(line)) for line in lines]
        insert = "INSERT INTO line (key, uuid, line) VALUES (?, ?, ?) ON CONFLICT (uuid) DO NOTHING"
        self._connection.executemany(insert, rows)
        row = execute("SELECT data FROM summary WHERE key = ?", (name,)).fetchone()
        folded = fold_session_summary(json.loads(row[0]) if row else None, key, lines)
        execute("INSERT OR REPLACE INTO summary VALUES (?, ?)", (name, json.dumps(folded)))
        execute("COMMIT")

    def _load(self, name: str) -> list[Line]:
        rows = self._connection.execute("SELECT line FROM line WHERE key = ? ORDER BY number", (name,))
        return [json.loads(line) for (line,) in rows.fetchall()]

    def close(self) -> None:
        self._connection.close()


def lines(number: int) -> list[Line]:
    """Return a turn as the SDK's program writes it."""
    fields = {"isSidechain": False, "cwd": "/home/dev/shop", "sessionId": "chat", "version": "2.1.326"}
    stamp = "2026-03-01T10:00:01.000Z"
    asked, told = f"q{number:035d}", f"a{number:035d}"
    said = {"id": f"msg_{number}", "role": "assistant", "content": [{"type": "text", "text": answer(number)}]}
    behind = f"a{number - 1:035d}" if number else None
    user = {"role": "user", "content": question(number)}
    return [
        {**fields, "type": "user", "uuid": asked, "parentUuid": behind, "timestamp": stamp, "message": user},
        {**fields, "type": "assistant", "uuid": told, "parentUuid": asked, "timestamp": stamp, "message": said},
    ]


def side(store: Any) -> Side:
    """Return a store's calls. The SDK never asks for the last lines only."""

    def fill(turns: int) -> Any:
        return store.append(KEY, [line for number in range(turns) for line in lines(number)])

    return Side(lambda number: store.append(KEY, lines(number)), lambda: store.load(KEY), fill=fill)


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both."""
    from tape.integrations.claude_agent import TapeSessionStore

    ours, theirs = TapeSessionStore(place.path), Table(place.path.with_suffix(".table"))
    yield side(ours), side(theirs)
    theirs.close()
    place.run(ours.close())
