"""Recording: from intents to committed entries and their projection, in as many attempts as it takes.

The head of a tape is kept in memory between appends, so the usual append reads nothing. If another process wrote in
between, the insert collides with its seq, the transaction is rolled back, and the second attempt reads everything
afresh under the lock. That second attempt is also where keys are looked up and where every refusal is decided. Keys
come before any other check, so that a retry after a lost reply is a duplicate and never an error.

The first attempt shares its transaction with those of others who write at the same moment; any other is run by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tape import new_ids
from tape.core.entries.memory_kinds import Event
from tape.core.plan.intents import Intent, Plain, SetHidden
from tape.core.plan.keys import GIVEN
from tape.core.plan.messages import CHAIN, HEAD, AddMessage
from tape.core.records import Receipt
from tape.db.engine.failures import Again, Collision, Lost
from tape.db.engine.log import log, verbose
from tape.db.engine.transaction import Database, Transaction, lock_key
from tape.db.record.attempt import Task, alone, together
from tape.db.record.in_order import in_order
from tape.db.record.writing import Call, Shared, Writing, load
from tape.errors import CommitUnknown, Corrupt, SchemaTooNew, StoreBusy, StoreFailed, TapeError, TapeNotFound

__all__ = ["Opener", "Recorder", "record_all"]

_ATTEMPTS = 12
_RETRIED = (Collision, Again, Lost, StoreFailed, StoreBusy)
"""What may not be the last word on a call."""

R = TypeVar("R")

Opener = Callable[[Call], Writing]


class Recorder:
    """Records intents on tapes of one database."""

    def __init__(
        self,
        database: Database,
        *,
        owner: str | None,
        clock: Callable[[], int],
        keep_heads: bool,
        slow: float,
        new_id: Callable[[], str] = new_ids.new_id,
        fenced: bool = False,
    ) -> None:
        self.shared = Shared(database, owner, clock, database.heads if keep_heads else None, new_id, fenced)
        self.slow = slow

    def record(self, call: Call, intents: Sequence[Intent]) -> list[Receipt]:
        """Record all of ``intents`` in one transaction, or none of them."""
        task = self.task(call, intents)
        began = time.monotonic()
        try:
            (outcome,) = self.shared.database.share(call.tape, (task,), together)
        except _RETRIED as error:
            outcome = error
        if isinstance(outcome, Exception):
            outcome = self.go_on(task, outcome)
        took = time.monotonic() - began
        if took > self.slow or verbose():
            self.tell(task, outcome, took)
        return outcome

    def task(self, call: Call, intents: Sequence[Intent]) -> Task:
        """Return a call as a task to record."""
        shared = self.shared
        fresh = shared.heads is None or call.create is not None or (shared.database.postgres and not _hot(intents))
        # To show a hidden tape is the one write that a move cannot keep out by an entry of its own.
        fresh = fresh or (shared.fenced and any(isinstance(intent, SetHidden) for intent in intents))
        return Task(shared, call, intents, fresh)

    def go_on(self, task: Task, error: Exception) -> list[Receipt]:
        """Record a task after a first attempt that failed; raises what cannot be helped."""

        def attempt(number: int) -> list[Receipt]:
            if not number:
                raise error
            return self.shared.database.write(task.call.tape, partial(alone, task))

        return self._retry((task.call.tape,), task, attempt)

    def several(self, tapes: Sequence[str], key: str, function: Callable[[Transaction, Opener], R]) -> R:
        """Run ``work`` in one transaction that writes several tapes, which it opens by name.

        The tapes are locked in one order whoever asks, so that two such calls never wait for each other. ``key`` tells
        the caller of a CommitUnknown which call it was. Every key of the entries is fixed or derived, so that a second
        run finds what a first one may have written.
        """
        ordered = sorted(set(tapes), key=lock_key)
        self.shared.database.touch(ordered)
        run = partial(self._several, ordered, function)
        task = Task(self.shared, Call(tapes[0], batch=key), (), fresh=True)
        return self._retry(tapes, task, lambda _: self.shared.database.write(tapes[0], run))

    def in_order(self, requests: Sequence[tuple[Call, Sequence[Intent]]]) -> list[Receipt]:
        """Record calls on one tape, one after the other, all or none. Their keys are given or fixed."""
        tape = requests[0][0].tape
        task = Task(self.shared, requests[0][0], requests[0][1], fresh=True)
        run = partial(in_order, self.shared, requests)
        return self._retry((tape,), task, lambda _: self.shared.database.write(tape, run))

    def forget(self, tape: str) -> None:
        """Drop what is kept of a tape's head."""
        if self.shared.heads is not None:
            self.shared.heads.pop((self.shared.owner, tape), None)

    def _retry(self, tapes: Sequence[str], task: Task, attempt: Callable[[int], R]) -> R:
        """Attempt something until it is committed, or cannot be.

        An attempt whose reply was lost may have been recorded. Its keys were fixed before it, so the next attempt finds
        out. If that fails as well, CommitUnknown tells the caller the key to ask for.
        """
        began = time.monotonic()
        for number in range(_ATTEMPTS):
            try:
                return attempt(number)
            except Collision as error:
                if task.fresh and number > 2:
                    raise self._collided(tapes, error) from error
            except Again:
                log.info("tape.retry", tape=tapes[0], attempt=number)
            except Lost as error:
                log.warning("tape.connection_lost", tape=tapes[0], key=task.key, attempt=number)
                task.lost += 1
                if task.lost > 2:
                    raise CommitUnknown(tapes[0], task.key) from error
            except (StoreFailed, StoreBusy, SchemaTooNew) as error:
                # True of this attempt only: an earlier one may have been recorded.
                if task.lost:
                    raise CommitUnknown(tapes[0], task.key) from error
                raise
            task.fresh = True
        if task.lost:
            raise CommitUnknown(tapes[0], task.key)
        raise StoreBusy(time.monotonic() - began)

    def _collided(self, tapes: Sequence[str], error: Exception) -> TapeError:
        """Return what it means that an entry collides with something that a fresh look did not show."""
        if self.shared.heads is None:
            return StoreFailed(
                f"tape {tapes[0]!r} was written after this transaction began, and the isolation level hides it; "
                "roll back and retry"
            )
        database, owner = self.shared.database, self.shared.owner
        for tape in tapes:
            row = database.read(lambda tx, tape=tape: tx.one(tx.statements.head, (tape,)))  # type: ignore[misc]
            if row is None or (owner is not None and row.owner != owner):
                # Row-level security hides the tape of another owner, but its id is taken.
                return TapeNotFound(tape)
        return Corrupt(
            tapes[0], 0, f"the key or the seq of the entry is taken, but the entry that has it cannot be found: {error}"
        )

    def tell(self, task: Task, receipts: list[Receipt], took: float) -> None:
        """Log a call that took long, and what it recorded if everything is to be logged."""
        if took > self.slow:
            log.warning("tape.slow", tape=task.call.tape, seconds=round(took, 3), entries=len(receipts))
        if verbose():
            for receipt in receipts:
                log.debug("tape.recorded", tape=receipt.tape, seq=receipt.seq, key=receipt.key)

    def _several(self, tapes: Sequence[str], function: Callable[[Transaction, Opener], R], tx: Transaction) -> R:
        for tape in tapes:
            tx.lock(tape)
        opened: dict[str, Writing] = {}

        def opener(call: Call) -> Writing:
            if call.tape not in opened:
                opened[call.tape] = Writing(self.shared, tx, call, load(self.shared, tx, call))
            return opened[call.tape]

        result = function(tx, opener)
        for writing in opened.values():
            writing.finish()
            # Only one tape's head can be kept after a commit; the others are read again when they are next written.
            self.forget(writing.tape)
        return result


