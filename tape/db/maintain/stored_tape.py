"""A tape as its entries record it: what verify and rebuild read instead of the view."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from tape.core.entries import payloads
from tape.core.entries.payloads import Payload, Place
from tape.core.view.in_memory import View
from tape.db.engine.transaction import Database, Transaction
from tape.db.sql.rows.entries import EntryRow
from tape.db.sql.rows.tapes import TapeRow
from tape.db.view.ancestry import Ancestry, Layer
from tape.db.view.values import decoded
from tape.errors import Corrupt, TapeNotFound

__all__ = ["Meter", "Progress", "StoredTape", "find_tape", "fold_row", "tape_names", "tape_row"]

_PAGE = 1_000
Progress = Callable[[int, int], None]
"""Called with the entries done and the entries there are."""


class StoredTape(Struct, frozen=True):
    """A tape as its own row describes it, with the lineage that its first entry records."""

    name: str
    number: int
    head: int
    """The seq of the head; 0 when the row of the head is missing."""
    status: tuple[str, str | None, int]
    """The status, its reason, and the seq at which the tape was completed."""
    ancestry: Ancestry | None

    def entries(self, tx: Transaction) -> Iterator[Sequence[EntryRow]]:
        """Yield the rows of the entries, a page at a time."""
        last = 0
        while rows := tx.all(tx.statements.entries_after, (self.number, last, 2**62, _PAGE)):
            yield rows
            last = rows[-1].seq


def find_tape(tx: Transaction, tape: str, owner: str | None) -> StoredTape:
    """Return a tape that the owner sees, also one whose head is missing; raises TapeNotFound."""
    row = tape_row(tx, tape, owner)
    if row is None:
        raise TapeNotFound(tape)
    opening = tx.one(tx.statements.entry, (row.number, 1))
    ancestry = None
    with contextlib.suppress(Corrupt, TypeError):
        payload = decoded(opening) if opening is not None else None
        if isinstance(payload, payloads.Open) and payload.parent is not None:
            ancestry = Ancestry(
                [
                    Layer(above.number, layer.tape, layer.asof, layer.cleared, layer.overriding)
                    for layer in payload.parent.layers
                    if (above := tx.one(tx.statements.tape_row, (layer.tape,))) is not None
                ]
            )
    return StoredTape(tape, row.number, row.seq, (row.status, row.reason, row.completed_at or 0), ancestry)


def tape_names(database: Database, owner: str | None) -> Iterator[str]:
    """Yield the ids of all tapes that the owner sees."""
    after = ""
    while rows := database.read(lambda tx, after=after: tx.all(tx.statements.tape_names, (after,))):  # type: ignore[misc]
        for (name,) in rows:
            if database.read(lambda tx, name=name: tape_row(tx, name, owner)) is not None:  # type: ignore[misc]
                yield name
            after = name


def tape_row(tx: Transaction, tape: str, owner: str | None) -> TapeRow | None:
    """Return the row of a tape that the owner sees, also of one whose head is missing."""
    row = tx.one(tx.statements.tape_row, (tape,))
    hidden = row is None or row.status == "purged" or owner not in (None, row.owner)
    return None if hidden else row


def fold_row(view: View, row: EntryRow, place: Place) -> Payload:
    """Fold an entry's row into a view, and return its payload."""
    payload = decoded(row)
    view.fold(row.seq, bytes(row.hash), row.stamp, place, payload)
    return payload


class Meter:
    """Counts the entries that were read and reports them to the caller's ``progress``."""

    def __init__(self, database: Database, owner: str | None, tape: str | None, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        self._total = 0 if progress is None else database.read(partial(_count, owner, tape))

    def add(self, count: int) -> None:
        """Report ``count`` more; entries written since the beginning make the total larger."""
        self._done += count
        if self._progress is not None:
            self._total = max(self._total, self._done)
            self._progress(self._done, self._total)


def _count(owner: str | None, tape: str | None, tx: Transaction) -> int:
    """Return how many entries one tape has, or all that the owner sees."""
    if tape is not None:
        row = tape_row(tx, tape, owner)
        return 0 if row is None else row.seq
    rows = tx.all(tx.statements.counts, ()) if owner is None else tx.all(tx.statements.counts_of, (owner,))
    return sum(int(row.entries) for row in rows)
