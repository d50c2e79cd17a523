"""Recording: from intents to committed entries and their projection, in as many attempts as it takes.

The head of a tape is kept in memory between appends, so the usual append reads nothing. If another process wrote in
between, the insert collides with its seq, the transaction is rolled back, and the second attempt reads everything
afresh under the lock. That second attempt is also where keys are looked up and where every refusal is decided. Keys
come before any other check, so that a retry after a lost reply is a duplicate and never an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from tape.core.plan.intents import Intent, Taken, Unchanged
from tape.core.plan.keys import GIVEN
from tape.core.plan.messages import HEAD, AddMessage
from tape.core.records import Receipt
from tape.core.view.fold import CLOSED
from tape.db.engine.log import log, verbose
from tape.db.engine.transaction import Again, Collision, Database, Lost, Transaction, lock_key
from tape.db.record import replays
from tape.db.record.writing import Call, Shared, Stale, Writing, load
from tape.errors import CommitUnknown, Corrupt, StoreBusy, StoreFailed, TapeError, TapeExists, TapeNotFound

__all__ = ["Opener", "Recorder"]

_ATTEMPTS = 12

R = TypeVar("R")

Opener = Callable[[Call], Writing]


class _Tries(Struct):
    """What an attempt has to know of those before it."""

    fresh: bool
    """Everything is read afresh: a kept head was out of date, or may be."""
    lost: int = 0
    """How many attempts may have been recorded, although their replies were lost."""


class Recorder:
    """Records intents on tapes of one database."""

    def __init__(
        self, database: Database, *, owner: str | None, clock: Callable[[], int], keep_heads: bool, slow: float
    ) -> None:
        self.shared = Shared(database, owner, clock, {} if keep_heads else None)
        self._slow = slow

    def record(self, call: Call, intents: Sequence[Intent]) -> list[Receipt]:
        """Record all of ``intents`` in one transaction, or none of them."""
        shared = self.shared
        fresh = shared.heads is None or call.create is not None or (shared.database.postgres and not _hot(intents))
        tries = _Tries(fresh)
        began = time.monotonic()
        receipts = self._retry(
            (call.tape,),
            tries,
            lambda: call.batch or (intents[0].key.value if intents else call.create_key),
            partial(self._attempt, call, intents, tries),
        )
        took = time.monotonic() - began
        if took > self._slow or verbose():
            self._tell(call, receipts, took)
        return receipts

    def several(self, tapes: Sequence[str], key: str, work: Callable[[Transaction, Opener], R]) -> R:
        """Run ``work`` in one transaction that writes several tapes, which it opens by name.

        The tapes are locked in one order whoever asks, so that two such calls never wait for each other. ``key`` tells
        the caller of a CommitUnknown which call it was. Every key of the entries is fixed or derived, so that a second
        run finds what a first one may have written.
        """
        ordered = sorted(set(tapes), key=lock_key)
        return self._retry(tapes, _Tries(fresh=True), lambda: key, partial(self._several, ordered, work))

    def forget(self, tape: str) -> None:
        """Drop what is kept of a tape's head."""
        if self.shared.heads is not None:
            self.shared.heads.pop(tape, None)

    def _retry(
        self, tapes: Sequence[str], tries: _Tries, key: Callable[[], str], work: Callable[[Transaction], R]
    ) -> R:
        """Run ``work`` in a transaction until it is committed, or cannot be.

        An attempt whose reply was lost may have been recorded. Its keys were fixed before it, so the next attempt finds
        out. If that fails as well, CommitUnknown tells the caller the key to ask for.
        """
        began = time.monotonic()
        for attempt in range(_ATTEMPTS):
            try:
                return self.shared.database.write(tapes[0], work)
            except (Stale, Collision) as error:
                if tries.fresh and attempt > 2:
                    raise self._collided(tapes, error) from error
            except Again:
                log.info("tape.retry", tape=tapes[0], attempt=attempt)
            except Lost as error:
                log.warning("tape.connection_lost", tape=tapes[0], key=key(), attempt=attempt)
                tries.lost += 1
                if tries.lost > 2:
                    raise CommitUnknown(tapes[0], key()) from error
            except (StoreFailed, StoreBusy) as error:
                # True of this attempt only: an earlier one may have been recorded.
                if tries.lost:
                    raise CommitUnknown(tapes[0], key()) from error
                raise
            tries.fresh = True
        if tries.lost:
            raise CommitUnknown(tapes[0], key())
        raise StoreBusy(time.monotonic() - began)

    def _collided(self, tapes: Sequence[str], error: Exception) -> TapeError:
        """Return what it means that an entry collides with something that a fresh look did not show."""
        if self.shared.heads is None:
            return StoreFailed(
                f"tape {tapes[0]!r} was written since this transaction began, and its isolation level hides that: "
                "roll back and run it again"
            )
        database, owner = self.shared.database, self.shared.owner
        for tape in tapes:
            row = database.read(lambda tx, tape=tape: tx.one(tx.statements.head, (tape,)))  # type: ignore[misc]
            if row is None or (owner is not None and row.owner != owner):
                # Row-level security hides the tape of another owner, but its id is taken.
                return TapeNotFound(tape)
        return Corrupt(tapes[0], 0, f"the entry collides with one that cannot be found: {error}")

    def _tell(self, call: Call, receipts: list[Receipt], took: float) -> None:
        if took > self._slow:
            log.warning("tape.slow", tape=call.tape, seconds=round(took, 3), entries=len(receipts))
        if verbose():
            for receipt in receipts:
                log.debug("tape.recorded", tape=receipt.tape, seq=receipt.seq, key=receipt.key)

    # -- one attempt

    def _attempt(self, call: Call, intents: Sequence[Intent], tries: _Tries, tx: Transaction) -> list[Receipt]:
        kept = None if tries.fresh or self.shared.heads is None else self.shared.heads.get(call.tape)
        if kept is None:
            return self._afresh(call, intents, tries, tx)
        writing = Writing(self.shared, tx, call, kept)
        try:
            if call.expected_head is not None or writing.head.status in CLOSED:
                _check(writing, intents)
            if len(intents) == 1:
                only = intents[0]
                writing.defers = tx.postgres and type(only) is AddMessage and not only.generated
                receipts = [writing.record(only)]
            else:
                writing.look_ahead(intents)
                batch = replays.Repeats()
                receipts = [batch.record(writing, intent) for intent in intents]
        except (TapeError, Taken, Unchanged) as error:
            # What the kept head refuses is decided once more, with everything read afresh.
            raise Stale from error
        writing.finish(kept=True)
        return receipts

    def _afresh(self, call: Call, intents: Sequence[Intent], tries: _Tries, tx: Transaction) -> list[Receipt]:
        """Answer what was recorded before, refuse what cannot be recorded, and record the rest."""
        tx.lock(call.tape)
        writing = Writing(self.shared, tx, call, load(self.shared, tx, call))
        if call.create is not None:
            if not writing.existed:
                writing.create()
            elif tx.one(tx.statements.entry_by_key, (writing.tape_id, call.create_key)) is None:
                raise TapeExists(call.tape)
        before = replays.recorded_before(writing, intents, lost=tries.lost > 0)
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

    def _several(self, tapes: Sequence[str], work: Callable[[Transaction, Opener], R], tx: Transaction) -> R:
        for tape in tapes:
            tx.lock(tape)
        opened: dict[str, Writing] = {}

        def opener(call: Call) -> Writing:
            if call.tape not in opened:
                opened[call.tape] = Writing(self.shared, tx, call, load(self.shared, tx, call))
            return opened[call.tape]

        result = work(tx, opener)
        for writing in opened.values():
            writing.finish(kept=False)
            # Only one tape's head can be kept after a commit; the others are read again when they are next written.
            self.forget(writing.tape)
        return result


def _check(writing: Writing, intents: Sequence[Intent]) -> None:
    """Refuse a write on a head that the caller does not know, or on a closed tape."""
    writing.check_head()
    if any(intent.changes_view for intent in intents):
        writing.check_open()


def _hot(intents: Sequence[Intent]) -> bool:
    """Whether this is likely a plain append behind the head, which needs nothing but the kept head."""
    first = intents[0]
    return (
        len(intents) == 1
        and type(first) is AddMessage
        and first.parent is HEAD
        and first.key.origin is not GIVEN
        and not first.calls
        and not first.answers
    )
