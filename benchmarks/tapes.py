"""The tapes that the benchmarks read and extend, built on SQLite and copied row by row to PostgreSQL.

Both engines hold the same rows in the same columns, so a tape that takes a minute to write on one is copied to the
other in seconds.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

import tape
from benchmarks.harness import TEXT, Run, dsn, schema
from tape.core.entries import payloads
from tape.core.plan.intents import Plain
from tape.db.record.writing import Call
from tape.db.schema.tables import Tables
from tape.new_ids import keyed

STRETCH = 1_000
_OWN = {"tape_version", "tape_epoch", "tape_texts"}


def messages(count: int, *, own_ids: bool = False) -> list[dict[str, Any]]:
    """Return messages; ``own_ids`` gives each a random uuid4 as a caller would."""
    made: list[dict[str, Any]] = []
    for number in range(count):
        message: dict[str, Any] = {"role": "assistant" if number % 2 else "user", "content": TEXT}
        made.append({"id": str(uuid.uuid4()), **message} if own_ids else message)
    return made


def exchange(number: int) -> list[dict[str, Any]]:
    """Return a tool call and its result."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": '{"at": "map"}'}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number}: " + "row of data, " * 20},
    ]


def write(chat: tape.Tape, count: int, *, own_ids: bool = False) -> None:
    """Append so many messages."""
    while count > 0:
        chat.extend(messages(min(count, STRETCH), own_ids=own_ids))
        count -= STRETCH


def dicts(chat: tape.Tape, limit: int | None = None) -> list[dict[str, Any]]:
    """Return all messages, or the last ones, as dicts: what other stores return, too."""
    return [body for body, _ in chat.bodies(limit=limit)]


def dicts_of_messages(chat: tape.Tape, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the same by way of messages, which have ids, parents and seqs besides."""
    return [message.to_dict() for message in (chat.messages() if limit is None else chat.messages(limit=limit).items)]


def anchored(chat: tape.Tape, entries: int, *, back: int = 50, own_ids: bool = False) -> None:
    """Make a tape of so many entries whose last anchor is ``back`` messages before the head."""
    # The tape's first entry and the anchor count, too.
    write(chat, entries - back - 2, own_ids=own_ids)
    chat.anchor("checkpoint", {"step": 7})
    write(chat, back, own_ids=own_ids)


def branched(chat: tape.Tape, count: int, every: int) -> None:
    """Make a path of ``count`` messages that leaves its branch after every ``every``-th."""
    parent = None
    for _ in range(count // every):
        # The message too many keeps the branch's end, so that the next one has to begin a branch of its own.
        receipts = chat.extend(messages(every + 1), parent=parent)
        parent = receipts[-2].message_id
    assert parent is not None
    chat.switch(parent)


def revised(chat: tape.Tape, count: int, times: int) -> None:
    """Make a path of ``count`` messages, each revised so many times."""
    written = [receipt.message_id or "" for receipt in chat.extend(messages(count))]
    for number in range(times):
        for message_id in written:
            chat.revise(message_id, content=f"{TEXT}{number}")


def retracted(chat: tape.Tape, count: int, gone: int) -> None:
    """Make a path of ``count`` messages with so many retracted ones among them."""
    for _ in range(count):
        receipts = chat.extend(messages(gone // count + 1))
        chat.retract(*(receipt.message_id or "" for receipt in receipts[:-1]))


def trailed(chat: tape.Tape, count: int, events: int) -> None:
    """Make a path of ``count`` messages, followed by so many events."""
    write(chat, count)
    recorder = chat._services.recorder
    for start in range(0, events, STRETCH):
        # One by one through event() this would take minutes; recorded together, the rows are the same.
        facts = [payloads.Event(name="tool", data={"n": start + n}) for n in range(min(STRETCH, events - start))]
        recorder.record(Call(chat.id), [Plain(key=keyed(None), payload=fact) for fact in facts])


@contextmanager
def engines(run: Run, path: Path) -> Iterator[dict[str, tape.Store]]:
    """Open a SQLite file and, unless it is left out, its copy on PostgreSQL."""
    with ExitStack() as stack:
        stores = {"SQLite": stack.enter_context(tape.open(path))}
        if run.postgres is not None:
            name = stack.enter_context(schema(run.postgres, f"bench_{path.stem}"))
            copy(path, run.postgres, name)
            stores["PostgreSQL"] = stack.enter_context(tape.open(run.postgres, schema=name))
        yield stores


def copy(path: Path, url: sa.URL, name: str) -> None:
    """Copy every tape of a SQLite file to an empty PostgreSQL schema."""
    tape.open(url, schema=name).close()
    with sqlite3.connect(path) as source, psycopg.connect(dsn(url), autocommit=True) as target:
        target.execute(f'SET search_path TO "{name}"'.encode())
        # Opening has filled two of them, and the index of the search is made anew by each engine.
        for table in {one.name for one in Tables("postgresql", None).metadata.sorted_tables} - _OWN:
            fields = [row[1] for row in source.execute(f"PRAGMA table_info({table})")]
            columns = ", ".join(f'"{field}"' for field in fields)
            # PostgreSQL casts text to each column's type, whichever it is.
            with target.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as rows:
                for row in _rows(source, table, columns):
                    rows.write_row(row)
            for field in ("id", "position"):
                if field in fields and table in ("tape_tapes", "tape_entries"):
                    target.execute(
                        f"SELECT setval(pg_get_serial_sequence('{table}', '{field}'), "
                        f"(SELECT coalesce(max({field}), 1) FROM {table}))".encode()
                    )
        target.execute(b"VACUUM ANALYZE")
    source.close()


def _rows(source: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    yield from source.execute(f"SELECT {columns} FROM {table}")
