"""Paths through a view: the lanes that they cross, and the visible rows on them.

A path is read as ranges, one per lane that it crosses. The cost of a read depends on what it returns, not on how long
the tape is or how often its messages were revised. On a fork the same ranges lead into the ancestors, each as of the
seq at which it was forked off. The fork's overrides of inherited messages are applied on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import structs

from tape.core import strict
from tape.core.entries.payloads import ROOT, Place
from tape.db.sql.rows.view import AnchorAt, PathRow
from tape.errors import Corrupt, UnknownMessage

if TYPE_CHECKING:
    from tape.db.view.tape_view import TapeView

__all__ = [
    "ALL",
    "base",
    "before",
    "bodies",
    "contains",
    "end_of",
    "first_rows",
    "floor_of",
    "held",
    "last_rows",
    "latest_anchor",
    "nearest",
    "path",
    "place_of",
    "rows",
    "start",
    "stretch",
    "walk",
]

ALL = 2**31 - 1
"""A limit above any number of rows."""
_FIRST_STRETCH = 512
_MANY = 16
"""Above this many tapes, one statement for all is cheaper than one per tape."""
_by_depth = attrgetter("ordinal")


# -- lanes


def base(view: TapeView, place: Place) -> Place:
    """Return where a place's lane branches off."""
    number = view.number_of(place.tape)
    row = view.tx.one(view.sql.lane, (number, place.lane))
    if row is None:
        raise Corrupt(view.tape, place.lane, "the lane is missing")
    if 0 < place.ordinal <= row.base_ordinal:
        # Following the path towards the root would never end.
        raise Corrupt(view.tape, place.lane, "the branch point of the lane is not before its messages")
    return view.place_at(row.base_lane, row.base_ordinal, row.base_tape or number) if row.base_lane else ROOT


def beside_head(view: TapeView, place: Place) -> bool:
    """Whether a place is in the head's lane, whose start the head knows."""
    head = view.head.place
    return place.lane == head.lane and place.tape == head.tape


def start(view: TapeView, place: Place) -> int:
    """Return the depth at which a place's lane branches off."""
    head = view.head
    if place.lane == head.place.lane and place.tape == head.place.tape and place.lane != ROOT.lane:
        return head.lo
    return 0 if place.lane == ROOT.lane else base(view, place).ordinal


def before(view: TapeView, place: Place) -> Place:
    """Return the place above another on its path."""
    if place.ordinal - 1 > start(view, place):
        return Place(place.lane, place.ordinal - 1, place.tape)
    return base(view, place)


def walk(view: TapeView, end: Place, floor: int) -> list[tuple[Place, int]]:
    """Return the lanes crossed from ``end`` down to the floor, nearest first: each its last place and its start."""
    if end == ROOT:
        return []
    lanes = view.tx.all(view.sql.walk, (view.number_of(end.tape), end.lane, end.ordinal, max(floor, 0)))
    return [(view.place_at(row.lane, row.hi, row.tape_id), row.lo) for row in lanes]


def contains(view: TapeView, end: Place, place: Place) -> bool:
    """Whether ``place`` is on the path from the root to ``end``."""
    if place == ROOT or (place.lane == end.lane and place.tape == end.tape):
        return place.ordinal <= end.ordinal
    return any(
        last.lane == place.lane and last.tape == place.tape and lo < place.ordinal <= last.ordinal
        for last, lo in walk(view, end, place.ordinal - 1)
    )


def floor_of(view: TapeView, end: Place) -> int:
    """Return the depth up to which a clear hides everything on the path."""
    clear = view.clear if view.head.cleared else None
    if clear is None or clear.touched or clear.place.ordinal > end.ordinal or not contains(view, end, clear.place):
        return 0
    return clear.place.ordinal


# -- rows


def rows(view: TapeView, end: Place, lo: int, most: int = ALL, *, last: bool = False) -> Sequence[PathRow]:
    """Return the visible rows of a lane from ``lo`` to ``end``: the first ascending, or the last descending."""
    if end.tape is not None and view.ancestry is not None:
        return _inherited_rows(view, end, lo, most, last=last)
    sql = view.sql
    if view.now:
        statement = sql.last_rows_now if last else sql.rows_now
        return view.tx.all(statement, (view.number, end.lane, lo, end.ordinal, view.head.cleared, most))
    statement = sql.last_rows_then if last else sql.rows_then
    return view.tx.all(statement, (view.number, end.lane, lo, end.ordinal, view.head.cleared, view.seq, most))


