"""How fast is a context built? Against a raw SELECT of the same rows, and as the tape grows long.

With an anchor what is read begins there; without one a budget bounds it.

python benchmarks/context.py [--quick] [--postgres URL] [--save]
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import psycopg
import tapes
from harness import Options, Report, dsn, options, race, report, schema

import tape


def exchange(number: int) -> list[dict[str, Any]]:
    """Return a tool call and its result."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": '{"at": "map"}'}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number}: " + "row of data, " * 20},
    ]


def build(chat: tape.Tape, entries: int) -> None:
    """Make a tape whose last anchor is 200 messages back, 60 tool exchanges among them."""
    tapes.write(chat, entries - 202)
    chat.anchor("checkpoint", {"step": 7})
    said = tapes.messages(80)
    messages = [one for number in range(60) for one in exchange(number)]
    mixed = []
    for number in range(60):
        mixed += [*messages[2 * number : 2 * number + 2], *said[number : number + 1]]
    chat.extend([*mixed, *said[60:]])


BUDGET = 2_000
BARE = {"short": 1_000, "long": 100_000}
"""How many messages the tapes without an anchor have, on which only the budget bounds what is read."""


def build_bare(store: tape.Store) -> None:
    """Make tapes without an anchor: one branch with tools, a fork of it, and a path of many branches."""
    for name, count in BARE.items():
        chat = store.tape(f"bare-{name}")
        tapes.write(chat, count - 200)
        chat.extend([one for number in range(40) for one in [*exchange(number), *tapes.messages(3)]])
        chat.fork(f"forked-{name}").append(role="user", content="And then?")
        tapes.branched(store.tape(f"branched-{name}"), count, 100)


def ask_bare(told: Report, given: Options, engine: str, store: tape.Store) -> None:
    """Compare contexts with a budget on tapes without an anchor."""
    for kind in ("bare", "forked", "branched"):
        chats = {name: store.tape(f"{kind}-{name}") for name in BARE}
        for chat in chats.values():
            assert chat.context(budget=BUDGET).tokens <= BUDGET
        times = race(
            5 if given.quick else 15,
            10,
            {name: partial(chat.context, budget=BUDGET) for name, chat in chats.items()},
        )
        told.bar(
            f"{engine}: budget of {BUDGET}, {kind}, 100 000 messages, of 1 000",
            times.ratio("long", "short"),
            most=1.5,
            of=f"{times.median('long'):.0f} µs, short {times.median('short'):.0f} µs",
        )
        size = len(msgspec.json.encode(chats["long"].context(budget=BUDGET).manifest))
        told.bar(f"{engine}: its manifest, {kind}, KB", size / 1_000, most=20, of=f"{size} bytes")


def ask(told: Report, given: Options, engine: str, store: tape.Store, select: Callable[[], list[Any]]) -> None:
    """Compare on one engine."""
    short, long = store.tape("short"), store.tape("long")
    assert len(long.context().messages) == 200
    assert len(select()) == 200

    def raw() -> None:
        for row in select():
            json.loads(row[0])

    rounds = 5 if given.quick else 15
    times = race(rounds, 20, {"short": short.context, "long": long.context, "raw": raw})
    of = f"{times.median('long'):.0f} µs, short {times.median('short'):.0f} µs, raw {times.median('raw'):.0f} µs"
    told.bar(
        f"{engine}: context of 200 on the long tape, of the short one", times.ratio("long", "short"), most=1.3, of=of
    )
    told.bar(f"{engine}: context of 200, of SELECT and json.loads", times.ratio("long", "raw"), most=3, of=of)
    manifest = race(rounds, 5, {"with": lambda: long.context().manifest, "without": long.context})
    told.bar(f"{engine}: with its manifest, of without", manifest.ratio("with", "without"), of="no bar")


def main() -> int:
    """Build the tapes once, and ask both engines."""
    with options("How fast is a context built?") as given:
        told = report("How fast is a context built?", given)
        path = given.folder / "context.db"
        with tape.open(path, durability="normal") as store:
            build(store.tape("short"), 1_000)
            build(store.tape("long"), 1_000_000 // (20 if given.quick else 1))
            build_bare(store)
        query = (
            "SELECT e.payload FROM {at}tape_live l JOIN {at}tape_entries e ON e.tape_id = l.tape_id AND e.seq = l.body "
            "WHERE l.tape_id = {p} AND l.lane = {p} AND l.ordinal > {p} ORDER BY l.ordinal"
        )
        where = "SELECT tape_id, lane, ordinal - 200 FROM {at}tape_heads WHERE tape_id = {id}"
        with tape.open(path) as store, sqlite3.connect(path) as connection:
            at = connection.execute(where.format(at="", id=2)).fetchone()
            text = query.format(at="", p="?")
            ask(told, given, "SQLite", store, lambda: connection.execute(text, at).fetchall())
            ask_bare(told, given, "SQLite", store)
        with schema(given.postgres, "bench_context") as name:
            tapes.copy(path, given.postgres, name)
            with (
                tape.open(given.postgres, schema=name) as store,
                psycopg.connect(dsn(given.postgres), autocommit=True) as server,
            ):
                found = server.execute(where.format(at=f'"{name}".', id=2).encode()).fetchone()
                line = query.format(at=f'"{name}".', p="%s").encode()
                ask(told, given, "PostgreSQL", store, lambda: server.execute(line, found).fetchall())
                ask_bare(told, given, "PostgreSQL", store)
        return told.finish(given.save)


if __name__ == "__main__":
    sys.exit(main())
