"""The command: ``python -m benchmarks`` runs every group of figures, or the groups that are named."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import psycopg

from benchmarks import (
    adapters,
    against,
    append,
    disk,
    forks,
    growth,
    pgbouncer,
    postgres,
    processes,
    read,
    runs,
    search,
    shapes,
    slow_fsync,
    transcripts,
    writers,
)
from benchmarks.harness import Run, dsn, find_postgres
from benchmarks.page import page, rewrite_readme
from benchmarks.plot import svg
from benchmarks.report import RESULTS, Report, conditions, server_of


def startup(run: Run) -> None:
    """Start fresh processes, which ``benchmarks/startup.py`` measures."""
    if find_spec("benchmarks.startup") is None:
        run.report.lack("start-up: benchmarks/startup.py is not there")
        return
    folder = run.folder / "startup"
    folder.mkdir()
    for figure in import_module("benchmarks.startup").measure(run.pick(25, 1), folder):
        note = f"{figure.taken:.0f} ms and {figure.against:.0f} ms"
        run.report.bar(figure.what, figure.ratio, most=figure.most, note=note)


Group = Callable[[Run], None]
GROUPS: dict[str, Group] = {
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
    "startup": startup,
}
"""The groups of a run, by name and in order."""

MORE: dict[str, Group] = {
    "own-ids": growth.own_ids,
    "shapes": shapes.shapes,
    "context": shapes.context,
    "forks": forks.forks,
    "pgbouncer": pgbouncer.pgbouncer,
    "search": search.search,
    "adapters": adapters.adapters,
    "runs": runs.runs,
    "transcripts": transcripts.transcripts,
}
"""Groups that run when they are named, or with --all: they take longer, and look closer."""


def command() -> argparse.ArgumentParser:
    """Return what the command line may say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="How fast is tape?")
    names = f"{', '.join(GROUPS)}; and, unless --all, only by name: {', '.join(MORE)}"
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=names)
    parser.add_argument("--all", action="store_true", help="run every group there is")
    parser.add_argument("--quick", action="store_true", help="a smoke run: few rounds, short tapes, no verdict")
    parser.add_argument("--postgres", metavar="URL", help="a PostgreSQL to use; without one, a server is started")
    parser.add_argument("--no-postgres", action="store_true", help="leave PostgreSQL out")
    parser.add_argument("--no-peers", action="store_true", help="leave other stores out")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where run.json, .md and .svg go")
    parser.add_argument("--save", action="store_true", help="keep a whole run as results/latest.* and in README")
    return parser


def measure(report: Report, run: Run, names: list[str], out: Path) -> bool:
    """Run the groups and write what is known after each; tell whether none lost, doubled or damaged anything."""
    whole = True
    for name in names:
        print(f"{name} …", flush=True)
        report.group, began = name, time.perf_counter()
        try:
            {**GROUPS, **MORE}[name](run)
        except AssertionError as error:
            whole = False
            report.lack(f"the rest of {name}, which FAILED: {error}")
        print(f"  {time.perf_counter() - began:.0f} s", flush=True)
        write(report, out, "run")
    return whole


def write(report: Report, folder: Path, stem: str) -> None:
    """Write the JSON, the Markdown and, if there is a curve, the plot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.json").write_bytes(report.json())
    (folder / f"{stem}.md").write_text(page(report, f"{stem}.svg"), "utf-8")
    if report.series:
        (folder / f"{stem}.svg").write_text(svg(report.series, report.conditions), "utf-8")


def main() -> int:
    """Run, print and write; the status is 0 if all bars are met, 1 if some are not, 2 if a run was not sound."""
    parser = command()
    given = parser.parse_args()
    names = given.groups or [*GROUPS, *(MORE if given.all else ())]
    if unknown := [name for name in names if name not in {**GROUPS, **MORE}]:
        parser.error(f"there is no group {unknown[0]!r}; there are {', '.join([*GROUPS, *MORE])}")
    if given.save and (given.groups or given.quick or given.no_postgres or given.no_peers):
        parser.error("--save keeps a whole run: it goes with no group, --quick, --no-postgres or --no-peers")
    with tempfile.TemporaryDirectory(prefix="tape-bench-") as folder:
        url, server = None, "left out"
        if not given.no_postgres:
            try:
                url = find_postgres(given.postgres)
            except ImportError:
                parser.error(
                    "no PostgreSQL: name one by --postgres, leave it out by --no-postgres, or install '.[bench]'"
                )
            with psycopg.connect(dsn(url)) as connection:
                server = server_of(connection)
        report = Report(conditions(given.quick, server))
        for name, value in report.conditions.items():
            print(f"  {name}: {value}")
        whole = measure(report, Run(given.quick, Path(folder), url, not given.no_peers, report), names, given.out)
    report.end()
    write(report, given.out, "run")
    if given.save and whole:
        write(report, RESULTS, "latest")
        rewrite_readme(report)
    print(f"{len(report.figures)} figures, {report.failed} below their bar, {len(report.missing)} not measured")
    if not whole:
        return 2
    return 1 if report.failed and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main())