def bodies(view: TapeView, end: Place, most: int) -> Sequence[tuple[int, bytes, bytes | None]] | None:
    """Return version, payload and meta of the last bodies on the path to ``end``, deepest first.

    None unless the path lies in one lane of this tape and is read as it stands: whoever asks then reads rows.
    """
    if end.tape is not None or not view.now:
        return None
    floor = floor_of(view, end)
    if start(view, end) > floor:
        return None
    return view.tx.all(view.sql.bodies_now, (view.number, end.lane, floor, end.ordinal, view.head.cleared, most))


def _inherited_rows(view: TapeView, end: Place, lo: int, most: int, *, last: bool) -> list[PathRow]:
    """Return the visible rows in a stretch of an ancestor's lane, as this tape sees them."""
    layers, number = view.layers(), view.number_of(end.tape)
    overrides = view.tx.all(view.sql.overrides_in, (view.lineage(), number, end.lane, lo, end.ordinal))
    held: list[PathRow] = []
    for layer, asof, cleared, _ in layers:
        if layer == number:
            statement = view.sql.last_rows_then if last else view.sql.rows_then
            # Every override can remove one of the rows, so that many more are read.
            wanted = min(most + len(overrides), ALL)
            ancestor_rows = view.tx.all(statement, (number, end.lane, lo, end.ordinal, cleared, asof, wanted))
            held = [structs.replace(row, tape_id=number) for row in ancestor_rows]
    seen = nearest(layers, held, overrides)
    seen.sort(key=_by_depth, reverse=last)
    return seen[:most]


def path(view: TapeView, end: Place, floor: int = 0) -> Sequence[PathRow]:
    """Return the rows on the path to ``end`` below ``floor``, root first."""
    if end == ROOT:
        return []
    floor = max(floor, floor_of(view, end))
    if start(view, end) <= floor:
        return rows(view, end, floor)
    params = (view.number_of(end.tape), end.lane, end.ordinal, floor)
    if view.ancestry is not None:
        lineage, layers = view.lineage(), view.layers()
        held = view.tx.all(view.sql.family_path, (*params, lineage))
        overrides = view.tx.all(view.sql.family_overrides, (*params, lineage))
        return sorted(nearest(layers, held, overrides), key=_by_depth)
    if view.now:
        return sorted(view.tx.all(view.sql.path_now, (*params, view.head.cleared)), key=_by_depth)
    return sorted(view.tx.all(view.sql.path_then, (*params, view.head.cleared, view.seq)), key=_by_depth)


def nearest(
    layers: list[tuple[int, int, int, int]], held: Sequence[PathRow], overrides: Sequence[PathRow]
) -> list[PathRow]:
    """Return inherited rows, each as the nearest tape that overrides it has it.

    ``held`` are the rows of the ancestors, ``overrides`` those of forks in the lineage, nearest first. On one path no
    two rows have the same depth, so the depth identifies a row.
    """
    if not overrides:
        return list(held)
    by_depth: dict[int, PathRow] = {row.ordinal: row for row in held}
    decided: set[int] = set()
    cleared = {number: seq for number, _, seq, _ in layers}
    for row in overrides:
        if row.ordinal not in decided:
            decided.add(row.ordinal)
            if row.body is None or row.since <= cleared[row.by]:
                by_depth.pop(row.ordinal, None)
            else:
                by_depth[row.ordinal] = row
    return list(by_depth.values())


def last_rows(view: TapeView, end: Place, count: int) -> list[PathRow]:
    """Return the last ``count`` rows on the path to ``end``, deepest first."""
    collected: list[PathRow] = []
    floor = floor_of(view, end)
    while end != ROOT and end.ordinal > floor and len(collected) < count:
        if end.tape is not None:
            return collected + _last_inherited(view, end, floor, count - len(collected))
        above = None if beside_head(view, end) else base(view, end)
        lo = view.head.lo if above is None else above.ordinal
        collected += rows(view, end, max(lo, floor), count - len(collected), last=True)
        if lo <= floor or len(collected) >= count:
            break
        end = above or base(view, end)
    return collected


