"""The checks of a doctor, and the command that repairs each finding."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tape.core.amounts import count, size
from tape.core.records import Finding, IndexProblem, Problem, Report, ViewProblem
from tape.core.strict import RESERVED
from tape.db.engine.connect import Unreachable, sqlite_loses_pages
from tape.db.engine.transaction import Database
from tape.db.maintain.inspect import Oldest, StoreState, integrity, missing_guards, oldest_transaction, wal_size
from tape.db.maintain.purge import unemptied
from tape.db.schema.tables import REVISION
from tape.db.transfer.staging import forsaken
from tape.errors import StoreBusy, TapeError, TapeHidden, TapeNotFound

if TYPE_CHECKING:
    from tape.db.transfer.files import Progress
    from tape.store import Store

__all__ = ["examine", "schema_finding"]

LONG_WAL = 64 * 1024 * 1024
"""SQLite checkpoints the log by itself at 4 MiB. A much longer one means that a reader prevents it."""
LONG_TRANSACTION = 60.0
"""Seconds after which an open transaction is reported."""
LONG_LAG = 10_000
"""Entries; a search that may write indexes so many in a second or two."""
FINISH = "tape retain --older-than 36500d --apply --yes"
"""Finishes interrupted purges and imports. No tape is old enough for it to purge another one."""
_MOST = 5


def schema_finding(state: StoreState) -> Finding:
    """Report why this release cannot work with what is at the address of a store."""
    if state.damaged is not None:
        return Finding("schema", "error", f"the file {state.damaged}", "restore the file from a backup")
    if state.newer:
        problem = f"revision {state.revision} was made by a newer release; this release supports up to {REVISION}"
        return Finding("schema", "error", problem, "pip install --upgrade tape-store")
    problem = f"revision {state.revision} is too old; this release needs {REVISION}"
    return Finding("schema", "error", problem, "tape backup FILE with the old release, then: tape migrate")


def examine(store: Store, database: Database, *, quick: bool, progress: Progress | None) -> Iterator[Finding]:
    """Run every check on an open store. A check that the damage itself prevents is a finding, too.

    What one owner sees of the store tells nothing about the others: not their transactions, nor the whole file.
    """
    # A database that is closed or cannot be reached is not damaged.
    database.read(lambda tx: tx.execute("SELECT 1", ()).fetchone())
    yield Finding("schema", "ok", f"revision {REVISION}")
    for name, look in _checks(store, database, quick=quick, progress=progress).items():
        try:
            yield from look()
        except (StoreBusy, Unreachable):
            raise
        except TapeError as error:
            yield Finding(name, "error", f"cannot be read: {error}", "restore the store from a backup")


def _checks(
    store: Store, database: Database, *, quick: bool, progress: Progress | None
) -> dict[str, Callable[[], Iterable[Finding]]]:
    """Return the checks by name, in their order."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {}
    of_all = store.owner is None
    checks["engine"] = lambda: [engine_finding("PostgreSQL" if database.postgres else "SQLite", store.health().server)]
    if of_all and not database.postgres:
        checks["log"] = lambda: [wal_finding(length) for length in [wal_size(database)] if length is not None]
    checks["guards"] = lambda: [guards_finding(missing_guards(database))]
    if of_all and database.postgres:
        checks["transactions"] = lambda: [transaction_finding(oldest_transaction(database))]
    checks["purges"] = lambda: purge_findings(store, database)
    checks["index"] = lambda: [lag_finding(lag) for lag in [store.health().index_lag] if lag is not None]
    if quick:
        checks["integrity"] = lambda: [Finding("integrity", "note", "not checked (quick)")]
        return checks
    if of_all and not database.postgres:
        checks["integrity"] = lambda: [integrity_finding(integrity(database))]
    checks["chain"] = lambda: report_findings(store.verify(progress=progress))
    return checks


def engine_finding(engine: str, version: str) -> Finding:
    """Report the version of the database, and whether it has the fault that can lose committed pages."""
    if engine == "SQLite" and version and sqlite_loses_pages(tuple(int(part) for part in version.split(".")[:3])):  # type: ignore[arg-type]
        problem = f"SQLite {version} can lose committed pages when two programs write and checkpoint at the same time"
        mend = "use a Python with SQLite 3.51.3, 3.50.7 or 3.44.6; until then, write the file from one program only"
        return Finding("engine", "warning", problem, mend)
    return Finding("engine", "ok", f"{engine} {version}")


def wal_finding(length: int) -> Finding:
    """Report the size of the write-ahead log."""
    if length <= LONG_WAL:
        return Finding("log", "ok", f"write-ahead log of {size(length)}")
    problem = f"write-ahead log of {size(length)}: a long read prevents a checkpoint"
    return Finding("log", "warning", problem, "end long reads, then: tape doctor --checkpoint")


