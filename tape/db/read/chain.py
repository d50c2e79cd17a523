"""Checking the chain behind an entry: that what a pointer was made for is what is stored."""

from __future__ import annotations

from tape.core.entries import chain, payloads
from tape.core.entries.payloads import ForkPoint
from tape.db.sql.rows.entries import EntryRow
from tape.db.view.ancestry import place_at
from tape.db.view.tape_view import TapeView
from tape.db.view.values import decoded
from tape.errors import Corrupt, UnknownEntry

__all__ = ["check_chain"]

_PAGE = 1_000


def check_chain(view: TapeView, seq: int, hash: str, depth: int | None) -> None:
    """Recompute the hashes up to an entry, which has to be of this hash, and of what its tape inherits up to there.

    Of more than ``depth`` entries only the newest are read. Raises Corrupt for one that was changed, UnknownEntry if
    the tape has no such entry.
    """
    tapes = [(view.number, view.tape)]
    if view.ancestry is not None:
        tapes += [(layer.number, layer.tape) for layer in view.ancestry.layers]
    left, point = depth, ForkPoint(view.tape, seq, hash)
    for number, tape in tapes:
        if tape != point.tape:
            raise Corrupt(view.tape, 1, f"the tape was forked from {point.tape!r}, not from {tape!r}")
        first = 0 if left is None else max(0, point.seq - left)
        opening = _check_tape(view, number, point, first)
        if left is not None:
            left -= point.seq - first
        if first or opening is None:
            # So far back nothing was read, or there is nothing more.
            return
        point = opening


def _check_tape(view: TapeView, number: int, point: ForkPoint, first: int) -> ForkPoint | None:
    """Check the entries of one tape behind a seq up to the wanted one; returns where the tape was forked off."""
    parent: ForkPoint | None = None
    last = first
    before = chain.ZERO if not first else _stored_hash(view, number, point.tape, first)
    while last < point.seq:
        rows = view.tx.all(view.sql.entries_after, (number, last, point.seq, _PAGE))
        for row in rows:
            last += 1
            before = _checked(view, point.tape, row, last, before)
            if row.kind == "open":
                opening = decoded(row)
                parent = opening.parent if isinstance(opening, payloads.Open) else None
        if not rows:
            raise UnknownEntry(point.tape, point.seq)
    if before.hex() != point.hash:
        raise Corrupt(point.tape, point.seq, "the hash of the entry is not the one in the pointer")
    return parent


def _stored_hash(view: TapeView, number: int, tape: str, seq: int) -> bytes:
    row = view.tx.one(view.sql.entry, (number, seq))
    if row is None:
        raise Corrupt(tape, seq, "the entry is missing")
    return bytes(row.hash)


def _checked(view: TapeView, tape: str, row: EntryRow, seq: int, before: bytes) -> bytes:
    """Return the hash of an entry; raises Corrupt unless it is the one that follows from what the entry says."""
    if row.seq != seq:
        raise Corrupt(tape, seq, "the entry is missing")
    if row.payload is None:
        raise Corrupt(tape, seq, "the content of the entry was erased")
    source = None if row.source_tape is None and row.source_seq is None else (row.source_tape, row.source_seq or 0)
    try:
        place = place_at(row.lane, row.ordinal, row.head_tape, view.ancestry)
        commitment = chain.commit(row.salt or b"", row.payload, row.meta)
        expected = chain.link(
            before,
            commitment,
            tape,
            seq,
            row.kind,
            row.key,
            row.actor,
            source,
            row.stamp,
            row.version,
            place,
        )
    except (TypeError, ValueError) as error:
        raise Corrupt(tape, seq, "a column of the entry has a value of the wrong type") from error
    if expected != bytes(row.hash):
        raise Corrupt(tape, seq, "the hash does not match the entry")
    return expected
