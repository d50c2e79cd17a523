"""How fast is an append? Against the same writes by hand, singly and in batches, and on a tape of a million entries.

python benchmarks/append.py [--quick] [--postgres URL] [--save]
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack

import tapes
from harness import TEXT, Options, Report, Times, dsn, options, race, report, schema
from raw import RawPostgres, RawSqlite

import tape

MESSAGE = {"role": "user", "content": TEXT}
BATCH = 100


def main() -> int:
    """Answer the questions one after the other."""
    with options("How fast is an append?") as given:
        told = report("How fast is an append?", given)
        for durability, least in (("full", 0.85), ("normal", 0.75)):
            on_sqlite(told, given, durability, least)
        on_postgres(told, given)
        growth(told, given)
        return told.finish(given.save)


def on_sqlite(told: Report, given: Options, durability: str, least: float) -> None:
    """Race the store against plain sqlite3, each on a file of its own that grows equally."""
    rounds, singles = (10, 200) if given.quick else (40, 400)
    ours, theirs = given.folder / f"tape-{durability}.db", given.folder / f"raw-{durability}.db"
    tape.open(theirs).close()
    raw = RawSqlite(str(theirs), durability)
    with tape.open(ours, durability=durability) as store:
        chat = store.tape("chat")
        times = race(rounds, singles, {"raw": lambda: raw.append(MESSAGE), "tape": lambda: _append(chat)})
        _against(told, f"append, SQLite, {durability}", times, least)
        times = race(rounds, 5, {"raw": lambda: raw.extend([MESSAGE] * BATCH), "tape": lambda: _extend(chat)})
        _against(told, f"batch of {BATCH}, SQLite, {durability}", times, 0.8)
    raw.close()


def on_postgres(told: Report, given: Options) -> None:
    """Race the store against psycopg in six round trips, each in a schema of its own."""
    rounds, singles = (10, 100) if given.quick else (40, 200)
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(schema(given.postgres, name)) for name in ("bench_tape", "bench_raw"))
        tape.open(given.postgres, schema=theirs).close()
        raw = RawPostgres(dsn(given.postgres), theirs)
        store = stack.enter_context(tape.open(given.postgres, schema=ours))
        chat = store.tape("chat")
        times = race(rounds, singles, {"raw": lambda: raw.append(MESSAGE), "tape": lambda: _append(chat)})
        _against(told, "append, PostgreSQL, against six round trips", times, 0.9)
        times = race(rounds, 5, {"raw": lambda: raw.extend([MESSAGE] * BATCH), "tape": lambda: _extend(chat)})
        _against(told, f"batch of {BATCH}, PostgreSQL", times, 0.8)
        raw.close()


def growth(told: Report, given: Options) -> None:
    """Race a short tape against a long one, with generated ids and with a caller's uuid4."""
    long = 50_000 if given.quick else 1_000_000
    rounds = 15 if given.quick else 40
    print("  building the tapes …", flush=True)
    for own_ids in (False, True):
        paths = {name: given.folder / f"{name}-{own_ids}.db" for name in ("short", "long")}
        for name, path in paths.items():
            with tape.open(path, durability="normal") as store:
                tapes.write(store.tape("chat"), 1_000 if name == "short" else long, own_ids=own_ids)
        for durability in ("full", "normal"):
            with ExitStack() as stack:
                stores = [stack.enter_context(tape.open(path, durability=durability)) for path in paths.values()]
                _growth(told, f"SQLite, {durability}", long, stores, own_ids, rounds)
        with ExitStack() as stack:
            stores = []
            for name, path in paths.items():
                at = stack.enter_context(schema(given.postgres, f"bench_{name}"))
                tapes.copy(path, given.postgres, at)
                stores.append(stack.enter_context(tape.open(given.postgres, schema=at)))
            _growth(told, "PostgreSQL", long, stores, own_ids, rounds)
        for path in paths.values():
            path.unlink()


def _appender(store: tape.Store, own_ids: bool) -> Callable[[], object]:
    chat = store.tape("chat")
    if own_ids:
        return lambda: chat.append(role="user", content=TEXT, id=str(uuid.uuid4()))
    return lambda: chat.append(role="user", content=TEXT)


def _growth(told: Report, engine: str, long: int, stores: list[tape.Store], own_ids: bool, rounds: int) -> None:
    short, grown = stores
    times = race(rounds, 50, {"short": _appender(short, own_ids), "long": _appender(grown, own_ids)})
    of = f"{times.median('short'):.0f} µs, {times.median('long'):.0f} µs"
    ids, most = ("a caller's uuid4", 2.0) if own_ids else ("generated", 1.3)
    told.bar(
        f"append on {long:,} entries to 1,000, {ids} ids, {engine}", times.ratio("long", "short"), most=most, of=of
    )


def _append(chat: tape.Tape) -> None:
    chat.append(role="user", content=TEXT)


def _extend(chat: tape.Tape) -> None:
    chat.extend([MESSAGE] * BATCH)


def _against(told: Report, what: str, times: Times, least: float) -> None:
    of = f"raw {times.median('raw'):.0f} µs, tape {times.median('tape'):.0f} µs"
    told.bar(what, times.ratio("raw", "tape"), least=least, of=of)


if __name__ == "__main__":
    sys.exit(main())
