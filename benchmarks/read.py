"""Reads of a plain tape, against a SELECT and ``json.loads`` written by hand: the last 50, all, and a context."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg

import tape
from benchmarks import tapes
from benchmarks.harness import Run, dsn, each, race, schema

Select = Callable[[int], list[dict[str, Any]]]
"""Reads the last so many messages, oldest first."""

LAST = 50
_SQL = "SELECT payload FROM tape_entries WHERE tape_id = {p} AND kind = 'append' ORDER BY seq DESC LIMIT {p}"
_FIND = "SELECT id FROM tape_tapes WHERE tape = {p}"


def read(run: Run) -> None:
    """Ask both engines the same questions."""
    path, many = run.folder / "read.db", run.pick(10_000, 1_000)
    with tape.open(path, durability="normal") as store:
        tapes.anchored(store.tape("chat"), many + 2)
    with tape.open(path) as store, sqlite3.connect(path) as connection:
        ask(run, "SQLite", store.tape("chat"), raw_sqlite(connection), many)
    connection.close()
    if run.postgres is None:
        return
    with ExitStack() as stack:
        name = stack.enter_context(schema(run.postgres, "bench_read"))
        tapes.copy(path, run.postgres, name)
        store = stack.enter_context(tape.open(run.postgres, schema=name))
        server = stack.enter_context(psycopg.connect(dsn(run.postgres), autocommit=True, prepare_threshold=0))
        server.execute(f'SET search_path TO "{name}"'.encode())
        ask(run, "PostgreSQL", store.tape("chat"), raw_postgres(server), many)


def ask(run: Run, engine: str, chat: tape.Tape, select: Select, many: int) -> None:
    """Ask one engine every question."""
    budget = 100_000

    assert tapes.dicts(chat, LAST) == tapes.dicts_of_messages(chat, LAST) == select(LAST)
    assert tapes.dicts(chat) == tapes.dicts_of_messages(chat) == select(many)
    assert [message.to_dict() for message in chat.context(budget=budget).messages] == select(LAST)
    assert len(chat.context(budget=budget).to_openai()) >= LAST
    # On PostgreSQL a small read costs its round trips; the bars are on what the store itself adds.
    sqlite = engine == "SQLite"
    small = {
        f"last {LAST} as dicts": Read(lambda: tapes.dicts(chat, LAST), 0.8 if sqlite else None),
        f"last {LAST} as messages and their dicts": Read(
            lambda: tapes.dicts_of_messages(chat, LAST), 0.8 if sqlite else None
        ),
        f"context of {LAST} with a budget": Read(lambda: chat.context(budget=budget), 0.7 if sqlite else None),
        f"context of {LAST} and its to_openai()": Read(
            lambda: chat.context(budget=budget).to_openai(), 0.5 if sqlite else None
        ),
    }
    compare(run, engine, lambda: select(LAST), small, times=20)
    large = {
        f"{many} as dicts": Read(lambda: tapes.dicts(chat), 1.0 if sqlite else 0.8),
        f"{many} as messages and their dicts": Read(lambda: tapes.dicts_of_messages(chat), 1.0 if sqlite else None),
    }
    compare(run, engine, lambda: select(many), large, times=1)


class Read(NamedTuple):
    """A read that is compared with hand-written code, and its bar."""

    call: Callable[[], object]
    least: float | None


def compare(run: Run, engine: str, raw: Callable[[], object], reads: dict[str, Read], *, times: int) -> None:
    """Race reads against the one written by hand, and report each."""
    contenders = {"raw": each(raw, times)} | {name: each(read.call, times) for name, read in reads.items()}
    race_times = race(run.pick(40, 3), contenders)
    measured = race_times.all()
    for name, read in reads.items():
        speed, shown = race_times.speed(name, "raw"), {"raw": measured["raw"], "tape": measured[name]}
        run.report.bar(f"{name}, {engine}", speed, least=read.least, times=shown)


def raw_sqlite(connection: sqlite3.Connection, name: str = "chat") -> Select:
    """Return the read as written by hand for SQLite."""
    found = connection.execute(_FIND.format(p="?"), (name,)).fetchone()[0]
    sql = _SQL.format(p="?")

    def select(limit: int) -> list[dict[str, Any]]:
        rows = connection.execute(sql, (found, limit)).fetchall()
        return [json.loads(payload)["message"] for (payload,) in reversed(rows)]

    return select


def raw_postgres(connection: psycopg.Connection[Any], name: str = "chat") -> Select:
    """Return the same for PostgreSQL."""
    row = connection.execute(_FIND.format(p="%s").encode(), (name,)).fetchone()
    assert row is not None
    sql, cursor = _SQL.format(p="%s").encode(), connection.cursor(binary=True)

    def select(limit: int) -> list[dict[str, Any]]:
        rows = cursor.execute(sql, (row[0], limit)).fetchall()
        return [json.loads(payload)["message"] for (payload,) in reversed(rows)]

    return select