def record_all(
    requests: Sequence[tuple[Recorder, Call, Sequence[Intent]]],
) -> list[list[Receipt] | Exception]:
    """Record several calls that one thread has at hand, as if each had come by a thread of its own.

    All are on one database, and on PostgreSQL on one tape. Returns the receipts of each, or its error.
    """
    if not requests:
        return []
    tasks = [recorder.task(call, intents) for recorder, call, intents in requests]
    outcomes: list[list[Receipt] | Exception]
    began = time.monotonic()
    try:
        outcomes = tasks[0].shared.database.share(tasks[0].call.tape, tasks, together)
    except Exception as error:
        outcomes = [error] * len(tasks)
    for index, ((recorder, _, _), task, outcome) in enumerate(zip(requests, tasks, outcomes, strict=True)):
        if isinstance(outcome, Exception):
            try:
                outcomes[index] = recorder.go_on(task, outcome)
            except Exception as error:
                outcomes[index] = error
        else:
            recorder.tell(task, outcome, time.monotonic() - began)
    return outcomes


def _hot(intents: Sequence[Intent]) -> bool:
    """Whether these are likely plain appends behind the head, or an event, which need nothing but the kept head."""
    if len(intents) == 1 and type(intents[0]) is Plain:
        payload = intents[0].payload
        return type(payload) is Event and not payload.takes_slot
    return all(
        type(intent) is AddMessage
        and intent.parent is (CHAIN if index else HEAD)
        and intent.key.origin is not GIVEN
        and not intent.calls
        and not intent.answers
        for index, intent in enumerate(intents)
    )
