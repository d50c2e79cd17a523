"""Verifying: the entries are the source of truth, and all derived rows must match them."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from tape.core.records import Problem, Receipt, Report
from tape.db.engine.failures import Again, Collision, Lost
from tape.db.engine.transaction import Database, Transaction
from tape.db.maintain.stored_tape import Meter, Progress, tape_names
from tape.db.maintain.verify_index import IndexCheck
from tape.db.maintain.verify_strays import strays
from tape.db.maintain.verify_tape import check_tape
from tape.errors import Corrupt, InvalidEntry, StoreBusy, StoreFailed

__all__ = ["check_receipt", "verify"]


def check_receipt(against: Any, tape: str | None) -> None:
    """Raise InvalidEntry unless ``against`` is a receipt, and of ``tape`` when a single tape is verified."""
    of, seq, hash = (getattr(against, name, None) for name in ("tape", "seq", "hash"))
    if not isinstance(of, str) or type(seq) is not int or not isinstance(hash, str):
        raise InvalidEntry("against", f"must be a receipt, not a {type(against).__name__}")
    if tape is not None and tape != of:
        raise InvalidEntry("against", f"is a receipt of tape {of!r}, not of {tape!r}")


def verify(
    database: Database,
    owner: str | None,
    tape: str | None,
    against: Receipt | None,
    now: int,
    progress: Progress | None = None,
) -> Report:
    """Check one tape, or all tapes of an owner with stray rows and the index; ``now`` is the time of the check."""
    meter = Meter(database, owner, tape, progress)
    index = IndexCheck(database)
    problems: list[Problem] = []
    erased: list[Problem] = []
    intact: list[tuple[int, int, bytes]] = []
    tapes = entries = 0
    missing = against
    if tape is None:
        problems += database.read(lambda tx: strays(tx, owner))
        problems += index.whole() if owner is None else []
    for name in [tape] if tape is not None else tape_names(database, owner):
        tapes += 1
        receipt = against if against is not None and against.tape == name else None
        missing = None if receipt is not None else missing
        try:
            # A new check for every run, because a read whose connection breaks is run again.
            check = database.read(partial(check_tape, name, owner, receipt, meter))
        except Corrupt as error:
            # A tape that even the check cannot read is reported, and the others are checked all the same.
            problems.append(Problem(name, error.seq, error.what))
            continue
        tape_problems = check.problems + (index.tape(name, check.tape.number) if check.intact else [])
        problems += sorted(tape_problems, key=lambda problem: problem.seq)
        erased += check.erased
        entries += check.entries
        if check.entries and not check.problems:
            intact.append((check.tape.number, *check.last))
    if missing is not None and not database.read(lambda tx: _purged(tx, owner, missing.tape)):
        problems.append(
            Problem(missing.tape, 1, f"the receipt is for seq {missing.seq}, but the whole tape is missing")
        )
    _note(database, intact, now)
    return Report(problems, tapes, entries, erased)


def _purged(tx: Transaction, owner: str | None, tape: str) -> bool:
    """Whether a tape of this owner was purged, so that it is rightly gone."""
    return any(owner in (None, tombstone.owner) for tombstone in tx.all(tx.statements.tombstone, (tape,)))


def _note(database: Database, intact: list[tuple[int, int, bytes]], now: int) -> None:
    """Record up to which seq each tape is intact; a database that cannot be written is verified all the same."""

    def work(tx: Transaction) -> None:
        tx.many(tx.statements.drop_check, [(number,) for number, _, _ in intact])
        tx.many(tx.statements.insert_check, [(number, seq, hash, now) for number, seq, hash in intact])

    if intact:
        with contextlib.suppress(StoreBusy, StoreFailed, Collision, Again, Lost):
            database.write("", work)
