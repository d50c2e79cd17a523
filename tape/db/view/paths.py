"""Paths through a view: the lanes that they cross, and the rows that hold on them.

A path is read as ranges: one per lane that it crosses. What a read costs depends on what it returns, not on how long
the tape is or how often its messages were revised. On a fork the same ranges lead into the ancestors, each as of the
seq at which it was forked off, and what the fork made of inherited messages is laid over them.
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
"""As many rows as there are."""
_FIRST_STRETCH = 512
_MANY = 16
"""So many tapes are asked in one statement rather than one by one."""
_by_depth = attrgetter("ordinal")


# -- lanes


def base(view: TapeView, place: Place) -> Place:
    """Return where a place's lane branches off."""
    number = view.number_of(place.tape)
    row = view.tx.one(view.sql.lane, (number, place.lane))
    if row is None:
        raise Corrupt(view.tape, place.lane, "the lane is missing")
    if 0 < place.ordinal <= row.base_ordinal:
        # Whoever follows the path up would never arrive.
        raise Corrupt(view.tape, place.lane, "the lane branches off below its own messages")
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
    found = view.tx.all(view.sql.walk, (view.number_of(end.tape), end.lane, end.ordinal, max(floor, 0)))
    return [(view.place_at(row.lane, row.hi, row.tape_id), row.lo) for row in found]


def contains(view: TapeView, end: Place, place: Place) -> bool:
    """Whether ``place`` is on the path from the root to ``end``."""
    if place == ROOT or (place.lane == end.lane and place.tape == end.tape):
        return place.ordinal <= end.ordinal
    return any(
        last.lane == place.lane and last.tape == place.tape and lo < place.ordinal <= last.ordinal
        for last, lo in walk(view, end, place.ordinal - 1)
    )


def floor_of(view: TapeView, end: Place) -> int:
    """Return the depth up to which nothing on the path can hold because of a clear."""
    clear = view.clear if view.head.cleared else None
    if clear is None or clear.touched or clear.place.ordinal > end.ordinal or not contains(view, end, clear.place):
        return 0
    return clear.place.ordinal


# -- rows


def rows(view: TapeView, end: Place, lo: int, most: int = ALL, *, last: bool = False) -> Sequence[PathRow]:
    """Return the rows that hold in a lane from ``lo`` to ``end``: the first ascending, or the last descending."""
    if end.tape is not None and view.ancestry is not None:
        return _inherited_rows(view, end, lo, most, last=last)
    sql = view.sql
    if view.now:
        statement = sql.last_rows_now if last else sql.rows_now
        return view.tx.all(statement, (view.number, end.lane, lo, end.ordinal, view.head.cleared, most))
    statement = sql.last_rows_then if last else sql.rows_then
    return view.tx.all(statement, (view.number, end.lane, lo, end.ordinal, view.head.cleared, view.seq, most))


def _inherited_rows(view: TapeView, end: Place, lo: int, most: int, *, last: bool) -> list[PathRow]:
    """Return the rows that hold in a stretch of an ancestor's lane, as this tape sees them."""
    layers, number = view.layers(), view.number_of(end.tape)
    overrides = view.tx.all(view.sql.overrides_in, (view.lineage(), number, end.lane, lo, end.ordinal))
    held: list[PathRow] = []
    for layer, asof, cleared, _ in layers:
        if layer == number:
            statement = view.sql.last_rows_then if last else view.sql.rows_then
            # Every override can take away one of the rows, so that many more are asked for.
            wanted = min(most + len(overrides), ALL)
            found = view.tx.all(statement, (number, end.lane, lo, end.ordinal, cleared, asof, wanted))
            held = [structs.replace(row, tape_id=number) for row in found]
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
    """Return inherited rows, each as the nearest tape that says something of it has it.

    ``held`` is what the ancestors held, ``overrides`` what forks in the lineage made of it, nearest first. On one
    path no two rows have the same depth, so depth tells them apart.
    """
    if not overrides:
        return list(held)
    found: dict[int, PathRow] = {row.ordinal: row for row in held}
    decided: set[int] = set()
    cleared = {number: seq for number, _, seq, _ in layers}
    for row in overrides:
        if row.ordinal not in decided:
            decided.add(row.ordinal)
            if row.body is None or row.since <= cleared[row.by]:
                found.pop(row.ordinal, None)
            else:
                found[row.ordinal] = row
    return list(found.values())


def last_rows(view: TapeView, end: Place, count: int) -> list[PathRow]:
    """Return the last ``count`` rows on the path to ``end``, deepest first."""
    found: list[PathRow] = []
    floor = floor_of(view, end)
    while end != ROOT and end.ordinal > floor and len(found) < count:
        if end.tape is not None:
            return found + _last_inherited(view, end, floor, count - len(found))
        above = None if beside_head(view, end) else base(view, end)
        lo = view.head.lo if above is None else above.ordinal
        found += rows(view, end, max(lo, floor), count - len(found), last=True)
        if lo <= floor or len(found) >= count:
            break
        end = above or base(view, end)
    return found


def _last_inherited(view: TapeView, end: Place, floor: int, count: int) -> list[PathRow]:
    """Return the last ``count`` rows on the path to a place in an ancestor, deepest first.

    A deep family has a lane per level, so the path is read by stretches of depth and not lane by lane.
    """
    length = count
    while True:
        above = max(end.ordinal - length, floor)
        found = path(view, end, above)
        if len(found) >= count or above <= floor:
            return list(found[::-1][:count])
        length *= 4


def first_rows(view: TapeView, end: Place, above: int, count: int) -> list[PathRow]:
    """Return the first ``count`` rows on the path to ``end`` deeper than ``above``."""
    found: list[PathRow] = []
    above = max(above, floor_of(view, end))
    for last, lo in reversed(walk(view, end, above)):
        if len(found) >= count:
            break
        found += rows(view, last, max(lo, above), count - len(found))
    return found


def stretch(view: TapeView, lanes: list[tuple[Place, int]], low: int, high: int) -> list[PathRow]:
    """Return the rows of a path, given the lanes it crosses, from one depth to another."""
    found: list[PathRow] = []
    for last, lo in reversed(lanes) if low < high else ():
        if last.ordinal > low and lo < high:
            stop = Place(last.lane, min(last.ordinal, high), last.tape)
            found += rows(view, stop, max(lo, low))
    return found


# -- single messages


def place_of(view: TapeView, message_id: str) -> tuple[Place, int]:
    """Return the place of a message that was on the tape by then, and the entry that placed it."""
    found = view.place(message_id) if strict.is_identifier(message_id) else None
    if found is None:
        raise UnknownMessage(view.tape, message_id)
    return found


def held(view: TapeView, place: Place, message_id: str) -> PathRow:
    """Return the row of a message; raises UnknownMessage when it is not in the view."""
    found = rows(view, place, place.ordinal - 1)
    if not found:
        raise UnknownMessage(view.tape, message_id, retracted=True)
    return found[0]


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
    lineage = None if view.ancestry is None else view.lineage()
    if end != ROOT:
        # Most often it stands in the lane of the head; otherwise look further and further up the path.
        lo = start(view, end)
        found = _anchor_in_lane(view, end, lo) if end.tape is None else None
        if found is None and (lo > 0 or end.tape is not None):
            found = _anchor_above(view, end, lineage)
        if found is not None:
            return found
    # An anchor set before the first message stands above every path.
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
            found = view.tx.one(view.sql.family_anchor, (*params, lineage))
        else:
            found = view.tx.one(view.sql.anchor_on_path, (*params, view.head.cleared, view.seq))
        if found is not None:
            return found
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
