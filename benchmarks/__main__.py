"""The command: ``python -m benchmarks`` runs every group of figures, or the groups that are named."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from benchmarks import (
    against,
    append,
    disk,
    forks,
    growth,
    postgres,
    processes,
    read,
    search,
    shapes,
    slow_fsync,
    writers,
)
from benchmarks.harness import Run, dsn, find_postgres
from benchmarks.report import RESULTS, Report, conditions, server_of

GROUPS: dict[str, Callable[[Run], None]] = {
    "append": append.append,
    "threads": writers.threads,
    "async": writers.tasks,
    "slow-fsync": slow_fsync.slow_fsync,
    "processes": processes.processes,
    "postgres": postgres.postgres,
    "read": read.read,
    "growth": growth.growth,
    "peers": against.peers,
    "disk": disk.disk,
}
"""The groups of a run, by name and in order."""

MORE: dict[str, Callable[[Run], None]] = {
    "own-ids": growth.own_ids,
    "shapes": shapes.shapes,
    "context": shapes.context,
    "forks": forks.forks,
    "search": search.search,
}
"""Groups that run when they are named, or with --all: they take longer, and look closer."""

PACKAGES = ["tape-store", "sqlalchemy", "msgspec", "psycopg"]


def main() -> int:
    """Run the groups, print and write what they found; the status tells whether all bars are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="How fast is tape?")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join([*GROUPS, *MORE]))
    parser.add_argument("--quick", action="store_true", help="a smoke run: few rounds, short tapes")
    parser.add_argument("--postgres", metavar="URL", help="a PostgreSQL to use; without one, a server is started")
    parser.add_argument("--no-postgres", action="store_true", help="leave PostgreSQL out")
    parser.add_argument("--no-peers", action="store_true", help="leave other stores out")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where run.json, .md, .svg go")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tape-bench-") as folder:
        postgres = None if given.no_postgres else find_postgres(given.postgres)
        server = "left out"
        if postgres is not None:
            with psycopg.connect(dsn(postgres)) as connection:
                server = server_of(connection)
        report = Report(conditions(given.quick, server, PACKAGES))
        for name, value in report.conditions.items():
            print(f"  {name}: {value}")
        for name in given.groups or GROUPS:
            print(f"{name} …", flush=True)
            report.group, began = name, time.perf_counter()
            {**GROUPS, **MORE}[name](Run(given.quick, Path(folder), postgres, not given.no_peers, report))
            print(f"  {time.perf_counter() - began:.0f} s", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "run.json").write_bytes(report.json())
    (given.out / "run.md").write_text(report.markdown(), "utf-8")
    print(f"{len(report.figures)} figures, {report.failed} below their bar")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
