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

from tape.core import strict
from tape.core.entries import payloads
from tape.core.transfer.export_format import Checker, EntryLine
from tape.core.view.slots import beginning_with
from tape.db.engine.transaction import Database, Transaction, lock_key
from tape.db.record.projection import set_status
from tape.db.record.recorder import Recorder
from tape.db.record.writing import Call, check_here, head_values, load
from tape.db.sql.removal import BATCH
from tape.db.sql.rows.upkeep import HiddenTape
from tape.db.transfer.copy import Above, Copy
from tape.errors import TapeExists

__all__ = ["HIDDEN_NAMES", "Arriving", "Moved", "forsaken", "sweep"]

_PREFIX = f"{strict.RESERVED}import:"
HIDDEN_NAMES = beginning_with(_PREFIX)
"""The range of names that tapes of imports under way have."""
_FORSAKEN = 3_600_000_000
"""Microseconds without a sign of life after which an import counts as dead."""
_SIGN = 300_000_000
"""Microseconds after which the tapes of an import that are written already give another sign."""


class Moved(Exception):
    """A tape that the import concerns, or the import's own hidden one, is not as it was."""


class Arriving:
    """The hidden tapes of one import."""

    def __init__(self, recorder: Recorder, *, reuse: bool) -> None:
        self.recorder = recorder
        self._db = recorder.shared.database
        self._reuse = reuse
        self._name = f"{_PREFIX}{secrets.token_hex(8)}"
        self._tapes: dict[str, _Arrival] = {}
        self._signed = recorder.shared.clock()

    def open(self, tape: str, checker: Checker) -> Copy:
        """Return a hidden tape that takes the entries of ``tape``."""
        hidden = f"{self._name}:{len(self._tapes)}"
        made = self._db.read(lambda tx: _Arrival(self, tx, tape, hidden, checker))
        self._tapes[tape] = made
        return made

    def find(self, tape: str) -> _Arrival | None:
        """Return a tape of this import that is written already."""
        return self._tapes.get(tape)

    def sign(self, tx: Transaction) -> None:
        """Now and then let all tapes give a sign of life, of which only the last is still being written."""
        now = self.recorder.shared.clock()
        if now - self._signed >= _SIGN:
            self._signed = now
            tx.run(tx.statements.sign_tapes, (now, *beginning_with(f"{self._name}:")))

    def lock(self, tx: Transaction, tapes: Sequence[str]) -> None:
        """Lock the tapes of the file and those that they inherit from, in the one order."""
        names = {*tapes, *(member.tape for copy in self._tapes.values() for member in copy.inherited())}
        for name in sorted(names, key=lock_key):
            tx.lock(name)

    def show(self, tx: Transaction) -> int:
        """Make everything visible, which is locked by now; returns the number of entries."""
        members = {member.tape: member for copy in self._tapes.values() for member in copy.inherited()}
        for name in members.keys() - self._tapes.keys():
            row = tx.one(tx.statements.head, (name,))
            if row is None or row.tape_status == "purged" or row.number != members[name].number:
                raise Moved
        for name, copy in self._tapes.items():
            # As for a tape that is created: this gives the id of a purged one free.
            try:
                state = load(self.recorder.shared, tx, Call(name, create=payloads.Open(), reuse=self._reuse))
            except TapeExists as error:
                raise Moved from error
            if state is not None:
                raise Moved
            check_here(self.recorder.shared, tx, copy.owner, creating=name)
            copy.show(tx)
        return sum(copy.head.seq for copy in self._tapes.values())

    def drop(self) -> None:
        """Take away what was written. If that fails, a later import does it."""
        for copy in self._tapes.values():
            with contextlib.suppress(Exception):
                if copy.tape_id:
                    _drop(self._db, copy.tape_id, copy.hidden, self.recorder.shared.clock())


def forsaken(database: Database, owner: str | None, now: int) -> list[HiddenTape]:
    """Return the hidden tapes that an owner's imports left behind when they died."""
    tapes = database.read(lambda tx: tx.all(tx.statements.abandoned, (*HIDDEN_NAMES, now - _FORSAKEN)))
    return [tape for tape in tapes if owner in (None, tape.owner)]


