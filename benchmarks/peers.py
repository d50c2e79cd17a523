"""Other stores at their own job, each behind the same four calls: append one message, a batch, the last n, all.

All of them run in this process with the same messages. On SQLite every file is in WAL mode with ``synchronous=FULL``,
which is SQLite's default and which none of them changes; on PostgreSQL all use the one server as it is. Those with an
async interface only are called from an event loop, and held against the store's own async interface.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import tape
from benchmarks import tapes
from benchmarks.harness import dsn
from benchmarks.raw import RawSqlite

Message = dict[str, Any]


@dataclass
class Place:
    """Where a store may write, and the loop in which it is called if it is async."""

    path: Path
    url: sa.URL | None
    loop: asyncio.AbstractEventLoop

    @property
    def schema(self) -> str:
        """The PostgreSQL schema that is set aside for it."""
        return self.path.stem

    def run(self, work: Awaitable[Any]) -> Any:
        """Run something in the loop to its end."""
        return self.loop.run_until_complete(work)


@dataclass
class Peer:
    """One store, opened. The calls return a value, or an awaitable if ``is_async``."""

    append: Callable[[Message], Any]
    extend: Callable[[list[Message]], Any]
    last: Callable[[int], Any]
    whole: Callable[[], Any]
    is_async: bool = False
    load: Callable[[list[Message]], Any] | None = None
    """A faster way to fill a history, outside of what is measured, for a store without batches."""


@dataclass
class Kind:
    """How a store is called, opened and judged."""

    name: str
    package: str
    open: Callable[[Place], AbstractContextManager[Peer]]
    engine: str = "SQLite"
    heavy: bool = False
    """Whether it uses an ORM or checkpoints of the whole state: then it has to be twice as slow."""
    limit: int | None = None
    """How many messages it is given at most, because what it costs grows with each."""
    note: str = ""


def _wal(path: Path) -> Path:
    """Put an empty file into WAL mode, which stays with it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return path


@contextmanager
def _tape(place: Place) -> Iterator[Peer]:
    options = {} if place.url is None else {"schema": place.schema}
    with tape.open(place.url or place.path, **options) as store:  # type: ignore[arg-type]
        chat = store.tape("chat")

        yield Peer(chat.append, chat.extend, partial(tapes.dicts, chat), partial(tapes.dicts, chat))


@contextmanager
def _tape_async(place: Place) -> Iterator[Peer]:
    async def opening() -> tape.AsyncStore:
        return await tape.open_async(place.path)

    store = place.run(opening())
    chat = store.tape("chat")

    async def last(limit: int) -> list[Message]:
        return [body for body, _ in await chat.bodies(limit=limit)]

    async def whole() -> list[Message]:
        return [body for body, _ in await chat.bodies()]

    yield Peer(chat.append, chat.extend, last, whole, is_async=True)
    place.run(store.close())


@contextmanager
def _raw(place: Place) -> Iterator[Peer]:
    RawSqlite.prepare(place.path)
    raw = RawSqlite(place.path)
    sql = "SELECT payload FROM tape_entries WHERE tape_id = ? AND kind = 'append' ORDER BY seq DESC LIMIT ?"

    def last(limit: int) -> list[Message]:
        rows = raw.connection.execute(sql, (raw.tape_id, limit)).fetchall()
        return [json.loads(payload)["message"] for (payload,) in reversed(rows)]

    yield Peer(raw.append, raw.extend, last, lambda: last(-1))
    raw.close()


def _session(session: Any) -> Peer:
    """Return the calls of a session of OpenAI Agents."""
    return Peer(
        lambda message: session.add_items([message]), session.add_items, session.get_items, session.get_items, True
    )


@contextmanager
def _sqlite_session(place: Place) -> Iterator[Peer]:
    session = import_module("agents").SQLiteSession("chat", place.path)
    yield _session(session)
    session.close()


@contextmanager
def _advanced_session(place: Place) -> Iterator[Peer]:
    memory = import_module("agents.extensions.memory")
    session = memory.AdvancedSQLiteSession(session_id="chat", db_path=place.path, create_tables=True)
    yield _session(session)
    session.close()


@contextmanager
def _sqlalchemy_session(place: Place) -> Iterator[Peer]:
    memory = import_module("agents.extensions.memory")
    engine = import_module("sqlalchemy.ext.asyncio").create_async_engine(f"sqlite+aiosqlite:///{_wal(place.path)}")
    yield _session(memory.SQLAlchemySession("chat", engine=engine, create_tables=True))
    place.run(engine.dispose())


@contextmanager
def _adk(place: Place) -> Iterator[Peer]:
    sessions, events = import_module("google.adk.sessions"), import_module("google.adk.events")
    types, base = import_module("google.genai.types"), import_module("google.adk.sessions.base_session_service")
    service = sessions.DatabaseSessionService(f"sqlite+aiosqlite:///{_wal(place.path)}")
    names = {"app_name": "bench", "user_id": "user", "session_id": "chat"}
    opened: list[Any] = []

    def made(message: Message) -> Any:
        part = types.Part(text=message["content"])
        return events.Event(author=message["role"], content=types.Content(role=message["role"], parts=[part]))

    async def session() -> Any:
        if not opened:
            opened.append(await service.create_session(**names))
        return opened[0]

    async def append(message: Message) -> None:
        await service.append_event(await session(), made(message))

    async def load(messages: list[Message]) -> None:
        of = await session()
        kind = service._get_schema_classes().StorageEvent
        async with service.database_session_factory() as transaction:
            transaction.add_all([kind.from_event(of, made(message)) for message in messages])
            await transaction.commit()

    async def extend(messages: list[Message]) -> None:
        for message in messages:
            await append(message)

    async def last(limit: int | None) -> list[Message]:
        config = None if limit is None else base.GetSessionConfig(num_recent_events=limit)
        found = await service.get_session(**names, config=config)
        return [{"role": event.author, "content": event.content.parts[0].text} for event in found.events]

    yield Peer(append, extend, last, lambda: last(None), is_async=True, load=load)
    place.run(service.db_engine.dispose())


