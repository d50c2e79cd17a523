"""Many tapes: what list, search, append, context, a page of the feed and opening take on a store of many tapes, against
one of a thousand.

Run ``python -m benchmarks.scale --tapes 1000000 --entries 20000000 --folder /some/disk``. Both stores have as many
entries per tape, as many tapes per owner and as many tapes with a rare word. They take turns, operation by operation,
so that a busy machine slows both. The figure is the ratio of the medians. "a common word" is in every hundredth tape:
the answer is ranked over all of them, so that its time grows with the store, and it has no bar.

The files stay in ``--folder``, and a later run with the same numbers measures them again. ``--postgres URL`` measures a
PostgreSQL in two schemas of its own, which are dropped. ``--plans FILE`` keeps the plan of every statement that was run
on the large store.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import tape
from benchmarks.filling import WRITTEN, Filling
from benchmarks.harness import TEXT, schema
from tape.db.engine.transaction import Transaction

SMALL = WRITTEN
BAR = 1.5
NO_BAR = "a common word"


class Case:
    """One store, and the operations on it."""

    def __init__(self, url: str | sa.URL, options: dict[str, Any], tapes: int, entries: int) -> None:
        self.url = url
        self.options = options
        self.store = tape.open(url, durability="normal", **options)
        self.filled = Filling(self.store, tapes, entries).run()
        self._tapes = tapes
        self._pick = random.Random(7)
        self._position = max(entry.position or 0 for entry in itertools.islice(self.store.feed(), tapes // 2))

    def any_tape(self) -> tape.Tape:
        """Return a tape by chance."""
        return self.store.tape(f"t{self._pick.randrange(self._tapes)}")

    def operations(self) -> dict[str, Callable[[], object]]:
        """Return what is measured."""
        return {
            "list": lambda: self.store.list(limit=50),
            "list of an owner": lambda: self.store.list(owner="owner7", limit=50),
            "search": lambda: self.store.search("rare0000007", limit=20),
            NO_BAR: lambda: self.store.search("common", limit=20),
            "append": lambda: self.any_tape().append(role="user", content=TEXT),
            "context": lambda: self.any_tape().context(budget=8_000),
            "feed page": lambda: list(self.store.feed(self._position, limit=500)),
            "open": lambda: tape.open(self.url, durability="normal", **self.options).close(),
        }


def measure(small: Case, large: Case, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the median seconds of each operation on both stores."""
    figures = {}
    pairs = zip(small.operations().items(), large.operations().values(), strict=True)
    for (name, on_small), on_large in pairs:
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for taken, run in zip(times, (on_small, on_large), strict=True):
                began = time.perf_counter()
                run()
                taken.append(time.perf_counter() - began)
        figures[name] = statistics.median(times[0]), statistics.median(times[1])
    return figures


@contextmanager
def statements_run(seen: dict[str, str]) -> Iterator[None]:
    """Note the text of every statement that is run meanwhile, by name."""
    kept = {name: getattr(Transaction, name) for name in ("all", "one", "value", "run")}

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Transaction, statement: Any, params: Any) -> Any:
            seen[statement.name] = statement.sql
            return method(self, statement, params)

        return noted

    try:
        for name, method in kept.items():
            setattr(Transaction, name, noting(method))
        yield
    finally:
        for name, method in kept.items():
            setattr(Transaction, name, method)


def plans(case: Case) -> str:
    """Return the plan of every statement that the operations run, as text."""
    seen: dict[str, str] = {}
    with statements_run(seen):
        for operation in case.operations().values():
            operation()

    def explain(tx: Transaction) -> list[str]:
        pieces = []
        for name, sql in sorted(seen.items()):
            if case.store._db.postgres:
                numbers = itertools.count(1)
                text = "".join(piece if piece != "%s" else f"${next(numbers)}" for piece in _split(sql))
                rows = tx.execute(f"EXPLAIN (GENERIC_PLAN) {text}", ()).fetchall()
            else:
                rows = tx.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")).fetchall()
            pieces.append("\n".join([f"-- {name}", *(str(tuple(row)[-1]) for row in rows)]))
        return pieces

    return "\n\n".join(case.store._db.read(explain)) + "\n"


def _split(sql: str) -> list[str]:
    pieces = sql.split("%s")
    return [part for piece in pieces for part in (piece, "%s")][:-1]


def size_of(case: Case, folder: Path) -> int:
    """Return the bytes on disk."""
    if case.store._db.postgres:
        name = case.options["schema"]
        total = f"SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = '\"{name}\"'::regnamespace"
        return int(case.store._db.read(lambda tx: tx.execute(f"{total} AND relkind = 'r'", ()).fetchone())[0])
    return sum(file.stat().st_size for file in folder.glob("large-*.db*"))


def main() -> None:
    """Fill both stores, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tapes", type=int, default=20_000)
    parser.add_argument("--entries", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--postgres")
    parser.add_argument("--plans", type=Path)
    given = parser.parse_args()
    per_tape = given.entries // given.tapes
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tape-scale-")))
        folder.mkdir(parents=True, exist_ok=True)
        cases = []
        for name, tapes in (("small", SMALL), ("large", given.tapes)):
            url: str | sa.URL = str(folder / f"{name}-{tapes}-{per_tape}.db")
            options: dict[str, Any] = {}
            if given.postgres:
                url = sa.make_url(given.postgres).set(drivername="postgresql+psycopg")
                options = {"schema": stack.enter_context(schema(url, f"scale_{name}"))}
            cases.append(Case(url, options, tapes, tapes * per_tape))
            stack.callback(cases[-1].store.close)
        small, large = cases
        engine = "PostgreSQL" if given.postgres else "SQLite"
        print(f"{engine}, {given.tapes} tapes, {given.entries} entries, filled in {large.filled:.0f} s")
        print(f"{size_of(large, folder) / given.entries:.0f} bytes per entry, of which the text is {len(TEXT)}")
        for name, (before, after) in measure(small, large, given.rounds).items():
            late = "" if after <= BAR * before or name == NO_BAR else f"   over {BAR}"
            print(f"{name:17} {before * 1e3:8.3f} ms   {after * 1e3:8.3f} ms   {after / before:5.2f}{late}")
        if given.plans:
            given.plans.write_text(plans(large), encoding="utf-8")


if __name__ == "__main__":
    main()