def guards_finding(missing: list[str]) -> Finding:
    """Report whether the database still refuses to change entries."""
    if not missing:
        return Finding("guards", "ok", "entries cannot be changed")
    return Finding(
        "guards",
        "error",
        f"triggers that protect the entries are missing: {', '.join(missing)}",
        "tape migrate, then: tape verify",
    )


def transaction_finding(oldest: Oldest | None) -> Finding:
    """Report which transaction holds back the feed and vacuum."""
    if oldest is None or oldest.seconds < LONG_TRANSACTION:
        return Finding("transactions", "ok", "no long-running transaction")
    if oldest.prepared is not None:
        place = f"in database {oldest.application!r} for {oldest.seconds:,.0f} s"
        problem = f"transaction {oldest.prepared!r} has been prepared {place} and blocks the feed"
        name = oldest.prepared.replace("'", "''")
        return Finding(
            "transactions", "warning", problem, f"psql -d {oldest.application} -c \"ROLLBACK PREPARED '{name}'\""
        )
    by = f" of {oldest.application!r}" if oldest.application else ""
    problem = (
        f"process {oldest.pid}{by} has had a transaction open for {oldest.seconds:,.0f} s ({oldest.state}), "
        "which blocks the feed"
    )
    return Finding("transactions", "warning", problem, f"psql -c 'SELECT pg_terminate_backend({oldest.pid})'")


def purge_findings(store: Store, database: Database) -> Iterator[Finding]:
    """Report which purged tapes, and tapes of imports that died, still have rows."""
    unfinished = unemptied(database, store.owner)
    dead = len(forsaken(database, store.owner, time.time_ns() // 1000))
    if not unfinished and not dead:
        yield Finding("purges", "ok", "no unfinished purge or import")
    if dead:
        problem = f"an interrupted import left hidden rows of {count(dead, 'tape')}"
        yield Finding("purges", "warning", problem, FINISH)
    for _, name, _, _ in unfinished[:_MOST]:
        problem = f"the purge of {name!r} is unfinished: it was interrupted or is still running"
        # When the id is in use again, purging it would purge the new tape. FINISH purges no tape at all.
        mend = FINISH if _exists(store, name) else f"tape purge {name}"
        yield Finding("purges", "warning", problem, mend)


def _exists(store: Store, name: str) -> bool:
    try:
        store.get(name)
    except TapeNotFound as error:
        return isinstance(error, TapeHidden)
    return True


def lag_finding(lag: int) -> Finding:
    """Report how far the search index is behind."""
    if lag <= LONG_LAG:
        return Finding("index", "ok", f"about {count(lag, 'entry')} behind")
    return Finding("index", "note", f"about {count(lag, 'entry')} behind", "tape search --index anything")


def integrity_finding(problems: list[str]) -> Finding:
    """Report what the database finds wrong with its own file."""
    if not problems:
        return Finding("integrity", "ok", "every page and index is intact")
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    problem = " ".join(problems[0].split())
    return Finding("integrity", "error", f"{problem}{more}", "restore the file from a backup")


def report_findings(report: Report) -> Iterator[Finding]:
    """Report what verify found, separately for the chain and for the view."""
    view = [problem for problem in report.problems if isinstance(problem, ViewProblem)]
    index = [problem for problem in report.problems if isinstance(problem, IndexProblem)]
    chain = [problem for problem in report.problems if not isinstance(problem, ViewProblem | IndexProblem)]
    if not chain:
        yield Finding("chain", "ok", f"{count(report.entries, 'entry')} on {count(report.tapes, 'tape')} verified")
    for problem in _first(chain):
        mend = "restore the tape from a backup or an export"
        yield Finding("chain", "error", f"{problem.tape}:{problem.seq} {problem.what}", mend)
    if not view:
        yield Finding("view", "ok", "matches the entries")
    for problem in _first(view):
        # A row of no tape is deleted when all tapes are rebuilt.
        mend = "tape rebuild" if problem.tape.startswith(RESERVED) else f"tape rebuild {shlex.quote(problem.tape)}"
        yield Finding("view", "error", f"{problem.tape}:{problem.seq} {problem.what}", mend)
    for problem in _first(index)[:1]:
        where = f"{problem.tape}:{problem.seq} " if problem.tape else ""
        yield Finding("words", "error", f"{where}{problem.what}", "tape rebuild")


def _first(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first problem of each tape, for a limited number of tapes."""
    by_tape = {problem.tape: problem for problem in reversed(problems)}
    return list(reversed(by_tape.values()))[:_MOST]