def _last_inherited(view: TapeView, end: Place, floor: int, count: int) -> list[PathRow]:
    """Return the last ``count`` rows on the path to a place in an ancestor, deepest first.

    A deep family has a lane per level, so the path is read by stretches of depth and not lane by lane.
    """
    length = count
    while True:
        above = max(end.ordinal - length, floor)
        page = path(view, end, above)
        if len(page) >= count or above <= floor:
            return list(page[::-1][:count])
        length *= 4


def first_rows(view: TapeView, end: Place, above: int, count: int) -> list[PathRow]:
    """Return the first ``count`` rows on the path to ``end`` deeper than ``above``."""
    collected: list[PathRow] = []
    above = max(above, floor_of(view, end))
    for last, lo in reversed(walk(view, end, above)):
        if len(collected) >= count:
            break
        collected += rows(view, last, max(lo, above), count - len(collected))
    return collected


def stretch(view: TapeView, lanes: list[tuple[Place, int]], low: int, high: int) -> list[PathRow]:
    """Return the rows of a path, given the lanes it crosses, from one depth to another."""
    collected: list[PathRow] = []
    for last, lo in reversed(lanes) if low < high else ():
        if last.ordinal > low and lo < high:
            stop = Place(last.lane, min(last.ordinal, high), last.tape)
            collected += rows(view, stop, max(lo, low))
    return collected


# -- single messages


def place_of(view: TapeView, message_id: str) -> tuple[Place, int]:
    """Return the place of a message that the view knows, and the seq that placed it; raises UnknownMessage."""
    location = view.place(message_id) if strict.is_identifier(message_id) else None
    if location is None:
        raise UnknownMessage(view.tape, message_id)
    return location


def held(view: TapeView, place: Place, message_id: str) -> PathRow:
    """Return the row of a message; raises UnknownMessage when it is not in the view."""
    matching = rows(view, place, place.ordinal - 1)
    if not matching:
        raise UnknownMessage(view.tape, message_id, retracted=True)
    return matching[0]


def end_of(view: TapeView, branch: str | None) -> Place:
    """Return the head, or the message that a caller named as the end of a branch."""
    if branch is None:
        return view.head.place
    place, _ = place_of(view, branch)
    held(view, place, branch)
    return place


# -- anchors


def latest_anchor(view: TapeView, end: Place) -> AnchorAt | None:
    """Return the latest anchor on the path to ``end``: the deepest, then the newest."""
    if not view.anchored and view.ancestry is None:
        return None
    lineage = None if view.ancestry is None else view.lineage()
    if end != ROOT:
        # Most often it is in the lane of the head. Otherwise look further and further up the path.
        lo = start(view, end)
        anchor = _anchor_in_lane(view, end, lo) if end.tape is None and view.anchored else None
        if anchor is None and (lo > 0 or end.tape is not None):
            anchor = _anchor_above(view, end, lineage)
        if anchor is not None:
            return anchor
    # An anchor set before the first message is on every path.
    if lineage is not None:
        return view.tx.one(view.sql.root_anchor, (lineage,))
    return _anchor_in_lane(view, ROOT, -1)


def _anchor_in_lane(view: TapeView, end: Place, lo: int) -> AnchorAt | None:
    return view.tx.one(view.sql.anchor_in_lane, (view.number, end.lane, end.ordinal, lo, view.head.cleared, view.seq))


def _anchor_above(view: TapeView, end: Place, lineage: str | None) -> AnchorAt | None:
    """Return the deepest anchor on the path, looking at longer and longer stretches of it."""
    length, number = _FIRST_STRETCH, view.number_of(end.tape)
    while True:
        floor = max(end.ordinal - length, 0)
        params = (number, end.lane, end.ordinal, floor)
        if lineage is not None:
            anchor = view.tx.one(view.sql.family_anchor, (*params, lineage))
        else:
            anchor = view.tx.one(view.sql.anchor_on_path, (*params, view.head.cleared, view.seq))
        if anchor is not None:
            return anchor
        if floor == 0 or (length == _FIRST_STRETCH and not _anchored(view)):
            return None
        length *= 4


def _anchored(view: TapeView) -> bool:
    """Whether there may be an anchor in the view at all: cheaper to ask than to walk a path of many lanes."""
    layers = view.layers()
    return len(layers) > _MANY or any(
        view.tx.one(view.sql.anchor_list, (number, cleared, asof + 1, 1)) is not None
        for number, asof, cleared, _ in layers
    )
