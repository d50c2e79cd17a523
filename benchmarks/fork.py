"""What do forks cost? Making one on a long tape, reading and extending deep ones, and merging back.

python benchmarks/fork.py [--quick] [--postgres URL] [--save]
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import tapes
from harness import Options, Report, options, race, report, schema

import tape


def main() -> int:
    """Build the tapes once, and ask both engines."""
    with options("What do forks cost?") as given:
        told = report("What do forks cost?", given)
        path = given.folder / "fork.db"
        with tape.open(path, durability="normal") as store:
            tapes.write(store.tape("short"), 1_000)
            tapes.write(store.tape("long"), 1_000_000 // (20 if given.quick else 1))
            tapes.anchored(store.tape("flat"), 1_000)
            for depth in (10, 200):
                nested(store, depth)
        with tape.open(path) as store:
            ask(told, given, "SQLite", store)
        with schema(given.postgres, "bench_fork") as name:
            tapes.copy(path, given.postgres, name)
            with tape.open(given.postgres, schema=name) as store:
                ask(told, given, "PostgreSQL", store)
        return told.finish(given.save)


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


def ask(told: Report, given: Options, engine: str, store: tape.Store) -> None:
    """Ask one engine every question."""
    rounds = 5 if given.quick else 15
    short, long, flat = store.tape("short"), store.tape("long"), store.tape("flat")
    times = race(rounds, 10, {"long": long.fork, "short": short.fork})
    of = f"{times.median('long'):.0f} µs, short {times.median('short'):.0f} µs"
    told.bar(f"{engine}: fork of the long tape, of the short one", times.ratio("long", "short"), most=1.3, of=of)

    deep, deepest = store.tape("deep-10-9"), store.tape("deep-200-199")
    times = race(rounds, 10, {"deep": deep.context, "deepest": deepest.context, "flat": flat.context})
    of = f"{times.median('deep'):.0f} µs, flat {times.median('flat'):.0f} µs"
    told.bar(f"{engine}: context 10 levels deep, of an unforked tape", times.ratio("deep", "flat"), most=3, of=of)
    of = f"{times.median('deepest'):.0f} µs"
    told.bar(f"{engine}: context 200 levels deep, of an unforked tape", times.ratio("deepest", "flat"), of=of)

    def append(chat: tape.Tape) -> None:
        chat.append(role="user", content="word " * 30, id=str(uuid.uuid4()))

    times = race(
        rounds,
        20,
        {"deep": lambda: append(deep), "deepest": lambda: append(deepest), "flat": lambda: append(flat)},
    )
    of = f"{times.median('deep'):.0f} µs, {times.median('deepest'):.0f} µs, flat {times.median('flat'):.0f} µs"
    told.bar(f"{engine}: append with an id 10 levels deep", times.ratio("deep", "flat"), most=1.5, of=of)
    told.bar(f"{engine}: append with an id 200 levels deep", times.ratio("deepest", "flat"), most=5, of=of)

    child, plain = short.fork(), store.tape("plain")

    def batch() -> list[dict[str, Any]]:
        return [{"id": str(uuid.uuid4()), "role": "user", "content": "word " * 30} for _ in range(100)]

    taken = []
    for _ in range(rounds):
        child.extend(batch())
        merged = timed(lambda: short.merge(child))
        taken.append(timed(lambda: plain.extend(batch())) / merged)
    ratio = statistics.median(taken)
    told.bar(f"{engine}: merge of 100 messages, of the speed of extend", ratio, least=0.5, of="medians of rounds")


def timed(run: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
