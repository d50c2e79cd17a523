"""Tapes that are not plain: branched, revised, retracted, behind many events; and contexts that a budget bounds."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from functools import partial

import msgspec
import psycopg

import tape
from benchmarks import tapes
from benchmarks.harness import Run, dsn, each, race
from benchmarks.read import Select, raw_postgres, raw_sqlite

BUDGET = 2_000
BARE = {"short": 1_000, "long": 100_000}
"""How many messages the tapes without an anchor have, on which only the budget bounds what is read."""


def shapes(run: Run) -> None:
    """Read paths of every shape, on both engines."""
    part, path = run.pick(1, 100), run.folder / "shapes.db"
    with tape.open(path, durability="normal") as store:
        tapes.write(store.tape("linear"), 10_000 // part)
        tapes.branched(store.tape("branched"), 10_000 // part, 10)
        tapes.write(store.tape("fifty"), 50)
        tapes.revised(store.tape("revised"), 50, 5_000 // part)
        tapes.retracted(store.tape("retracted"), 50, 100_000 // part)
        tapes.trailed(store.tape("trailed"), 50, 1_000_000 // part)
        for name, count in (("branched", 10_000 // part), ("revised", 50), ("retracted", 50), ("trailed", 50)):
            assert len(store.tape(name).messages()) == count, name
    others = {
        "revised": f"50 messages revised {5_000 // part} times each",
        "retracted": f"50 messages among {100_000 // part} retracted",
        "trailed": f"50 messages before {1_000_000 // part} events",
    }
    with tapes.engines(run, path) as stores:
        for engine, store in stores.items():
            long = {name: each(store.tape(name).messages, 1) for name in ("linear", "branched")}
            times = race(run.pick(40, 2), long)
            what = f"path with a branch at every 10th, to a linear one, {engine}"
            run.report.bar(what, times.growth("branched", "linear"), most=1.5, times=times.all())
            times = race(run.pick(40, 2), {name: each(store.tape(name).messages, 20) for name in ("fifty", *others)})
            told = times.all()
            for name, what in others.items():
                shown = {one: told[one] for one in ("fifty", name)}
                what = f"{what}, to 50 plain ones, {engine}"
                run.report.bar(what, times.growth(name, "fifty"), most=1.3, times=shown)
    path.unlink()


def context(run: Run) -> None:
    """Build contexts of 200 messages with tools behind an anchor, and of what a budget bounds without one."""
    path, part = run.folder / "context.db", run.pick(1, 100)
    with tape.open(path, durability="normal") as store:
        for name, entries in BARE.items():
            behind_anchor(store.tape(f"anchored-{name}"), max(entries // part, 1_000))
            without_anchor(store, name, max(entries // part, 1_000))
    with tapes.engines(run, path) as stores, ExitStack() as stack:
        for engine, store in stores.items():
            if engine == "SQLite":
                select = raw_sqlite(stack.enter_context(closing(sqlite3.connect(path))), "anchored-long")
            else:
                assert run.postgres is not None
                server = psycopg.connect(dsn(run.postgres), autocommit=True, prepare_threshold=0)
                stack.enter_context(server).execute(f'SET search_path TO "bench_{path.stem}"'.encode())
                select = raw_postgres(server, "anchored-long")
            anchored(run, engine, store, select)
            bounded(run, engine, store)
    path.unlink()


def anchored(run: Run, engine: str, store: tape.Store, select: Select) -> None:
    """Compare contexts of 200 messages behind an anchor: long tape and short, against a SELECT, with a manifest."""
    chats = {name: store.tape(f"anchored-{name}") for name in BARE}
    long = chats["long"]
    assert [message.to_dict() for message in long.context().messages] == select(200)
    contenders = {name: each(chat.context, 10) for name, chat in chats.items()}
    times = race(run.pick(15, 2), {**contenders, "raw": each(lambda: select(200), 10)})
    told = times.all()
    shown = {name: told[name] for name in chats}
    what = f"context of 200 with tools, long tape to short, {engine}"
    run.report.bar(what, times.growth("long", "short"), most=1.3, times=shown)
    shown = {name: told[name] for name in ("raw", "long")}
    what = f"context of 200 with tools, to SELECT and json.loads, {engine}"
    run.report.bar(what, times.growth("long", "raw"), most=3, times=shown)
    manifest = {"with": each(partial(with_manifest, long), 5), "without": each(long.context, 5)}
    times = race(run.pick(15, 2), manifest)
    run.report.bar(f"with its manifest, to without, {engine}", times.growth("with", "without"))


def with_manifest(chat: tape.Tape) -> object:
    """Build a context and its manifest."""
    return chat.context().manifest


def behind_anchor(chat: tape.Tape, entries: int) -> None:
    """Make a tape whose last anchor is 200 messages back, 60 tool exchanges among them."""
    tapes.write(chat, entries - 202)
    chat.anchor("checkpoint", {"step": 7})
    said = tapes.messages(80)
    for number in range(60):
        chat.extend([*tapes.exchange(number), said[number]])
    chat.extend(said[60:])


def without_anchor(store: tape.Store, name: str, count: int) -> None:
    """Make tapes without an anchor: one branch with tools, a fork of it, and a path of many branches."""
    chat = store.tape(f"bare-{name}")
    tapes.write(chat, count - 200)
    chat.extend([one for number in range(40) for one in [*tapes.exchange(number), *tapes.messages(3)]])
    chat.fork(f"forked-{name}").append(role="user", content="And then?")
    tapes.branched(store.tape(f"branched-{name}"), count, 100)


def bounded(run: Run, engine: str, store: tape.Store) -> None:
    """Compare contexts with a budget on tapes without an anchor."""
    for kind in ("bare", "forked", "branched"):
        chats = {name: store.tape(f"{kind}-{name}") for name in BARE}
        for chat in chats.values():
            assert chat.context(budget=BUDGET).tokens <= BUDGET
        contenders = {name: each(partial(chat.context, budget=BUDGET), 10) for name, chat in chats.items()}
        times = race(run.pick(15, 2), contenders)
        what = f"budget of {BUDGET}, {kind}, long tape to short, {engine}"
        run.report.bar(what, times.growth("long", "short"), most=1.5, times=times.all())
        size = len(msgspec.json.encode(chats["long"].context(budget=BUDGET).manifest))
        run.report.bar(f"its manifest, {kind}, KB, {engine}", size / 1_000, most=20)
