"""Entries of a view: the tape's own in order, one by its key, and the anchors among them."""

from __future__ import annotations

import msgspec

from tape.core import strict
from tape.core.entries.payloads import Place
from tape.core.records import Anchor, Entry
from tape.db.sql.rows.entries import EntryRow
from tape.db.sql.rows.view import AnchorAt, PathRow
from tape.db.view import paths
from tape.db.view.ancestry import Ancestry
from tape.db.view.tape_view import TapeView
from tape.db.view.values import anchor_from, entry_from_row
from tape.errors import Corrupt, InvalidEntry

__all__ = ["PAGE", "anchor_at", "anchors", "before_anchor", "entry_rows", "latest_anchor", "recorded"]

PAGE = 500


def entry_rows(view: TapeView, after: int, most: int) -> tuple[list[EntryRow], Ancestry | None]:
    """Return a page of the tape's own entries in order as rows: whoever wants few of them decodes few."""
    return view.tx.all(view.sql.entries_after, (view.number, after, view.seq, most)), view.ancestry


def recorded(view: TapeView, key: str) -> Entry | None:
    """Return the entry of a tape under a key, if there is one."""
    row = view.tx.one(view.sql.entry_by_key, (view.number, key))
    return None if row is None else entry_from_row(view.tape, row, view.ancestry)


def latest_anchor(view: TapeView, end: Place) -> tuple[Anchor | None, int]:
    """Return the latest anchor on the path to ``end`` (deepest, then newest) and its depth."""
    at: AnchorAt | None = paths.latest_anchor(view, end)
    if at is None:
        return None, 0
    row = view.tx.one(view.sql.entry, (at.tape_id, at.seq))
    tape = view.name_of(at.tape_id)
    if row is None:
        raise Corrupt(tape, at.seq, "the anchor's entry is missing")
    return anchor_at(view, tape, row), at.ordinal


def anchor_at(view: TapeView, tape: str, row: EntryRow) -> Anchor:
    """Return an anchor, marked stale when a message it was made from has changed or gone since."""
    entry = entry_from_row(tape, row, view.ancestry)
    anchor = anchor_from(entry, stale=False)
    for message_id in anchor.source_ids:
        place, _ = paths.place_of(view, message_id)
        rows = paths.rows(view, place, place.ordinal - 1)
        if not rows or _newer(view, place, rows[0], entry):
            return msgspec.structs.replace(anchor, stale=True)
    return anchor


def _newer(view: TapeView, place: Place, row: PathRow, entry: Entry) -> bool:
    """Whether the body in a row was recorded after an entry; what a nearer tape recorded is always newer."""
    body_tape = view.name_of(row.body_tape) if row.body_tape else place.tape or view.tape
    if body_tape == entry.tape:
        return (row.body or 0) > entry.seq
    tapes = [view.name_of(number) for number, _ in view.tapes()]
    return tapes.index(body_tape) < tapes.index(entry.tape)


def anchors(view: TapeView, limit: int, before: tuple[str, int] | None) -> list[Anchor]:
    """Return the last anchors of the tape, newest last."""
    layers: list[tuple[int, int, int, int]] = []
    for number, asof, cleared, overriding in view.layers():
        if before is not None and view.name_of(number) == before[0]:
            layers.append((number, min(before[1] - 1, asof), cleared, overriding))
        elif before is None or layers:
            layers.append((number, asof, cleared, overriding))
    found: list[Anchor] = []
    for layer in view.tx.all(view.sql.family_anchored, (msgspec.json.encode(layers).decode(),)):
        name = view.name_of(layer.tape_id)
        rows = view.tx.all(view.sql.anchor_list, (layer.tape_id, layer.cleared, layer.asof + 1, limit - len(found)))
        found += [anchor_at(view, name, row) for row in rows]
        if len(found) == limit:
            break
    return found[::-1]


def before_anchor(tape: str, before: int | Anchor | None) -> tuple[str, int] | None:
    """Return the tape and the seq before which anchors are wanted; a seq alone is one of the tape's own."""
    if before is None:
        return None
    if isinstance(before, Anchor):
        return before.tape, before.seq
    if isinstance(before, bool) or not isinstance(before, int):
        raise InvalidEntry("before", f"must be an anchor or a seq, not {strict.shown(before)}")
    return tape, strict.seq(before, "before")
