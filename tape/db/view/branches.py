"""The branches of a view: where each of them ends, and what follows a message directly.

A deep family has at least one lane per level, so nothing here runs a query per lane. Every statement takes all the
places of a step at once, and the number of statements depends on neither the lanes nor the ancestors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from tape.core.entries.payloads import ROOT, Place
from tape.core.records import Message
from tape.db.sql.rows.view import PathRow
from tape.db.view import paths
from tape.db.view.tape_view import TapeView
from tape.db.view.values import message_from_row
from tape.errors import Corrupt

__all__ = ["children", "heads"]

_FAR = 2**62
_ROUNDS = 8
"""How many rounds look past rows that a fork removed, for all lanes at once, before each lane is read by itself."""


class Lane(Struct, frozen=True):
    """A lane: the tape that it is on, its number there, and where it branches off."""

    tape: int
    lane: int
    base_tape: int
    base_lane: int
    base: int

    @property
    def own(self) -> tuple[int, int]:
        """The key of the lane."""
        return self.tape, self.lane

    @property
    def up(self) -> tuple[int, int]:
        """The key of the lane that it branches off from."""
        return self.base_tape, self.base_lane


class Stretch(Struct, frozen=True):
    """A part of a lane: deeper than ``lo``, down to ``hi``."""

    tape: int
    lane: int
    lo: int
    hi: int


class Held(Struct, frozen=True):
    """A visible row without its body: its lane, its depth, the entry that placed it, and the entry it shows."""

    tape: int
    lane: int
    ordinal: int
    placed: int
    body_tape: int
    body: int

    @property
    def own(self) -> tuple[int, int]:
        """The key of the lane."""
        return self.tape, self.lane


class Edges:
    """Finds the first or the last visible row of any number of stretches at once."""

    def __init__(self, view: TapeView) -> None:
        self._view = view
        self._layers = {layer[0]: layer for layer in view.layers()}
        self._changes: dict[tuple[int, int], dict[int, Held | None]] = {}
        for row in view.tx.all(view.sql.family_changes, (view.lineage(),)) if view.forked else ():
            # The nearest tape that overrides an inherited message decides, and its row comes first.
            held = None
            if row.body is not None and row.holds:
                held = Held(row.origin, row.lane, row.ordinal, row.placed, row.body_tape, row.body)
            self._changes.setdefault((row.origin, row.lane), {}).setdefault(row.ordinal, held)

    def rows(self, stretches: Sequence[Stretch], *, last: bool) -> list[Held | None]:
        """Return the first or the last visible row of each stretch, if there is one."""
        edges: list[Held | None] = [None] * len(stretches)
        open_stretches = dict(enumerate(stretches))
        for _ in range(_ROUNDS):
            if not open_stretches:
                return edges
            rows = self._unchanged(list(open_stretches.values()), last=last)
            narrowed: dict[int, Stretch] = {}
            for (at, stretch), row in zip(open_stretches.items(), rows, strict=True):
                changed = self._changed(stretches[at], last=last)
                gone = row is not None and self._changes.get(row.own, {}).get(row.ordinal, row) is None
                if row is None or not gone or _nearer([row, changed], last=last) is changed:
                    edges[at] = _nearer([changed, None if gone else row], last=last)
                elif last:
                    narrowed[at] = Stretch(stretch.tape, stretch.lane, stretch.lo, row.ordinal - 1)
                else:
                    narrowed[at] = Stretch(stretch.tape, stretch.lane, row.ordinal, stretch.hi)
            open_stretches = narrowed
        for at in open_stretches:
            edges[at] = self._single(stretches[at], last=last)
        return edges

    def _unchanged(self, stretches: list[Stretch], *, last: bool) -> list[Held | None]:
        """Return the first or last rows as the tapes that own the lanes hold them, without overrides."""
        view = self._view
        ranges = []
        for stretch in stretches:
            # Behind a clear of a nearer tape only messages that were restored are visible.
            _, asof, cleared, _ = self._layers.get(stretch.tape, (0, 0, 0, 0))
            past = int(stretch.tape != view.number or not view.now)
            ranges.append((stretch.tape, stretch.lane, stretch.lo, stretch.hi, cleared, asof, past))
        statement = view.sql.last_rows if last else view.sql.first_rows
        rows_by_stretch: list[list[Held | None]] = [[] for _ in stretches]
        for row in view.tx.all(statement, (_json(ranges),)):
            tape = stretches[row.n].tape
            rows_by_stretch[row.n].append(Held(tape, stretches[row.n].lane, row.ordinal, row.placed, tape, row.body))
        return [_nearer(rows, last=last) for rows in rows_by_stretch]

    def _changed(self, stretch: Stretch, *, last: bool) -> Held | None:
        """Return the first or last row of a stretch among those that a fork changed."""
        changes = self._changes.get((stretch.tape, stretch.lane), {})
        return _nearer([held for at, held in changes.items() if stretch.lo < at <= stretch.hi], last=last)

    def _single(self, stretch: Stretch, *, last: bool) -> Held | None:
        end = self._view.place_at(stretch.lane, stretch.hi, stretch.tape)
        rows = paths.rows(self._view, end, stretch.lo, 1, last=last)
        if not rows:
            return None
        (row,) = rows
        return Held(stretch.tape, stretch.lane, row.ordinal, row.placed, row.body_tape or stretch.tape, row.body or 0)


def heads(view: TapeView) -> list[Message]:
    """Return the last message of every branch, in the order in which they were placed."""
    # Lanes are numbered in the order in which they were opened, and a fork's come after its parent's.
    lanes = [
        Lane(row.tape_id, row.lane, row.base_tape or row.tape_id, row.base_lane, row.base_ordinal)
        for row in view.tx.all(view.sql.family_lanes, (_json(view.tapes()),))
    ]
    edges = Edges(view)
    rows = edges.rows([Stretch(*lane.own, lane.base, _FAR) for lane in lanes], last=True)
    ends = {lane.own: row for lane, row in zip(lanes, rows, strict=True) if row is not None}
    # A lane's last message is a head unless a lane that branches off at or below it has a visible message.
    continued: set[tuple[int, int]] = set()
    for lane in reversed(lanes):
        if (lane.own in ends or lane.own in continued) and (lane.up not in ends or lane.base >= ends[lane.up].ordinal):
            continued.add(lane.up)
    last = sorted((row for own, row in ends.items() if own not in continued), key=_age(view))
    above = _above(view, edges, {lane.own: lane for lane in lanes}, last)
    bodies = _bodies(view, [*last, *(row for row in above if row is not None)])
    messages = []
    for head, row in zip(last, above, strict=True):
        parent = None if row is None else message_from_row(view.name_of(row.tape), bodies[row], None).id
        messages.append(message_from_row(view.name_of(head.tape), bodies[head], parent))
    return messages


def _above(view: TapeView, edges: Edges, lanes: dict[tuple[int, int], Lane], rows: list[Held]) -> list[Held | None]:
    """Return the rows that come before others on their paths."""
    opened = {own: n for n, own in enumerate(lanes)}
    parents: list[Held | None] = [None] * len(rows)
    remaining = {at: (lanes[row.own], row.ordinal - 1) for at, row in enumerate(rows)}
    while remaining:
        stretches = [Stretch(*lane.own, lane.base, hi) for lane, hi in remaining.values()]
        above = edges.rows(stretches, last=True)
        further: dict[int, tuple[Lane, int]] = {}
        for (at, (lane, _)), row in zip(remaining.items(), above, strict=True):
            parents[at] = row
            if row is None and lane.base_lane != ROOT.lane:
                # Every lane branches off from one that was opened before it. Anything else would loop for ever.
                if lane.up not in lanes or opened[lane.up] >= opened[lane.own]:
                    raise Corrupt(view.tape, lane.base_lane, "the lane is missing")
                further[at] = (lanes[lane.up], lane.base)
        remaining = further
    return parents


def children(view: TapeView, place: Place, message_id: str) -> list[Message]:
    """Return the messages that follow one directly in the view, oldest branch first."""
    tapes = view.tapes()
    nearer = {number: n for n, (number, _) in enumerate(tapes)}
    edges = Edges(view)
    followers: list[Held] = []
    # What follows is the next row in the lane, and the first rows of the lanes that branch off before it.
    level = [Stretch(view.number_of(place.tape), place.lane, place.ordinal, _FAR)]
    seen = {(level[0].tape, level[0].lane)}
    while level:
        ranges = []
        for stretch, row in zip(level, edges.rows(level, last=False), strict=True):
            if row is not None:
                followers.append(row)
            stop = _FAR if row is None else row.ordinal
            ranges.append((stretch.tape, stretch.lane, stretch.lo, stop, nearer[stretch.tape]))
        rows = view.tx.all(view.sql.family_branches, (_json(ranges), _json(tapes)))
        level = [Stretch(*branch, _FAR) for branch in rows if (branch.tape_id, branch.lane) not in seen]
        seen.update((stretch.tape, stretch.lane) for stretch in level)
    followers.sort(key=_age(view))
    bodies = _bodies(view, followers)
    return [message_from_row(view.name_of(row.tape), bodies[row], message_id) for row in followers]


def _bodies(view: TapeView, rows: Sequence[Held]) -> dict[Held, PathRow]:
    """Return the rows with their bodies, from which messages are built."""
    by_row: dict[Held, PathRow] = {}
    body_keys = _json([(row.body_tape, row.body) for row in rows])
    for body in view.tx.all(view.sql.bodies_of, (body_keys,)) if rows else ():
        row = rows[body.n]
        content = (body.kind, body.version, body.payload, body.stamp)
        by_row[row] = PathRow(row.ordinal, row.placed, row.body, *content, row.lane, body.key, body.meta, row.tape)
    for row in rows:
        if row not in by_row:
            raise Corrupt(view.name_of(row.body_tape), row.body, "the entry is missing")
    return by_row


def _age(view: TapeView) -> Callable[[Held], tuple[int, int]]:
    """Return the sort key of a family's rows by when they were placed: ancestors first, then by seq."""
    nearer = {number: -n for n, (number, _) in enumerate(view.tapes())}
    return lambda row: (nearer[row.tape], row.placed)


def _nearer(rows: Sequence[Held | None], *, last: bool) -> Held | None:
    """Return the deepest of some rows, or the least deep, and of two at one depth the first."""
    held = [row for row in rows if row is not None]
    if not held:
        return None
    return (max if last else min)(held, key=lambda row: row.ordinal)


def _json(rows: Sequence[Sequence[int]]) -> str:
    return msgspec.json.encode(rows).decode()
