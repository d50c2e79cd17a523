"""Reads of a plain tape, against a SELECT and ``json.loads`` written by hand: the last 50, all, and a context."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

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

    def last() -> list[dict[str, Any]]:
        return tapes.last_dicts(chat, LAST)

    def whole() -> list[dict[str, Any]]:
        return tapes.dicts(chat)

    assert last() == select(LAST)
    assert whole() == select(many)
    assert [message.to_dict() for message in chat.context(budget=budget).messages] == select(LAST)
    assert len(chat.context(budget=budget).to_openai()) >= LAST
    rounds = run.pick(40, 3)
    times = race(
        rounds,
        {
            "raw": each(lambda: select(LAST), 20),
            f"last {LAST} as dicts": each(last, 20),
            f"context of {LAST} with a budget": each(lambda: chat.context(budget=budget), 20),
            f"context of {LAST} and its to_openai()": each(lambda: chat.context(budget=budget).to_openai(), 20),
        },
    )
    told, row = times.all(), f"reads, {engine}: last {LAST} / context of {LAST} / its to_openai() / all {many:,}"
    # On PostgreSQL a read costs its round trips; the bars are on what the store itself adds.
    bars = (0.8, 0.7, 0.5, 1.0) if engine == "SQLite" else (None, None, None, 0.8)
    for name, least in zip(list(told)[1:], bars[:3], strict=True):
        shown = {"raw": told["raw"], "tape": told[name]}
        run.report.bar(f"{name}, {engine}", times.speed(name, "raw"), least=least, times=shown, row=row)
    times = race(rounds, {"raw": each(lambda: select(many), 1), "tape": each(whole, 1)})
    run.report.bar(f"{many} as dicts, {engine}", times.speed("tape", "raw"), least=bars[3], times=times.all(), row=row)


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
