"""Rebuilding: the view of a tape is replaced by what folding its entries gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tape.core.records import Problem
from tape.core.view.in_memory import View
from tape.db.engine.log import log
from tape.db.engine.transaction import Database, Transaction
from tape.db.maintain.stored_tape import Meter, Progress, StoredTape, find_tape, fold_row, tape_names
from tape.db.maintain.view_rows import rows_of
from tape.db.record.projection import set_hidden, set_labels, set_name, set_redirect, set_status
from tape.db.record.recorder import Opener, Recorder
from tape.db.record.writing import head_values
from tape.db.view.ancestry import place_at
from tape.errors import Corrupt

__all__ = ["rebuild"]


def rebuild(
    database: Database,
    owner: str | None,
    recorder: Recorder,
    tape: str | None,
    progress: Progress | None = None,
    skipped: Callable[[Problem], object] | None = None,
) -> int:
    """Rebuild one tape or all, one transaction per tape; returns how many were rebuilt.

    Of all tapes, one whose entries cannot be read keeps its view, and ``skipped`` is called with the problem.
    """
    meter = Meter(database, owner, tape, progress)
    count = 0
    if tape is None and owner is None:
        database.repeat("", _sweep)
    for name in [tape] if tape is not None else tape_names(database, owner):
        try:
            meter.add(recorder.several([name], "rebuild", partial(_rebuild, name, owner)))
        except Corrupt as error:
            if tape is not None:
                raise
            log.error("tape.unreadable", tape=name, seq=error.seq, what=error.what)
            if skipped is not None:
                skipped(Problem(name, error.seq, error.what))
            continue
        recorder.forget(name)
        log.info("tape.rebuilt", tape=name)
        count += 1
    return count


def _sweep(tx: Transaction) -> None:
    """Delete the rows of the view that belong to no tape, or to one that was purged."""
    for statement in tx.statements.sweep_view:
        tx.run(statement, ())


def _rebuild(name: str, owner: str | None, tx: Transaction, _: Opener) -> int:
    """Rebuild one tape; returns how many entries it has."""
    tape = find_tape(tx, name, owner)
    view = View()
    for rows in tape.entries(tx):
        for row in rows:
            if row.payload is None:
                raise Corrupt(name, row.seq, "the payload is missing, so the view cannot be rebuilt")
            try:
                fold_row(view, row, place_at(row.lane, row.ordinal, row.head_tape, tape.ancestry))
            except (Corrupt, KeyError, TypeError, ValueError) as error:
                what = error.what if isinstance(error, Corrupt) else str(error)
                raise Corrupt(name, row.seq, f"the entry cannot be folded: {what}") from error
    _replace(tx, tape, view)
    return view.head.seq


def _replace(tx: Transaction, tape: StoredTape, view: View) -> None:
    """Replace the rows that the tables hold with those of ``view``."""
    sql, rows = tx.statements, rows_of(view, tape)
    inserts = {
        "tape_live": sql.open_row,
        "tape_past": sql.insert_past,
        "tape_lanes": sql.insert_lane,
        "tape_aliases": sql.insert_alias,
        "tape_calls": sql.insert_call,
        "tape_answers": sql.insert_answer,
        "tape_anchors": sql.insert_anchor,
        "tape_events": sql.insert_event,
        "tape_clears": sql.insert_clear,
        "tape_slots": sql.insert_slot,
        "tape_forks": sql.insert_fork,
        "tape_overrides": sql.insert_override,
        "tape_compactions": sql.insert_compaction,
    }
    for statement in sql.wipe:
        tx.run(statement, (tape.number,))
    for table, insert in inserts.items():
        tx.many(insert, [(tape.number, *row) for row in rows[table]])
    values = head_values(view.head, tape.ancestry)
    if not tx.run(sql.set_head, (*values, tape.number)):
        tx.run(sql.create_head, (tape.number, *values))
    tx.check_revision()
    set_status(tx, tape.number, view.head)
    set_name(tx, tape.number, view.name)
    set_redirect(tx, tape.number, view.redirect)
    set_labels(tx, tape.number, view.labels)
    set_hidden(tx, tape.number, view.head.hidden)
