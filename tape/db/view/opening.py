"""Opening a view: which tape, for which owner, as of which point."""

from __future__ import annotations

from datetime import datetime

from tape.core import strict
from tape.core.entries import payloads
from tape.core.records import micros
from tape.core.view.fold import CLOSED, Head
from tape.db.engine.transaction import Transaction
from tape.db.sql.rows.tapes import HeadRow
from tape.db.view import paths
from tape.db.view.ancestry import Ancestry, Layer
from tape.db.view.tape_view import TapeView
from tape.db.view.values import entry_from_row, head_from_row, payload_of
from tape.errors import Corrupt, InvalidEntry, TapeHidden, TapeNotFound

__all__ = ["Point", "as_inherited", "found_row", "head_row", "inherited", "open_view", "standing", "view_of"]

Point = int | datetime | str | None


def head_row(tx: Transaction, tape: str, owner: str | None, *, hidden: bool = False) -> HeadRow | None:
    """Return the row of a tape that this owner sees, or None; a hidden tape only with ``hidden``."""
    if tx.unit is not None:
        tx.touch(tape)
    row = tx.one(tx.statements.head, (tape,))
    if row is None or row.tape_status == "purged" or (owner is not None and row.owner != owner):
        return None
    return row if hidden or row.hidden is None else None


def found_row(tx: Transaction, tape: str, owner: str | None, *, hidden: bool = False) -> HeadRow:
    """Return the row of a tape that this owner sees; raises TapeNotFound, which is TapeHidden when it is hidden."""
    row = head_row(tx, tape, owner, hidden=True)
    if row is None:
        raise TapeNotFound(tape)
    if not hidden and row.hidden is not None:
        raise TapeHidden(tape, row.hidden or None)
    return row


def standing(tx: Transaction, tape: str, number: int, head: Head, ancestry: Ancestry | None) -> TapeView:
    """Return the current view of a tape, given its head."""
    return TapeView(tx, tx.statements, tape, number, head, ancestry, head.seq)


def open_view(
    tx: Transaction,
    tape: str,
    owner: str | None,
    point: Point = None,
    *,
    until: int | None = None,
    hidden: bool = False,
) -> TapeView | None:
    """Return the tape as of ``point``, or None when there is no such tape.

    With ``until``, the point is resolved as it would have been at that seq. A hidden tape is returned only with
    ``hidden``.
    """
    row = head_row(tx, tape, owner, hidden=hidden)
    return None if row is None else _as_of(tx, tape, row, point, until)


def _as_of(tx: Transaction, tape: str, row: HeadRow, point: Point, until: int | None = None) -> TapeView:
    view = standing(tx, tape, *head_from_row(row))
    view.anchored, view.prompted, view.compacted = bool(row.anchored), bool(row.prompted), bool(row.compacted)
    if until is not None:
        view = _frozen(view, until)
    if isinstance(point, str):
        point = _named(view, point)
    return view if point is None else _frozen(view, _seq_at(view, point))


def view_of(tx: Transaction, tape: str, owner: str | None, point: Point = None, *, hidden: bool = False) -> TapeView:
    """Return the tape as of ``point``; raises TapeNotFound, which is TapeHidden when the tape is hidden."""
    return _as_of(tx, tape, found_row(tx, tape, owner, hidden=hidden), point)


def _frozen(view: TapeView, seq: int) -> TapeView:
    """Return the view at an earlier seq: every entry records the place of the head."""
    if seq >= view.seq:
        return view
    head = Head.blank(b"")
    # Before its first entry a fork had no parent.
    then = TapeView(view.tx, view.sql, view.tape, view.number, head, view.ancestry if seq else None, seq, now=False)
    # What the tape has never had it did not have then.
    then.anchored, then.prompted, then.compacted = view.anchored, view.prompted, view.compacted
    row = view.tx.one(view.sql.entry, (view.number, seq))
    if row is not None:
        entry = entry_from_row(view.tape, row, then.ancestry)
        head.seq, head.hash, head.stamp = seq, bytes(row.hash), entry.stamp
        head.lo = paths.start(then, entry.head)
        head.place = entry.head
        _set_status(then)
    clear = view.tx.one(view.sql.clear_at, (view.number, seq))
    head.cleared = 0 if clear is None else clear.seq
    return then


def _set_status(view: TapeView) -> None:
    """Set the status of a head to what it was."""
    head, row = view.head, view.tx.one(view.sql.slot_at, (view.number, "status", view.seq))
    if row is None:
        return
    payload = payload_of(view.tape, row)
    if isinstance(payload, payloads.Status):
        head.status, head.reason = payload.status, payload.reason
    elif isinstance(payload, payloads.Discard):
        head.status, head.reason = "discarded", payload.reason
    head.completed = row.stamp if head.status in CLOSED else 0


def _named(view: TapeView, name: str) -> int | None:
    """Return the seq of the newest anchor of that name, or move the head to the message with that id."""
    unknown = InvalidEntry("point", f"tape {view.tape!r} has no anchor or message {strict.shown(name)}")
    if not strict.is_identifier(name):
        raise unknown
    anchor: int | None = view.tx.value(view.sql.anchor_named, (view.number, name, view.seq))
    location = view.place(name)
    if anchor is not None and location is not None:
        raise InvalidEntry("point", f"{name!r} is both an anchor and a message; pass a seq")
    if anchor is not None:
        return anchor
    if location is None:
        raise unknown
    place, _ = location
    paths.held(view, place, name)
    view.head.lo = paths.start(view, place)
    view.head.place = place
    view.head.tip = False
    return None


def _seq_at(view: TapeView, point: Point) -> int:
    """Return the seq that a point names."""
    if isinstance(point, bool) or not isinstance(point, int | datetime):
        raise InvalidEntry("point", f"must be a seq, a datetime or a name, not {type(point).__name__}")
    if isinstance(point, int):
        if not 0 <= point <= view.seq:
            raise InvalidEntry("point", f"seq {strict.shown(point)} is not between 0 and the head, {view.seq}")
        return point
    if point.tzinfo is None:
        raise InvalidEntry("point", "must be a datetime with a time zone")
    # Stamps never decrease along a tape, so a binary search finds the last entry at or before a moment.
    moment, low, high = micros(point), 0, view.seq
    while low < high:
        middle = (low + high + 1) // 2
        stamp = view.tx.value(view.sql.stamp_at, (view.number, middle))
        if stamp is None:
            raise Corrupt(view.tape, middle, "the entry is missing")
        low, high = (middle, high) if stamp <= moment else (low, middle - 1)
    return low


# -- as a fork would see it


def inherited(view: TapeView) -> Ancestry:
    """Return what a fork made at this view inherits."""
    return _inherited(view, view.seq, view.head.cleared)


def _inherited(view: TapeView, seq: int, cleared: int) -> Ancestry:
    overriding = view.ancestry is not None and view.tx.one(view.sql.has_overrides, (view.number, seq)) is not None
    nearest = Layer(view.number, view.tape, seq, cleared, overriding)
    return Ancestry([nearest, *(view.ancestry.layers if view.ancestry is not None else ())])


def as_inherited(view: TapeView, seq: int, *, clears: bool = True) -> TapeView:
    """Return a tape as a fork made at one of its seqs would have it: every place is inherited.

    Without ``clears`` it is as if the tape itself had never cleared.
    """
    clear = view.tx.one(view.sql.clear_at, (view.number, seq)) if clears else None
    layers = _inherited(view, seq, 0 if clear is None else clear.seq)
    return TapeView(view.tx, view.sql, view.tape, 0, Head.blank(b""), layers, 0)
