"""What search costs: indexing as it grows, a rare word in a large store, a common one in a small tape of it, long
queries and large texts.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from functools import partial

import tape
from benchmarks.harness import Run, each, race, schema

WORDS = ("the", "agent", "plans", "trip", "books", "hotel", "flight", "train", "museum", "dinner", "beach", "river")


def search(run: Run) -> None:
    """Answer the questions on both engines."""
    large = run.pick(1_000_000, 5_000)
    with ExitStack() as stack:
        for engine in ("SQLite", "PostgreSQL"):
            if engine == "PostgreSQL" and run.postgres is None:
                continue
            stores = {count: _open(stack, run, engine, count) for count in (1_000, large)}
            indexing(run, engine, _open(stack, run, engine, 0))
            searching(run, engine, stores, large)
            sizes(run, engine, _open(stack, run, engine, 1))


def _open(stack: ExitStack, run: Run, engine: str, count: int) -> tape.Store:
    """Return a store with so many entries, all of them indexed; a needle and a small tape are among them."""
    if engine == "SQLite":
        store = stack.enter_context(tape.open(run.folder / f"search-{count}.db", durability="normal"))
    else:
        assert run.postgres is not None
        name = stack.enter_context(schema(run.postgres, f"bench_search_{count}"))
        store = stack.enter_context(tape.open(run.postgres, schema=name, durability="normal"))
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


def indexing(run: Run, engine: str, store: tape.Store) -> None:
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
    run.report.bar(f"indexing 10 000 entries against 1 000, {engine}", sum(best) / best[0], most=12, note=figures)


def searching(run: Run, engine: str, stores: dict[int, tape.Store], large: int) -> None:
    """Race the same two searches in the small and the large store."""
    for what, query, of in (("a rare word", "xylophone", None), ("a common word in a small tape", "common", "small")):

        def find(store: tape.Store, query: str = query, of: str | None = of) -> None:
            if not store.search(query, tape=of):
                raise AssertionError(f"{query!r} is not found")

        small, grown = stores[1_000], stores[large]
        contenders = {"small": each(partial(find, small), 10), "large": each(partial(find, grown), 10)}
        times = race(run.pick(30, 2), contenders)
        what = f"{what} in {large:,} entries against 1,000, {engine}"
        run.report.bar(what, times.growth("large", "small"), most=3, times=times.all())


def sizes(run: Run, engine: str, store: tape.Store) -> None:
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

    def find(query: str, hits: int) -> None:
        if len(store.search(query, limit=hits)) != hits:
            raise AssertionError(f"{query[:20]!r} is not found in {hits} texts")

    first, *others = queries
    for hits in (20, 10):
        times = race(run.pick(30, 1), {name: each(partial(find, query, hits), 3) for name, query in queries.items()})
        told = times.all()
        for name in others:
            # Two words that stand anywhere in a text are shown by reading all of it: for information.
            most = 3 if "50 KB" in name else None
            shown = {one: told[one] for one in (first, name)}
            what = f"{name}, {hits} hits, to {first}, {engine}"
            run.report.bar(what, times.growth(name, first), most=most, times=shown)
