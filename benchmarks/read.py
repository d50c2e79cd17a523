"""How fast are reads? Against a raw SELECT, and as tapes grow long, branched, revised and retracted.

python benchmarks/read.py [--quick] [--postgres URL] [--save]
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import tapes
from harness import Options, Report, Times, dsn, options, race, report, schema

import tape

Select = Callable[[], list[Any]]


def main() -> int:
    """Build the tapes once, and ask both engines the same questions."""
    with options("How fast are reads?") as given:
        told = report("How fast are reads?", given)
        path = given.folder / "read.db"
        build(path, given.quick)
        with tape.open(path) as store, sqlite3.connect(path) as connection:
            ask(told, given, "SQLite", store, raw_sqlite(connection))
        with schema(given.postgres, "bench_read") as name:
            tapes.copy(path, given.postgres, name)
            with (
                tape.open(given.postgres, schema=name) as store,
                psycopg.connect(dsn(given.postgres), autocommit=True) as server,
            ):
                ask(told, given, "PostgreSQL", store, raw_postgres(server, name))
        return told.finish(given.save)


def build(path: Path, quick: bool) -> None:
    """Write every tape that is read."""
    part = 20 if quick else 1
    print("  building the tapes …", flush=True)
    with tape.open(path, durability="normal") as store:
        tapes.anchored(store.tape("short"), 1_000)
        tapes.anchored(store.tape("long"), 1_000_000 // part)
        tapes.write(store.tape("linear"), 10_000)
        tapes.branched(store.tape("branched"), 10_000, 10)
        tapes.write(store.tape("fifty"), 50)
        tapes.revised(store.tape("revised"), 50, 5_000 // part)
        tapes.retracted(store.tape("retracted"), 50, 100_000 // part)
        tapes.trailed(store.tape("trailed"), 50, 1_000_000 // part)
        for name, count in (("branched", 10_000), ("revised", 50), ("retracted", 50), ("trailed", 50)):
            assert len(store.tape(name).messages()) == count, name


def ask(told: Report, given: Options, engine: str, store: tape.Store, select: Select) -> None:
    """Ask one engine every question."""
    rounds = 15 if given.quick else 40
    size = "50 000" if given.quick else "1 000 000"
    times = race(rounds, 20, {name: store.tape(name).context for name in ("short", "long")})
    _growth(told, f"context of 50 messages, {size} entries to 1 000, {engine}", times, "long", "short", 1.3)

    assert [message.to_dict() for message in store.tape("linear").messages()] == [row["message"] for row in select()]
    times = race(rounds, 1, {"raw": select, "tape": store.tape("linear").messages})
    of = f"raw {times.median('raw') / 1000:.1f} ms, tape {times.median('tape') / 1000:.1f} ms"
    told.bar(f"path of 10 000 messages, {engine}", times.ratio("raw", "tape"), least=0.8, of=of)
    times = race(rounds, 1, {name: store.tape(name).messages for name in ("linear", "branched")})
    _growth(told, f"path with a branch at every 10th, to a linear one, {engine}", times, "branched", "linear", 1.5)

    names = ("fifty", "revised", "retracted", "trailed")
    times = race(rounds, 20, {name: store.tape(name).messages for name in names})
    part = 20 if given.quick else 1
    for name, what in (
        ("revised", f"50 messages revised {5_000 // part} times each"),
        ("retracted", f"50 messages among {100_000 // part} retracted"),
        ("trailed", f"50 messages before {1_000_000 // part} events"),
    ):
        _growth(told, f"{what}, to 50 plain ones, {engine}", times, name, "fifty", 1.3)


def raw_sqlite(connection: sqlite3.Connection) -> Select:
    """Return the read of a path as written by hand: one SELECT, json.loads for each row."""
    found = connection.execute("SELECT id FROM tape_tapes WHERE tape = 'linear'").fetchone()[0]
    sql = "SELECT seq, payload, stamp FROM tape_entries WHERE tape_id = ? AND kind = 'append' ORDER BY seq"
    return lambda: [json.loads(payload) for _, payload, _ in connection.execute(sql, (found,)).fetchall()]


def raw_postgres(connection: psycopg.Connection[Any], name: str) -> Select:
    """Return the same for PostgreSQL."""
    connection.execute(f'SET search_path TO "{name}"'.encode())
    row = connection.execute("SELECT id FROM tape_tapes WHERE tape = 'linear'").fetchone()
    sql = b"SELECT seq, payload, stamp FROM tape_entries WHERE tape_id = %s AND kind = 'append' ORDER BY seq"
    cursor = connection.cursor(binary=True)
    return lambda: [json.loads(payload) for _, payload, _ in cursor.execute(sql, row).fetchall()]


def _growth(told: Report, what: str, times: Times, one: str, other: str, most: float) -> None:
    of = f"{times.median(other) / 1000:.2f} ms, {times.median(one) / 1000:.2f} ms"
    told.bar(what, times.ratio(one, other), most=most, of=of)


if __name__ == "__main__":
    sys.exit(main())
