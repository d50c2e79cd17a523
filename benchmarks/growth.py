"""What a tape of a million entries costs more than one of a thousand: context, ``at``, fork and append.

The long tape is the one that grew for the plot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import tape
from benchmarks import tapes
from benchmarks.curve import curve
from benchmarks.harness import TEXT, Run, each, numbered, race, schema

SHORT = 1_000
LONG = "chat"
"""The tape on which the curve was measured."""
MOST = 1.2
BUDGET = 100_000


def growth(run: Run) -> None:
    """Race a short tape against a long one on both engines."""
    long = run.pick(1_000_000, 10_000)
    path = curve(run, long)
    with tape.open(path, durability="normal") as store:
        tapes.anchored(store.tape("short"), SHORT)
        store.tape(LONG).anchor("checkpoint", {"step": 7})
        tapes.write(store.tape(LONG), 50)
    with tapes.engines(run, path) as stores:
        for engine, store in stores.items():
            ask(run, engine, store, long)
    path.unlink()


def ask(run: Run, engine: str, store: tape.Store, long: int) -> None:
    """Race the four operations on the short tape and on the long one."""
    chats = {"short": store.tape("short"), "long": store.tape(LONG)}
    middle = {name: chat.info().head // 2 for name, chat in chats.items()}
    message = numbered()
    assert [len(chat.context(budget=BUDGET).messages) for chat in chats.values()] == [50, 50]
    operations: dict[str, Callable[[str], object]] = {
        "context": lambda name: chats[name].context(budget=BUDGET),
        "at, 50 messages": lambda name: chats[name].at(middle[name]).messages(limit=50),
        "fork": lambda name: chats[name].fork(),
        # The last, since what it appends would be in the context.
        "append": lambda name: chats[name].append(message()),
    }
    for what, operation in operations.items():
        contenders = {name: each(partial(operation, name), 20) for name in chats}
        times = race(run.pick(20, 1), contenders)
        run.report.bar(
            f"{what} on {long:,} entries against {SHORT:,}, {engine}",
            times.growth("long", "short"),
            most=MOST,
            times=times.all(),
        )


def own_ids(run: Run) -> None:
    """The same for appends with a caller's uuid4 as id, which land anywhere in the index."""
    long = run.pick(1_000_000, 10_000)
    paths = {name: run.folder / f"own-{name}.db" for name in ("short", "long")}
    for name, path in paths.items():
        with tape.open(path, durability="normal") as store:
            tapes.write(store.tape("chat"), SHORT if name == "short" else long, own_ids=True)

    def race_on(engine: str, stores: dict[str, tape.Store]) -> None:
        chats = {name: store.tape("chat") for name, store in stores.items()}

        def append(chat: tape.Tape) -> None:
            chat.append(role="user", content=TEXT, id=str(uuid.uuid4()))

        times = race(run.pick(40, 3), {name: each(partial(append, chat), 50) for name, chat in chats.items()})
        what = f"append with a uuid4 of the caller's on {long:,} entries against {SHORT:,}, {engine}"
        run.report.bar(what, times.growth("long", "short"), most=2.0, times=times.all())

    for durability in ("full", "normal"):
        with ExitStack() as stack:
            race_on(
                f"SQLite, {durability}",
                {name: stack.enter_context(tape.open(path, durability=durability)) for name, path in paths.items()},
            )
    if run.postgres is not None:
        with ExitStack() as stack:
            stores = {}
            for name, path in paths.items():
                at = stack.enter_context(schema(run.postgres, f"bench_{name}"))
                tapes.copy(path, run.postgres, at)
                stores[name] = stack.enter_context(tape.open(run.postgres, schema=at))
            race_on("PostgreSQL", stores)
    for path in paths.values():
        path.unlink()
