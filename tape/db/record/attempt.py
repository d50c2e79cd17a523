"""One attempt to record calls, in a transaction of one caller or of several, each with its own receipts or refusal.

Most calls are appends behind a head that is kept in memory. Several calls are planned one after the other, and their
rows are sent at the end, table by table, for all tapes at once. A task whose tape is not known yet, or which the kept
head refuses, is decided afresh: everything is read again. In a group that happens inside a savepoint, so that its
refusal undoes nothing of the others. If the rows collide with another process, or with a key that is taken, the whole
group is rolled back and run once more, and then all tasks are decided afresh. If that fails as well, each is run by
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from tape.core.plan.intents import Intent, Taken, Unchanged
from tape.core.plan.messages import AddMessage
from tape.core.records import Receipt
from tape.core.view.fold import Op
from tape.db.engine.failures import Stale
from tape.db.engine.guests import Joined
from tape.db.engine.transaction import Transaction
from tape.db.record import replays
from tape.db.record.projection import apply
from tape.db.record.writing import Call, Heads, Shared, Writing, keep, load
from tape.errors import StoreBusy, StoreFailed, TapeError

__all__ = ["Task", "alone", "record_or_replay", "together"]


class Task(Struct):
    """One call to record, and what an attempt has to know of those before it."""

    shared: Shared
    call: Call
    intents: Sequence[Intent]
    fresh: bool
    """Everything is read afresh: a kept head was out of date, or may be."""
    lost: int = 0
    """How many attempts may have been recorded, although their replies were lost."""

    @property
    def key(self) -> str:
        """The key that CommitUnknown names, so that the caller can ask what became of the call."""
        return self.call.batch or (self.intents[0].key.value if self.intents else self.call.create_key)


def together(tasks: Sequence[Task], collided: bool, tx: Transaction) -> list[list[Receipt] | Exception]:
    """Record the tasks of all who share a transaction; returns the receipts of each, or its refusal.

    If a first try ``collided`` with another process, or with a key that is taken, each is decided afresh.
    """
    if len(tasks) == 1:
        (only,) = tasks
        return [_afresh(only.shared, only, tx) if collided else alone(only, tx)]
    # On PostgreSQL they are all of one tape; SQLite has one writer anyway.
    tx.lock(tasks[0].call.tape)
    group = _Group(tx, tasks[0].shared.heads)
    outcomes = [group.afresh(task) if collided or task.fresh else group.record(task) for task in tasks]
    group.send()
    tx.after_commit = group.keep
    return outcomes


def alone(task: Task, tx: Transaction) -> list[Receipt]:
    """Record a task as the only one of its transaction."""
    shared, call, intents = task.shared, task.call, task.intents
    state = None if task.fresh else shared.kept(call.tape)
    if state is None:
        return _afresh(shared, task, tx)
    writing = Writing(shared, tx, call, state)
    if tx.postgres:
        writing.hot = True
        if len(intents) == 1:
            only = intents[0]
            writing.defers = type(only) is AddMessage and not only.generated
    try:
        receipts = writing.record_all(intents)
    except (TapeError, Taken, Unchanged) as error:
        # What the kept head refuses is decided once more, with everything read afresh.
        raise Stale from error
    writing.finish()
    return receipts


def _afresh(shared: Shared, task: Task, tx: Transaction) -> list[Receipt]:
    """Answer what was recorded before, refuse what cannot be recorded, and record the rest."""
    call, intents = task.call, task.intents
    tx.lock(call.tape)
    writing = Writing(shared, tx, call, load(shared, tx, call))
    if call.create is not None:
        if not writing.existed:
            writing.create()
        elif call.exists_ok and replays.is_wanted(writing, call.create.owner):
            return []
        else:
            replays.check_created(writing, intents)
    before = replays.recorded_before(writing, intents, lost=task.lost > 0)
    new = [intent for intent in intents if intent.key.value not in before]
    if new and not replays.says_nothing_new(writing, new):
        writing.check(new)
    writing.look_ahead(new)
    receipts = record_or_replay(writing, intents, before)
    writing.finish()
    return receipts


def record_or_replay(
    writing: Writing, intents: Sequence[Intent], before: Mapping[str, replays.Replay]
) -> list[Receipt]:
    """Record the intents that are new, and answer the others with what was recorded ``before``; sends nothing yet."""
    receipts = []
    for intent in intents:
        replay = before.get(intent.key.value)
        if replay is None:
            try:
                receipts.append(writing.record(intent))
                continue
            except Taken as taken:
                replay = replays.entry_at(writing, taken.seq, taken.tape).checked(intent)
            except Unchanged as unchanged:
                replay = replays.entry_at(writing, unchanged.seq, unchanged.tape)
        writing.previous = replay.place
        receipts.append(replay.receipt)
    return receipts


class _Group:
    """What one transaction writes for several tasks, be they of one owner or of many."""

    def __init__(self, tx: Transaction, kept_heads: Heads | None) -> None:
        self._tx = tx
        self._kept_heads = kept_heads
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
                return writing.record_all(task.intents)
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
        inner = Shared(database, shared.owner, shared.clock, self._heads, shared.new_id, shared.fenced)
        try:
            return Joined(self._tx, database).write(tape, partial(_afresh, inner, task))
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
        changes: list[tuple[Writing, list[Op]]] = []
        for writing in writings:
            rows, ops = writing.hand_over()
            entries += rows
            plain = writing.opened(ops)
            opened += plain
            if not plain:
                changes.append((writing, ops))
        database.point("entry")
        writings[0].send(entries)
        database.point("view")
        if opened:
            tx.many(sql.open_row, opened)
        for writing, ops in changes:
            apply(tx, writing.tape_id, ops, writing.head, writing.ancestry)
        database.point("head")
        heads = [writing.head_row() for writing in writings]
        if tx.many(sql.move_head, heads) != len(heads):
            tx.check_revision()
            raise Stale

    def keep(self) -> None:
        """Keep the heads for the next tasks: it is committed."""
        for name, writing in self._open.items():
            self._heads[name] = writing.state
        if self._kept_heads is not None:
            keep(self._kept_heads, self._heads)
