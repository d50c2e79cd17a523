"""Verifying what is outside the tapes: rows that belong to no tape, and rows that a purge left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tape.core import strict
from tape.core.entries import payloads
from tape.core.records import Problem, ViewProblem
from tape.db.engine.transaction import Transaction
from tape.db.sql.rows.upkeep import BuriedTape
from tape.db.transfer.staging import HIDDEN_NAMES
from tape.errors import Corrupt

__all__ = ["strays"]


def strays(tx: Transaction, owner: str | None) -> list[Problem]:
    """Return every row that belongs to no tape, every row that a purge should have deleted, and every wrong tombstone.

    A row of no tape has no owner either, so a store of one owner gets problems of its own tombstones only.
    """
    problems = [*_tombstones(tx, owner), *_unburied(tx, owner)]
    if owner is None:
        problems += _orphans(tx)
    return problems


def _orphans(tx: Transaction) -> Iterator[Problem]:
    sql = tx.statements
    view = {table.name for table in sql.tables.view}
    for queries, why in ((sql.orphans, "does not exist"), (sql.remains, "was purged")):
        for table, statement in queries.items():
            for number, count, first in tx.all(statement, ()):
                # A derived row can be deleted by a rebuild; a recorded one needs a person to decide.
                what = f"of a tape that {why} ({count} in all)"
                if table in view:
                    yield ViewProblem(_nameless(number), first or 0, f"{table} has rows {what}")
                else:
                    yield Problem(_nameless(number), first or 0, f"{table} has rows {what}")
    for number, count, first in tx.all(sql.stuck_arrivals, ()):
        what = f"{sql.tables.arrivals.name} has rows of an import that is finished ({count} in all)"
        yield Problem(_nameless(number), first, what)


def _nameless(number: int) -> str:
    """Return a name for a tape of which only the number is known; no tape can have it as its id."""
    return f"{strict.RESERVED}{number}"


def _tombstones(tx: Transaction, owner: str | None) -> Iterator[Problem]:
    for row in tx.all(tx.statements.tombstones, ()):
        tape, seq, hash = row.tape, row.seq, _bytes(row.hash)
        if owner not in (None, row.owner, row.row_owner):
            continue
        # The row of a purged tape is renamed when its id is used again.
        named = row.row_tape in (tape, f"{strict.RESERVED}{row.tape_id}:{tape}")
        if row.row_status != "purged" or not named or row.owner != row.row_owner:
            yield Problem(tape, seq, "the tombstone does not match the tape with its number")
        elif (row.head_seq, _bytes(row.head_hash)) != (seq, hash) or row.emptied not in (0, 1):
            yield Problem(tape, seq, "the tombstone does not match the head of the purged tape")
        elif (_bytes(row.entry_hash), row.entry_stamp) != (hash, row.stamp) or not _records_purge(row):
            yield Problem(tape, seq, "the tombstone does not match the last entry of the purged tape")


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _records_purge(row: BuriedTape) -> bool:
    if row.entry_kind != "status" or row.entry_payload is None or row.entry_version is None:
        return False
    try:
        payload = payloads.decode(row.entry_kind, row.entry_version, row.entry_payload)
    except Corrupt:
        return False
    return isinstance(payload, payloads.Status) and payload.status == "purged"


def _unburied(tx: Transaction, owner: str | None) -> Iterator[Problem]:
    for _, tape, whose in tx.all(tx.statements.unburied, HIDDEN_NAMES):
        if owner in (None, whose):
            yield Problem(tape, 1, "the tape is marked as purged, but it has no tombstone")
