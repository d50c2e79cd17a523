"""One attempt to record a call: behind a head that is kept in memory, or with everything read afresh."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tape.core.plan.intents import Intent, Taken, Unchanged
from tape.core.plan.messages import AddMessage
from tape.core.records import Receipt
from tape.core.view.fold import CLOSED
from tape.db.engine.transaction import Stale, Transaction
from tape.db.record import replays
from tape.db.record.writing import Call, Shared, Writing, load
from tape.errors import TapeError, TapeExists

__all__ = ["Task", "afresh", "alone", "on_kept_head"]


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
        """By which the caller of a CommitUnknown can ask what became of it."""
        return self.call.batch or (self.intents[0].key.value if self.intents else self.call.create_key)


def alone(task: Task, tx: Transaction) -> list[Receipt]:
    """Record a task as the only one of its transaction."""
    shared, call, intents = task.shared, task.call, task.intents
    kept = None if task.fresh else shared.kept(call.tape)
    if kept is None:
        return afresh(shared, task, tx)
    writing = Writing(shared, tx, call, kept)
    if tx.postgres and len(intents) == 1:
        only = intents[0]
        writing.defers = type(only) is AddMessage and not only.generated
    try:
        receipts = on_kept_head(writing, intents)
    except (TapeError, Taken, Unchanged) as error:
        # What the kept head refuses is decided once more, with everything read afresh.
        raise Stale from error
    writing.finish(kept=True)
    return receipts


def on_kept_head(writing: Writing, intents: Sequence[Intent]) -> list[Receipt]:
    """Plan and add intents on a head that was not read in this transaction."""
    if writing.call.expected_head is not None or writing.head.status in CLOSED:
        _check(writing, intents)
    if len(intents) == 1:
        return [writing.record(intents[0])]
    writing.look_ahead(intents)
    batch = replays.Repeats()
    return [batch.record(writing, intent) for intent in intents]


def afresh(shared: Shared, task: Task, tx: Transaction) -> list[Receipt]:
    """Answer what was recorded before, refuse what cannot be recorded, and record the rest."""
    call, intents = task.call, task.intents
    tx.lock(call.tape)
    writing = Writing(shared, tx, call, load(shared, tx, call))
    if call.create is not None:
        if not writing.existed:
            writing.create()
        elif tx.one(tx.statements.entry_by_key, (writing.tape_id, call.create_key)) is None:
            raise TapeExists(call.tape)
    before = replays.recorded_before(writing, intents, lost=task.lost > 0)
    new = [intent for intent in intents if intent.key.value not in before]
    if new and not replays.says_nothing_new(writing, new):
        _check(writing, new)
    writing.look_ahead(new)
    receipts = []
    batch = replays.Repeats()
    for intent in intents:
        replay = before.get(intent.key.value)
        if replay is None:
            try:
                receipts.append(batch.record(writing, intent))
                continue
            except Taken as taken:
                replay = replays.entry_at(writing, taken.seq, taken.tape).checked(intent)
            except Unchanged as unchanged:
                replay = replays.entry_at(writing, unchanged.seq, unchanged.tape)
        writing.previous = replay.place
        receipts.append(replay.receipt)
    writing.finish(kept=False)
    return receipts


def _check(writing: Writing, intents: Sequence[Intent]) -> None:
    """Refuse a write on a head that the caller does not know, or on a closed tape."""
    writing.check_head()
    if any(intent.changes_view for intent in intents):
        writing.check_open()
