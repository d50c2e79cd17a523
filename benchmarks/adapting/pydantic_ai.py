"""Pydantic AI: it brings no conversation store for files, so the other side is the plainest one: a table of entries."""

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

PACKAGE = "pydantic-ai-slim"
THEIRS = "a table of entries"
BAR = None


def table(path: Path) -> Any:
    """Return a store on two tables, entries and records; a transaction per save, a recursive query per load."""
    from pydantic import TypeAdapter
    from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
    from pydantic_ai.conversation_store import ConversationStore as Base
    from pydantic_ai.messages import ModelMessagesTypeAdapter as Messages

    records: TypeAdapter[Any] = TypeAdapter(ConversationRecord)
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE entry (id TEXT PRIMARY KEY, parent TEXT, message TEXT)")
    connection.execute("CREATE TABLE record (id TEXT PRIMARY KEY, revision TEXT, value TEXT)")

    class Table(Base):  # type: ignore[misc]
        async def read_record(self, id: str) -> Any:
            return await asyncio.to_thread(self._record, id)

        def _record(self, id: str) -> Any:
            row = connection.execute("SELECT value FROM record WHERE id = ?", (id,)).fetchone()
            return None if row is None else records.validate_json(row[0])

        async def write_record(self, record: Any, *, new_entries: Any = (), expected_revision: Any) -> None:
            await asyncio.to_thread(self._write, record, new_entries, expected_revision)

        def _write(self, record: Any, entries: Any, expected: Any) -> None:
            said = Messages.dump_python([entry.message for entry in entries], mode="json")
            rows = [(e.id, e.parent_id, json.dumps(m)) for e, m in zip(entries, said, strict=True)]
            connection.execute("BEGIN IMMEDIATE")
            held = self._record(record.conversation_id)
            if (None if held is None else held.revision) != expected:
                connection.execute("ROLLBACK")
                raise ConversationConflict(record.conversation_id)
            connection.executemany("INSERT INTO entry VALUES (?, ?, ?)", rows)
            value = (record.conversation_id, record.revision, records.dump_json(record).decode())
            connection.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", value)
            connection.execute("COMMIT")

        async def read_history(self, head: Any, *, limit: int | None = None) -> Any:
            return await asyncio.to_thread(self._history, head, -1 if limit is None else limit)

        def _history(self, head: Any, limit: int) -> Any:
            walk = (
                "WITH RECURSIVE line (id, parent, message) AS (SELECT * FROM entry WHERE id = ? UNION ALL "
                "SELECT e.* FROM entry e JOIN line ON e.id = line.parent) SELECT * FROM line LIMIT ?"
            )
            rows = connection.execute(walk, (head, limit)).fetchall()[::-1]
            said = Messages.validate_python([json.loads(row[2]) for row in rows])
            return [ConversationEntry(id=r[0], parent_id=r[1], message=m) for r, m in zip(rows, said, strict=True)]

        async def read_entry(self, id: str) -> Any:
            return (await self.read_history(id, limit=1))[0]

        async def read_records(self, *, scope: Any = None, limit: int | None = None) -> Any:
            rows = connection.execute("SELECT value FROM record ORDER BY rowid DESC").fetchall()
            found = [record for (value,) in rows if (record := records.validate_json(value)).scope == scope]
            return found[:limit]

        async def delete_record(self, id: str, *, expected_revision: str) -> None:
            gone = connection.execute("DELETE FROM record WHERE id = ? AND revision = ?", (id, expected_revision))
            if not gone.rowcount:
                raise ConversationConflict(id)

        async def close(self) -> None:
            connection.close()

    return Table()


def side(store: Any) -> Side:
    """Return a store's calls: a turn loads the last two messages and saves two more."""
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    def said(number: int) -> list[Any]:
        asked = ModelRequest(parts=[UserPromptPart(question(number))])
        return [asked, ModelResponse(parts=[TextPart(answer(number))])]

    async def turn(number: int) -> None:
        known = await store.load("chat", limit=2)
        known.messages += said(number)
        await store.save(known)

    async def fill(turns: int) -> None:
        messages = [each for number in range(turns) for each in said(number)]
        await store.save(Conversation(conversation_id="chat", messages=messages))

    async def load(limit: int | None = None) -> Any:
        return (await store.load("chat", limit=limit)).messages

    return Side(turn, load, load, fill=fill)


@contextmanager
def sides(place: Place) -> Iterator[tuple[Side, Side]]:
    """Open both."""
    from tape.integrations.pydantic_ai import TapeConversationStore

    ours, theirs = TapeConversationStore(place.path), table(place.path.with_suffix(".table"))
    yield side(ours), side(theirs)
    place.run(theirs.close())
    place.run(ours.close())
