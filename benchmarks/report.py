"""What a run found: figures against their bars, under which conditions, as JSON and on the terminal."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

PACKAGES = ("tape-store", "sqlalchemy", "msgspec", "psycopg")
RESULTS = Path(__file__).parent / "results"


class Measured(msgspec.Struct):
    """What one contender took: microseconds an operation, and operations a second."""

    median: float
    p99: float
    p999: float
    per_second: float
    operations: int


class Figure(msgspec.Struct):
    """One ratio, the bar it is held against, and the times behind it."""

    group: str
    what: str
    value: float
    least: float | None = None
    most: float | None = None
    times: dict[str, Measured] = {}
    note: str = ""

    @property
    def bar(self) -> str:
        """The bar in words; figures for information have none."""
        if self.least is not None:
            return f"≥ {self.least:g}"
        return "–" if self.most is None else f"≤ {self.most:g}"

    @property
    def good(self) -> bool:
        """Whether the figure meets its bar."""
        value = round(self.value, 2)
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return "–" if self.bar == "–" else "PASS" if self.good else "FAIL"

    @property
    def told(self) -> str:
        """The times behind the ratio, in words."""
        parts = [f"{name} {shown_time(one.median)} (p99 {shown_time(one.p99)})" for name, one in self.times.items()]
        return "; ".join([*parts, *([self.note] if self.note else [])])


class Series(msgspec.Struct):
    """What the n-th message costs one contender: points of n and microseconds."""

    name: str
    points: list[tuple[int, float]]
    note: str = ""


class Report(msgspec.Struct):
    """One run: its conditions, its figures, and what could not be measured."""

    conditions: dict[str, str] = {}
    figures: list[Figure] = []
    series: list[Series] = []
    jobs: dict[str, dict[str, dict[str, Measured]]] = {}
    """What every store took for each job, by engine, job and name."""
    missing: list[str] = []
    group: str = ""

    def bar(
        self,
        what: str,
        value: float,
        *,
        least: float | None = None,
        most: float | None = None,
        times: dict[str, Measured] | None = None,
        note: str = "",
    ) -> None:
        """Take in a figure with its bar, and print it."""
        self.add(Figure(self.group, what, value, least, most, times or {}, note))

    def add(self, figure: Figure) -> None:
        """Take in a figure, and print it."""
        self.figures.append(figure)
        print(f"{figure.verdict:5}{figure.value:7.2f}  {figure.bar:7} {figure.what}   ({figure.told})", flush=True)

    def lack(self, what: str) -> None:
        """Say loudly that something could not be measured."""
        self.missing.append(what)
        print(f"MISSING: {what}", flush=True)

    @property
    def failed(self) -> int:
        """How many figures miss their bar."""
        return sum(not figure.good for figure in self.figures)

    def end(self) -> None:
        """Note the load at the end, too: neighbours may have come during the run."""
        self.conditions["load"] += f", {os.getloadavg()[0]:.1f} at its end"

    def json(self) -> bytes:
        """Return everything as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def shown_time(microseconds: float) -> str:
    """Return a time as it is read."""
    return f"{microseconds:.0f} µs" if microseconds < 10_000 else f"{microseconds / 1000:.0f} ms"


def conditions(quick: bool, server: str) -> dict[str, str]:
    """Return what a reader has to know of the machine and of the versions."""
    return {
        "date": datetime.date.today().isoformat() + (" (quick: a smoke run, no measurement)" if quick else ""),
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f} before the run",
        "Python": platform.python_version(),
        "SQLite": f"{sqlite3.sqlite_version}, WAL, synchronous as named (full, if nothing is said)",
        "PostgreSQL": server,
        "libraries": ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name))),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        return found[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return platform.processor() or "unknown processor"


def server_of(connection: Any) -> str:
    """Return a PostgreSQL server's version and the settings on which durability hangs."""

    def show(name: str) -> Any:
        row = connection.execute(f"SHOW {name}".encode()).fetchone()
        return row[0] if row else ""

    where = "unix socket" if "host=/" in connection.info.dsn else "TCP"
    settings = ", ".join(f"{name} {show(name)}" for name in ("fsync", "synchronous_commit"))
    return f"{show('server_version')} over a {where}, {settings}"