def _saver(saver: Any) -> Peer:
    """Return the calls of a LangGraph checkpointer: the messages are one channel that is saved whole each time."""
    base = import_module("langgraph.checkpoint.base")
    config: dict[str, Any] = {"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}
    channel: list[Message] = []
    version = 0

    def extend(messages: list[Message]) -> None:
        nonlocal config, version
        channel.extend(messages)
        version += 1
        checkpoint = base.empty_checkpoint()
        checkpoint["channel_values"] = {"messages": channel}
        checkpoint["channel_versions"] = versions = {"messages": f"{version:032}"}
        config = saver.put(config, checkpoint, {"source": "loop", "step": version, "parents": {}}, versions)

    def whole() -> list[Message]:
        found = saver.get_tuple({"configurable": {"thread_id": "chat", "checkpoint_ns": ""}})
        messages: list[Message] = found.checkpoint["channel_values"]["messages"]
        return messages

    return Peer(lambda message: extend([message]), extend, lambda limit: whole()[-limit:], whole)


@contextmanager
def _sqlite_saver(place: Place) -> Iterator[Peer]:
    with import_module("langgraph.checkpoint.sqlite").SqliteSaver.from_conn_string(str(place.path)) as saver:
        saver.setup()
        yield _saver(saver)


@contextmanager
def _postgres_saver(place: Place) -> Iterator[Peer]:
    assert place.url is not None
    inside = dsn(place.url.update_query_dict({"options": f"-csearch_path={place.schema}"}))
    with import_module("langgraph.checkpoint.postgres").PostgresSaver.from_conn_string(inside) as saver:
        saver.conn.execute(f'CREATE SCHEMA IF NOT EXISTS "{place.schema}"')
        saver.setup()
        yield _saver(saver)


def _recorder(recorder: Any) -> Peer:
    """Return the calls of a recorder of ``eventsourcing``."""
    stored = import_module("eventsourcing.persistence").StoredEvent
    origin, version = uuid.uuid4(), 0
    encode = json.JSONEncoder(separators=(",", ":")).encode

    def extend(messages: list[Message]) -> None:
        nonlocal version
        events = []
        for message in messages:
            version += 1
            events.append(stored(origin, version, "message", encode(message).encode()))
        recorder.insert_events(events)

    def last(limit: int | None) -> list[Message]:
        found = recorder.select_events(origin, desc=limit is not None, limit=limit)
        messages = [json.loads(event.state) for event in found]
        return messages if limit is None else messages[::-1]

    return Peer(lambda message: extend([message]), extend, last, lambda: last(None))


@contextmanager
def _sqlite_recorder(place: Place) -> Iterator[Peer]:
    module = import_module("eventsourcing.sqlite")
    store = module.SQLiteDatastore(str(place.path))
    recorder = module.SQLiteApplicationRecorder(store)
    recorder.create_table()
    yield _recorder(recorder)
    store.close()


@contextmanager
def _postgres_recorder(place: Place) -> Iterator[Peer]:
    assert place.url is not None
    module = import_module("eventsourcing.postgres")
    url = place.url
    host = url.host or str(url.query.get("host", ""))
    store = module.PostgresDatastore(
        url.database, host, url.port or 5432, url.username, url.password or "", schema=place.schema
    )
    recorder = module.PostgresApplicationRecorder(store)
    recorder.create_table()
    yield _recorder(recorder)
    store.close()


OURS = Kind("tape", "tape-store", _tape)
OURS_ASYNC = Kind("tape, async", "tape-store", _tape_async)
RAW = Kind("raw sqlite3", "", _raw)
OURS_POSTGRES = Kind("tape", "tape-store", _tape, "PostgreSQL")
_CHANNEL = 2_000
_WHOLE = "saves the whole channel"
PEERS = [
    Kind("OpenAI Agents SQLiteSession", "openai-agents", _sqlite_session),
    Kind("OpenAI Agents AdvancedSQLiteSession", "openai-agents", _advanced_session),
    Kind("OpenAI Agents SQLAlchemySession", "openai-agents", _sqlalchemy_session, heavy=True),
    Kind("Google ADK DatabaseSessionService", "google-adk", _adk, heavy=True, note="has no batches"),
    Kind(
        "LangGraph SqliteSaver", "langgraph-checkpoint-sqlite", _sqlite_saver, heavy=True, limit=_CHANNEL, note=_WHOLE
    ),
    Kind("eventsourcing, SQLite", "eventsourcing", _sqlite_recorder),
    Kind(
        "LangGraph PostgresSaver",
        "langgraph-checkpoint-postgres",
        _postgres_saver,
        "PostgreSQL",
        heavy=True,
        limit=_CHANNEL,
        note=_WHOLE,
    ),
    Kind("eventsourcing, PostgreSQL", "eventsourcing", _postgres_recorder, "PostgreSQL"),
]
"""Every store that the suite knows, in the order of the table."""