def sweep(recorder: Recorder) -> None:
    """Take away what such imports left behind."""
    shared = recorder.shared
    for tape in forsaken(shared.database, shared.owner, shared.clock()):
        _drop(shared.database, tape.number, tape.name, shared.clock())


class _Arrival(Copy):
    """A hidden tape. Between batches there is no transaction: each is one of its own."""

    __slots__ = ("_arriving", "_created", "hidden")

    pending = 1_000

    def __init__(self, arriving: Arriving, tx: Transaction, tape: str, hidden: str, checker: Checker) -> None:
        super().__init__(arriving.recorder.shared, tx, Call(tape), None, checker)
        self.hidden = hidden
        self._arriving = arriving
        self._created = 0

    def inherited(self) -> Sequence[Any]:
        """Return what the tape inherits from."""
        return self.ancestry.layers if self.ancestry is not None else ()

    def _begin(self, line: EntryLine, opening: payloads.Open) -> None:
        self.shared.database.write(self.hidden, lambda tx: self._prepare(tx, line, opening))

    def _prepare(self, tx: Transaction, line: EntryLine, opening: payloads.Open) -> None:
        self.tx = tx
        tx.lock(self.hidden)
        self.tape_id = self._create(line, opening, self.hidden, "purged", self.shared.clock())
        self._created = line.stamp
        self._inherit(opening)

    def flush(self) -> None:
        """Write a batch."""
        if self._entries:
            self.shared.database.write(self.hidden, self._batch)

    def _batch(self, tx: Transaction) -> None:
        self.tx = tx
        # Before it as well: if the tape was swept away, its number may be another's by now.
        self._hide()
        super().flush()
        self._hide()
        self._arriving.sign(tx)

    def send(self, entries: Sequence[tuple[Any, ...]]) -> None:
        """Send rows of entries to where they wait until all is shown."""
        self.tx.many(self.tx.statements.insert_arrival, entries)

    def _hide(self) -> None:
        """Undo what the entries said of the tape's status, and give a sign of life."""
        if not self.tx.run(self.tx.statements.hide_tape, (self.shared.clock(), self.tape_id, self.hidden)):
            raise Moved

    def settle(self) -> None:
        """Write the rest, still hidden."""
        self.flush()

    def show(self, tx: Transaction) -> None:
        """Become the tape that this is a copy of."""
        number, head = self.tape_id, self.head
        values = head_values(head, self.ancestry)
        if not tx.run(self.tx.statements.show_tape, (self.tape, self._created, number, self.hidden)):
            raise Moved
        set_status(tx, number, head)
        tx.run(self.tx.statements.create_head, (number, *values))
        if tx.take_arrivals(number) != head.seq:
            raise Moved
        tx.run(self.tx.statements.drop_arrivals, (number,))
        # Once more, behind the entries: on PostgreSQL the row notes the transaction that wrote them.
        tx.run(self.tx.statements.set_head, (*values, number))
        tx.check_revision()
        tx.run(self.tx.statements.insert_import, (number, head.seq))

    def _above(self, tape: str) -> Above | None:
        other = self._arriving.find(tape)
        if other is None:
            return super()._above(tape)
        return Above(other.tape_id, other.owner, other.head.seq, other.ancestry, hidden=True)

    def _hash_at(self, above: Above, seq: int) -> str:
        if not above.hidden:
            return super()._hash_at(above, seq)
        hash = self.tx.value(self.tx.statements.arrival_hash, (above.number, seq))
        return "" if hash is None else bytes(hash).hex()


def _drop(database: Database, number: int, hidden: str, now: int) -> None:
    """Take away a hidden tape, a batch of each table per transaction.

    Under a name of its own first, by which its import knows that it is gone, should that be alive after all. That name
    is looked for in every transaction, because SQLite gives the number of a tape that is gone to the next.
    """
    mine = f"{_PREFIX}dropped:{secrets.token_hex(8)}"
    sql = database.statements

    def step(tx: Transaction) -> bool:
        """Take a batch; tells whether there is more."""
        renamed = tx.run(sql.show_tape, (mine, now, number, hidden))
        if not renamed and not tx.run(sql.hide_tape, (now, number, mine)):
            return False
        if max([tx.run(statement, (number,)) for statement in sql.purge_rows]) >= BATCH:
            return True
        tx.run(sql.drop_tape, (number, mine))
        return False

    while database.repeat(hidden, step):
        pass
