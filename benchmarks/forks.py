"""What forks cost: reading and extending deep ones, and merging back."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import tape
from benchmarks import tapes
from benchmarks.harness import Run, each, race


def forks(run: Run) -> None:
    """Build the tapes once, and ask both engines."""
    path = run.folder / "forks.db"
    with tape.open(path, durability="normal") as store:
        tapes.write(store.tape("short"), 1_000)
        tapes.anchored(store.tape("flat"), 1_000)
        for depth in (10, 200):
            nested(store, depth)
    with tapes.engines(run, path) as stores:
        for engine, store in stores.items():
            deep(run, engine, store)
            merged(run, engine, store)


def nested(store: tape.Store, depth: int) -> None:
    """Make a tape like ``flat`` whose last 50 messages are spread over that many levels of forks."""
    current: tape.Tape = store.tape(f"deep-{depth}")
    tapes.anchored(current, 1_000 - 50, back=1)
    left = 49
    for level in range(depth):
        current = current.fork(f"deep-{depth}-{level}")
        share = left // (depth - level)
        if share:
            tapes.write(current, share)
        left -= share


def deep(run: Run, engine: str, store: tape.Store) -> None:
    """Read and extend forks of forks."""
    chats = {"flat": store.tape("flat"), "10": store.tape("deep-10-9"), "200": store.tape("deep-200-199")}

    def append(chat: tape.Tape) -> None:
        chat.append(role="user", content="word " * 30, id=str(uuid.uuid4()))

    rounds = run.pick(15, 2)
    read = race(rounds, {name: each(chat.context, 10) for name, chat in chats.items()})
    write = race(
        rounds,
        {name: each(partial(append, chat), 20) for name, chat in chats.items()},
    )
    for what, times, bars in (("context", read, (3, None)), ("append with an id", write, (1.5, 5))):
        told = times.all()
        for depth, most in zip(("10", "200"), bars, strict=True):
            shown = {name: told[name] for name in ("flat", depth)}
            run.report.bar(
                f"{what} {depth} levels deep, to an unforked tape, {engine}",
                times.growth(depth, "flat"),
                most=most,
                times=shown,
            )


def merged(run: Run, engine: str, store: tape.Store) -> None:
    """Merge a hundred messages, against extending by a hundred."""
    short, plain = store.tape("short"), store.tape("plain")
    child = short.fork()

    def batch() -> list[dict[str, Any]]:
        return [{"id": str(uuid.uuid4()), "role": "user", "content": "word " * 30} for _ in range(100)]

    taken = []
    for _ in range(run.pick(15, 2)):
        child.extend(batch())
        merging = timed(lambda: short.merge(child))
        taken.append(timed(lambda: plain.extend(batch())) / merging)
    what = f"merge of 100 messages, of the speed of extend, {engine}"
    run.report.bar(what, statistics.median(taken), least=0.5)


def timed(run: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
