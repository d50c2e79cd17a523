"""Entries of a view: pages of them in order, one by its seq or key, and the anchors among them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

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

__all__ = [
    "PAGE",
    "Listed",
    "EntryFilter",
    "anchor_at",
    "anchors",
    "before_anchor",
    "bound",
    "find",
    "latest_anchor",
    "page",
]

PAGE = 500
_NAMED = {"event": "event", "anchor": "anchor", "handoff": "anchor"}
"""The kinds of entries that have a name, each with the table that has it."""
Bound = tuple[str | None, int]
"""A seq of a tape; None is the tape itself."""


class EntryFilter(Struct, frozen=True):
    """Which entries are listed, and in which order.

    On a fork those that it inherits come before its own. ``after`` and ``before`` are places in that one list.
    """

    after: Bound | None = None
    before: Bound | None = None
    kinds: frozenset[str] | None = None
    name: str | None = None
    reverse: bool = False
    inherited: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether every row that is read is listed, so that no more are read than asked for."""
        return self.kinds is None or (self.name is not None and self.kinds == {"event"})

    def beyond(self, last: Listed) -> EntryFilter:
        """Return what is left once an entry was listed."""
        place = (last.tape, last.row.seq)
        return structs.replace(self, before=place) if self.reverse else structs.replace(self, after=place)


class Listed(NamedTuple):
    """An entry's row and its tape; the caller decodes it if it needs the entry."""

    tape: str
    row: EntryRow
    ancestry: Ancestry | None

    def entry(self) -> Entry:
        """Return the entry. Raises Corrupt."""
        return entry_from_row(self.tape, self.row, self.ancestry)


class _Span(NamedTuple):
    """A range of one tape's seqs, without the first and with the last."""

    number: int
    tape: str
    after: int
    to: int


def bound(value: int | Entry | tuple[str, int], field: str) -> Bound:
    """Return the place in a list of entries that a caller names: an entry, its tape and seq, or a seq of the tape."""
    if isinstance(value, Entry):
        return value.tape, value.seq
    if isinstance(value, tuple):
        if len(value) != 2:
            raise InvalidEntry(field, f"must be a seq, an entry or a (tape, seq) pair, not {strict.shown(value)}")
        return strict.identifier(value[0], field), strict.seq(value[1], field)
    return None, strict.seq(value, field)


def page(view: TapeView, filter: EntryFilter, most: int) -> list[Listed]:
    """Return a page of entries as rows, so that a caller decodes only those that it needs."""
    listed: list[Listed] = []
    spans = _spans(view, filter)
    if filter.name is not None and len(spans) > 1:
        # One query for a deep family: which of its tapes have the name.
        ranges = msgspec.json.encode([(span.number, span.to, span.after, 0) for span in spans]).decode()
        having = {number for (number,) in view.tx.all(view.sql.family_named, (ranges, filter.name))}
        spans = [span for span in spans if span.number in having]
    for span in spans if filter.reverse else spans[::-1]:
        rows = _rows(view, span, filter, most - len(listed))
        listed += [Listed(span.tape, row, view.ancestry) for row in rows]
        if len(listed) == most:
            break
    return listed


def _rows(view: TapeView, span: _Span, filter: EntryFilter, most: int) -> list[EntryRow]:
    """Return the first entries of a range, or the last, newest first."""
    sql, reverse = view.sql, filter.reverse
    if filter.name is None:
        listing = sql.entries_before if reverse else sql.entries_after
        return view.tx.all(listing, (span.number, span.after, span.to, most))
    tables = {_NAMED[kind] for kind in (_NAMED if filter.kinds is None else filter.kinds & _NAMED.keys())}
    rows: list[EntryRow] = []
    for table, listing in (
        ("event", sql.events_before if reverse else sql.events_after),
        ("anchor", sql.anchors_before if reverse else sql.anchors_after),
    ):
        if table in tables:
            rows += view.tx.all(listing, (span.number, filter.name, span.after, span.to, most))
    return sorted(rows, key=lambda row: row.seq, reverse=reverse)[:most]


def _spans(view: TapeView, filter: EntryFilter) -> list[_Span]:
    """Return the ranges of seqs that are listed, of the tape itself first and then of its ancestors."""
    layers = view.ancestry.layers if filter.inherited and view.ancestry is not None else ()
    spans = [_Span(view.number, view.tape, 0, view.seq)]
    spans += [_Span(layer.number, layer.tape, 0, layer.asof) for layer in layers]
    first, last = len(spans) - 1, 0
    if filter.after is not None:
        first = _level(view, spans, filter.after, "after")
        spans[first] = spans[first]._replace(after=filter.after[1])
    if filter.before is not None:
        last = _level(view, spans, filter.before, "before")
        spans[last] = spans[last]._replace(to=min(spans[last].to, filter.before[1] - 1))
    return spans[last : first + 1]


def _level(view: TapeView, spans: list[_Span], bound: Bound, field: str) -> int:
    """Return how many levels up the tape of a bound is."""
    for level, span in enumerate(spans):
        if span.tape == (bound[0] or view.tape):
            return level
    raise InvalidEntry(field, f"tape {strict.shown(bound[0])} is not one of the listed tapes")


def find(view: TapeView, seq: int | None, key: str | None, *, inherited: bool) -> Entry | None:
    """Return the entry of a seq or under a key, of the tape or (if inherited) of its nearest ancestor that has it."""
    if key is None:
        row = view.tx.one(view.sql.entry, (view.number, seq))
    elif inherited and view.ancestry is not None:
        row = view.tx.one(view.sql.family_entry_by_key, (view.whole_lineage(), key))
    else:
        row = view.tx.one(view.sql.entry_by_key, (view.number, key))
    if row is None or (row.tape_id == view.number and row.seq > view.seq):
        return None
    return entry_from_row(view.name_of(row.tape_id), row, view.ancestry)


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
            return structs.replace(anchor, stale=True)
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
    latest: list[Anchor] = []
    for layer in view.tx.all(view.sql.family_anchored, (msgspec.json.encode(layers).decode(),)):
        name = view.name_of(layer.tape_id)
        rows = view.tx.all(view.sql.anchor_list, (layer.tape_id, layer.cleared, layer.asof + 1, limit - len(latest)))
        latest += [anchor_at(view, name, row) for row in rows]
        if len(latest) == limit:
            break
    return latest[::-1]


def before_anchor(tape: str, before: int | Anchor | tuple[str, int] | None) -> tuple[str, int] | None:
    """Return the tape and the seq before which anchors are wanted; a seq alone is one of the tape's own."""
    if before is None:
        return None
    if isinstance(before, Anchor):
        return before.tape, before.seq
    if isinstance(before, tuple) and len(before) == 2:
        return strict.identifier(before[0], "before"), strict.seq(before[1], "before")
    if isinstance(before, bool) or not isinstance(before, int):
        raise InvalidEntry("before", f"must be an anchor, a (tape, seq) pair or a seq, not {strict.shown(before)}")
    return tape, strict.seq(before, "before")
