"""Tasks of several callers in one transaction, each with its own receipts or its own refusal.

Most tasks are appends behind a head that is kept in memory. They are planned one after the other, and what they write
is sent at the end, table by table, for all tapes at once. A task that needs a closer look (its tape is not known yet,
or what is kept of it refuses) is decided afresh inside a savepoint, so that its refusal undoes nothing of the others.
If what is sent at the end collides with another process or with a key that is taken, the whole group is undone and run
once more, and then all of them are looked at closely. If that fails as well, each task is run by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from tape.core.records import Receipt
from tape.core.view.fold import Op, OpenRow
from tape.db.engine.guests import Joined
from tape.db.engine.transaction import Stale, Transaction
from tape.db.record.attempt import Task, afresh, alone, on_kept_head
from tape.db.record.projection import apply
from tape.db.record.writing import Call, Heads, Shared, Writing, inserts, keep
from tape.errors import StoreBusy, StoreFailed

__all__ = ["Group", "together"]


def together(tx: Transaction, tasks: Sequence[Task], collided: bool) -> list[list[Receipt] | Exception]:
    """Record the tasks of all who share a transaction; returns the receipts of each, or its refusal.

    If a first try ``collided`` with another process, or with a key that is taken, each is decided afresh.
    """
    if len(tasks) == 1:
        return [alone(tasks[0], tx)]
    # On PostgreSQL they are all of one tape; SQLite has one writer anyway.
    tx.lock(tasks[0].call.tape)
    group = Group(tx, tasks[0].shared.heads)
    outcomes = [group.afresh(task) if collided or task.fresh else group.record(task) for task in tasks]
    group.send()
    tx.after_commit = group.keep
    return outcomes


class Group:
    """What one transaction writes for several tasks, be they of one owner or of many."""

    def __init__(self, tx: Transaction, kept: Heads | None) -> None:
        self._tx = tx
        self._kept = kept
        self._heads: Heads = {}
        """The heads as this transaction leaves them."""
        self._open: dict[tuple[str | None, str], Writing] = {}
        """What is written of each tape and not yet sent; an owner sees only its own."""

    def record(self, task: Task) -> list[Receipt] | Exception:
        """Record a task, or return why it cannot be; what was recorded before it stays."""
        shared, call = task.shared, task.call
        writing = self._writing(shared, call)
        if writing is not None:
            before = writing.mark()
            try:
                return on_kept_head(writing, task.intents)
            except (Stale, shared.database.driver_error):
                raise
            except Exception:
                # A refusal, or an error of a callback of the caller's: decided once more, with everything read afresh.
                writing.undo(before)
        return self.afresh(task)

    def _writing(self, shared: Shared, call: Call) -> Writing | None:
        name = shared.owner, call.tape
        writing = self._open.get(name)
        if writing is not None:
            writing.go_on(call)
            return writing
        state = self._heads.get(name) or shared.kept(call.tape)
        if state is not None:
            writing = self._open[name] = Writing(shared, self._tx, call, state)
        return writing

    def afresh(self, task: Task) -> list[Receipt] | Exception:
        """Decide a task with everything read afresh, inside a savepoint; return why it cannot be recorded, if so."""
        shared, tape, database = task.shared, task.call.tape, task.shared.database
        writing = self._open.pop((shared.owner, tape), None)
        if writing is not None and writing.written:
            writing.move_head()
            self._heads[shared.owner, tape] = writing.state
        inner = Shared(database, shared.owner, shared.clock, self._heads)
        try:
            return Joined(self._tx, database).write(tape, partial(afresh, inner, task))
        except Exception as refusal:
            if isinstance(refusal, StoreFailed | StoreBusy) and isinstance(refusal.__cause__, database.driver_error):
                # The database itself is in trouble, not this task.
                raise
            return refusal

    def send(self) -> None:
        """Send what the tasks have added, table by table."""
        writings = [writing for writing in self._open.values() if writing.written]
        if not writings:
            return
        tx, sql, database = self._tx, self._tx.statements, writings[0].shared.database
        entries: list[tuple[Any, ...]] = []
        opened: list[tuple[Any, ...]] = []
        others: list[tuple[Writing, list[Op]]] = []
        for writing in writings:
            rows, ops = writing.hand_over()
            entries += rows
            if all(type(op) is OpenRow and op.place.tape is None for op in ops):
                opened += [writing.opens(op) for op in ops if type(op) is OpenRow]
            else:
                others.append((writing, ops))
        database.point("entry")
        # In their order, since that is the order of the feed.
        for width, run in groupby(entries, len):
            tx.many(inserts(tx, width), run)
        database.point("view")
        if opened:
            tx.many(sql.open_row, opened)
        for writing, ops in others:
            apply(tx, writing.tape_id, ops, writing.head, writing.ancestry)
        database.point("head")
        heads = [writing.head_row() for writing in writings]
        if tx.many(sql.move_head, heads) != len(heads):
            raise Stale

    def keep(self) -> None:
        """Keep the heads for the next tasks: it is committed."""
        for name, writing in self._open.items():
            self._heads[name] = writing.state
        if self._kept is not None:
            keep(self._kept, self._heads)
