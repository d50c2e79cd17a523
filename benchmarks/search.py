"""What does search cost? Indexing as it grows, a rare word in a large store, a common one in a small tape of it, long
queries and large texts.

python benchmarks/search.py [--quick] [--postgres URL] [--save]
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from functools import partial

from harness import Options, Report, Times, options, race, report, schema

import tape

WORDS = ("the", "agent", "plans", "trip", "books", "hotel", "flight", "train", "museum", "dinner", "beach", "river")


def main() -> int:
    """Answer the questions on both engines."""
    with options("What does search cost?") as given:
        told = report("What does search cost?", given)
        large = 20_000 if given.quick else 1_000_000
        with ExitStack() as stack:
            for engine in ("SQLite", "PostgreSQL"):
                stores = {count: _open(stack, given, engine, count) for count in (1_000, large)}
                indexing(told, engine, _open(stack, given, engine, 0))
                searching(told, given, engine, stores, large)
                sizes(told, given, engine, _open(stack, given, engine, 1))
        return told.finish(given.save)


def _open(stack: ExitStack, given: Options, engine: str, count: int) -> tape.Store:
    """Return a store with so many entries, all of them indexed; a needle and a small tape are among them."""
    if engine == "SQLite":
        store = stack.enter_context(tape.open(given.folder / f"search-{count}.db", durability="normal"))
    else:
        name = stack.enter_context(schema(given.postgres, f"bench_search_{count}"))
        store = stack.enter_context(tape.open(given.postgres, schema=name, durability="normal"))
    if count > 1:
        store.tape("small").extend([{"role": "user", "content": f"common {_text(n)}"} for n in range(20)])
        store.tape("needle").append(role="user", content="one xylophone among them all")
        _fill(store, count - 23)
        store.search("nothing")
    return store


def _text(n: int) -> str:
    return " ".join(WORDS[(n * step) % len(WORDS)] for step in range(1, 13)) + f" w{n % 5_000}"


def _fill(store: tape.Store, count: int) -> None:
    """Write messages that all have one word in common, a thousand to a tape."""
    for start in range(0, count, 1_000):
        some = range(start, min(start + 1_000, count))
        store.tape(f"t{start}").extend([{"role": "user", "content": f"common {_text(n)}"} for n in some])


def indexing(told: Report, engine: str, store: tape.Store) -> None:
    """Index 10 000 entries in ten equal parts; the bar is on their sum against the first."""
    _fill(store, 9_990)
    index = store._searcher.index
    best = [9e9] * 10
    for _ in range(5):
        index.remake()
        for n in range(10):
            began = time.perf_counter()
            index.catch_up(1_000)
            best[n] = min(best[n], time.perf_counter() - began)
    figures = f"{best[0] * 1e3:.0f} ms for the first 1 000, {sum(best) * 1e3:.0f} ms for 10 000"
    told.bar(f"indexing 10 000 entries against 1 000, {engine}", sum(best) / best[0], most=12, of=figures)


def searching(told: Report, given: Options, engine: str, stores: dict[int, tape.Store], large: int) -> None:
    """Race the same two searches in the small and the large store."""
    rounds = 10 if given.quick else 30
    small = stores[1_000]
    for what, query, of in (("a rare word", "xylophone", None), ("a common word in a small tape", "common", "small")):

        def run(store: tape.Store, query: str = query, of: str | None = of) -> None:
            if not store.search(query, tape=of):
                raise AssertionError(f"{query!r} is not found")

        times: Times = race(rounds, 10, {"small": lambda: run(small), "large": lambda: run(stores[large])})
        figures = f"{times.median('small'):.0f} µs in 1 000 entries, {times.median('large'):.0f} µs in {large}"
        told.bar(f"{what}, {engine}", times.ratio("large", "small"), most=3, of=figures)


def sizes(told: Report, given: Options, engine: str, store: tape.Store) -> None:
    """Race two words against 50 KB of words, in texts of 1 KB and of 200 KB.

    For 20 hits, which is the default, and for ten: what a search costs besides its hits weighs more with fewer of them,
    so that the ratio per hit depends on how many there are.
    """
    chance = random.Random(11)
    vocabulary = [f"{chance.choice(WORDS)}{n}" for n in range(5_400)]
    for _ in range(20):
        short = [*chance.sample(vocabulary, 100), "alpha beta"]
        chance.shuffle(short)
        long = [*vocabulary, "gamma delta"] * 4
        chance.shuffle(long)
        for words in (short, long, [*["filler"] * 29_000, "omega psi"]):
            store.tape("sizes").append(role="tool", content=" ".join(words))
    store.search("nothing")
    queries = {
        "two words in 1 KB": "alpha beta",
        "two words in 200 KB": "gamma delta",
        "50 KB of words in 200 KB": " ".join(vocabulary),
        "two words at the end of 200 KB": "omega psi",
    }

    def run(query: str, hits: int) -> None:
        if len(store.search(query, limit=hits)) != hits:
            raise AssertionError(f"{query[:20]!r} is not found in {hits} texts")

    first, *others = queries
    for hits in (20, 10):
        contenders = {name: partial(run, query, hits) for name, query in queries.items()}
        times = race(10 if given.quick else 30, 3, contenders)
        for name in others:
            figures = f"{times.median(first) / hits:.0f} µs a hit for {first}, {times.median(name) / hits:.0f} µs"
            # Two words that stand anywhere in a text are shown by reading all of it: for information.
            most = 3 if "50 KB" in name else None
            told.bar(f"{name}, {hits} hits, {engine}", times.ratio(name, first), most=most, of=figures)


if __name__ == "__main__":
    sys.exit(main())
