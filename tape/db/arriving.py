"""An import on its way: it is written in batches that nobody sees, and shown in one transaction.

Each tape of the file gets a hidden row: a reserved name and the status of a purged tape, so that no reader meets it.
Under its number the view is written as it will be. The entries wait in a table of their own and come among the others
when all of them are there: written there at once, they would lie behind places that followers of the feed have passed.
What an import that died leaves behind is swept away by a later one, or by ``retain``.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

from tape.core import payloads, strict
from tape.core.lines import Checker, EntryLine
from tape.db.copying import Above, Copy
from tape.db.project import head_values, set_status
from tape.db.record import Call, Recorder
from tape.db.transaction import Database, Transaction, lock_key

__all__ = ["Arriving", "Moved", "forsaken", "sweep"]

_PREFIX = f"{strict.RESERVED}import:"
_FORSAKEN = 3_600_000_000
"""Microseconds without a sign of life after which an import counts as dead."""


class Moved(Exception):
    """A tape that the import concerns, or the import's own hidden one, is not as it was."""


class Arriving:
    """The hidden tapes of one import."""

    def __init__(self, recorder: Recorder, *, reuse: bool) -> None:
        self._recorder = recorder
        self._db = recorder._db
        self._reuse = reuse
        self._token = secrets.token_hex(8)
        self._tapes: dict[str, _Arrival] = {}

    def open(self, tape: str, checker: Checker) -> Copy:
        """Return a hidden tape that takes the entries of ``tape``."""
        hidden = f"{_PREFIX}{self._token}:{len(self._tapes)}"
        made = self._db.read(lambda tx: _Arrival(self._recorder, tx, tape, hidden, self._tapes, checker))
        self._tapes[tape] = made
        return made

    def lock(self, tx: Transaction, tapes: Sequence[str]) -> None:
        """Lock the tapes of the file and those that they inherit from, in the one order."""
        names = {*tapes, *(member.tape for one in self._tapes.values() for member in one.inherited())}
        for name in sorted(names, key=lock_key):
            tx.lock(name)

    def show(self, tx: Transaction) -> int:
        """Make everything visible, which is locked by now; returns the number of entries."""
        for one in self._tapes.values():
            for member in one.inherited():
                row = tx.one(tx.statements.head, (member.tape,))
                if member.tape not in self._tapes and (row is None or row[2] == "purged" or row[0] != member.number):
                    raise Moved
        for name, one in self._tapes.items():
            # As for a tape that is created: this gives the id of a purged one free.
            if self._recorder._load(tx, Call(name, create=payloads.Open(), reuse=self._reuse)) is not None:
                raise Moved
            one.show(tx)
        return sum(one.head.seq for one in self._tapes.values())

    def drop(self) -> None:
        """Take away what was written. If that fails, a later import does it."""
        for one in self._tapes.values():
            with contextlib.suppress(Exception):
                if one.tape_id:
                    _drop(self._db, one.tape_id, one.hidden, self._recorder._clock())


def forsaken(recorder: Recorder) -> list[tuple[int, str]]:
    """Return the hidden tapes that imports left behind which died: number and name."""
    # The character after the prefix's last ends the range of names that begin with it.
    span = (_PREFIX, f"{_PREFIX[:-1]};", recorder._clock() - _FORSAKEN)
    return [(row[0], row[1]) for row in recorder._db.read(lambda tx: tx.all(tx.statements.abandoned, span))]


def sweep(recorder: Recorder) -> None:
    """Take away what such imports left behind."""
    for number, hidden in forsaken(recorder):
        _drop(recorder._db, number, hidden, recorder._clock())


class _Arrival(Copy):
    """A hidden tape. Between batches there is no transaction: each is one of its own."""

    __slots__ = ("_created", "_others", "hidden")

    pending = 2_000

    def __init__(
        self,
        recorder: Recorder,
        tx: Transaction,
        tape: str,
        hidden: str,
        others: dict[str, _Arrival],
        checker: Checker,
    ) -> None:
        super().__init__(recorder, tx, Call(tape), None, checker)
        self.hidden = hidden
        self._others = others
        self._created = 0

    def inherited(self) -> Sequence[Any]:
        """Return what the tape inherits from."""
        return self.family.members if self.family is not None else ()

    def _begin(self, line: EntryLine, opening: payloads.Open) -> None:
        self._db.write(self.hidden, lambda tx: self._prepare(tx, line, opening))

    def _prepare(self, tx: Transaction, line: EntryLine, opening: payloads.Open) -> None:
        self.tx = tx
        self.tape_id = self._create(line, opening, self.hidden, "purged")
        self._created = line.stamp
        self._inherit(opening)
        self._hide()

    def flush(self) -> None:
        """Write a batch."""
        if self._entries:
            self._db.write(self.hidden, self._batch)

    def _batch(self, tx: Transaction) -> None:
        self.tx = tx
        super().flush()
        self._hide()

    def _send(self, entries: Sequence[tuple[Any, ...]]) -> None:
        self.tx.many(self.sql.insert_arrival, entries)

    def _hide(self) -> None:
        """Undo what the entries said of the tape's status, and give a sign of life."""
        if not self.tx.run(self.sql.hide_tape, (self._recorder._clock(), self.tape_id, self.hidden)):
            raise Moved

    def settle(self) -> None:
        """Write the rest, still hidden."""
        self.flush()

    def show(self, tx: Transaction) -> None:
        """Become the tape that this is a copy of."""
        number, head = self.tape_id, self.head
        values = head_values(head, self.family)
        if not tx.run(self.sql.show_tape, (self.tape, self._created, number, self.hidden)):
            raise Moved
        set_status(tx, number, head)
        tx.run(self.sql.create_head, (number, *values))
        if tx.run(self.sql.take_arrivals, (number,)) != head.seq:
            raise Moved
        tx.run(self.sql.drop_arrivals, (number,))
        # Once more, behind the entries: on PostgreSQL the row notes the transaction that wrote them.
        tx.run(self.sql.set_head, (*values, number))
        tx.run(self.sql.insert_import, (number, head.seq))

    def _above(self, tape: str) -> Above | None:
        other = self._others.get(tape)
        if other is None:
            return super()._above(tape)
        return Above(other.tape_id, other.owner, other.head.seq, other.family)

    def _hash_at(self, number: int, seq: int) -> str:
        if all(other.tape_id != number for other in self._others.values()):
            return super()._hash_at(number, seq)
        row = self.tx.one(self.sql.arrival_hash, (number, seq))
        return "" if row is None else bytes(row[0]).hex()


def _drop(database: Database, number: int, hidden: str, now: int) -> None:
    """Take away a hidden tape, a batch per transaction.

    Under a name of its own first, by which its import knows that it is gone, should that be alive after all. It is
    looked for in every transaction, because SQLite gives the number of a tape that is gone to the next.
    """
    mine = f"{_PREFIX}dropped:{secrets.token_hex(8)}"
    sql = database.statements
    if not database.repeat(hidden, lambda tx: tx.run(sql.show_tape, (mine, now, number, hidden))):
        return
    for statement in sql.purge_rows:

        def step(tx: Transaction, statement: Any = statement) -> int:
            return tx.run(statement, (number,)) if tx.run(sql.hide_tape, (now, number, mine)) else 0

        while database.repeat(mine, step):
            pass
    database.repeat(mine, lambda tx: tx.run(sql.drop_tape, (number, mine)))
