"""The branches of a view: where each of them ends, and what follows a message directly.

A deep family has at least one lane per level. So nothing here asks lane by lane: every statement takes all the places
that it is asked about, and how many statements there are depends on neither the lanes nor the ancestors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from tape.core.entries.payloads import ROOT, Place
from tape.core.records import Message
from tape.db.engine.transaction import Transaction
from tape.db.view.paths import Paths, Row, Scope
from tape.db.view.rows import message_from_row
from tape.errors import Corrupt

__all__ = ["Branches"]

_FAR = 2**62
_ROUNDS = 8
"""How often all lanes are asked for the row before one that a fork took away, before each is asked by itself."""


class Lane(Struct, frozen=True):
    """A lane: the tape that it is on, its number there, and where it branches off."""

    tape: int
    lane: int
    base_tape: int
    base_lane: int
    base: int

    @property
    def own(self) -> tuple[int, int]:
        """What names the lane."""
        return self.tape, self.lane

    @property
    def up(self) -> tuple[int, int]:
        """What names the lane that it branches off from."""
        return self.base_tape, self.base_lane


class Stretch(Struct, frozen=True):
    """A part of a lane: deeper than ``lo``, down to ``hi``."""

    tape: int
    lane: int
    lo: int
    hi: int


class Held(Struct, frozen=True):
    """A row that holds, without its body: the lane it is in, its depth, what placed it, and which entry it shows."""

    tape: int
    lane: int
    ordinal: int
    placed: int
    body_tape: int
    body: int

    @property
    def own(self) -> tuple[int, int]:
        """What names the lane."""
        return self.tape, self.lane


class Edges:
    """Asks which rows are the first or the last that hold, in any number of stretches at once."""

    def __init__(self, paths: Branches, tx: Transaction, scope: Scope) -> None:
        self._paths = paths
        self._tx = tx
        self._scope = scope
        self._layers = {layer[0]: layer for layer in scope.layers()}
        self._changes: dict[tuple[int, int], dict[int, Held | None]] = {}
        if scope.family is not None:
            for origin, lane, ordinal, placed, body_tape, body, holds in tx.all(
                paths._sql.family_changes, (scope.lineage(),)
            ):
                # The nearest tape that says something of an inherited message decides, and comes first.
                held = Held(origin, lane, ordinal, placed, body_tape, body) if body is not None and holds else None
                self._changes.setdefault((origin, lane), {}).setdefault(ordinal, held)

    def rows(self, stretches: Sequence[Stretch], *, last: bool) -> list[Held | None]:
        """Return the first or the last row that holds in each stretch, if there is one."""
        found: list[Held | None] = [None] * len(stretches)
        left = dict(enumerate(stretches))
        for _ in range(_ROUNDS):
            if not left:
                return found
            rows = self._unchanged(list(left.values()), last=last)
            again: dict[int, Stretch] = {}
            for (at, stretch), row in zip(left.items(), rows, strict=True):
                changed = self._changed(stretches[at], last=last)
                gone = row is not None and self._changes.get(row.own, {}).get(row.ordinal, row) is None
                if row is None or not gone or _nearer([row, changed], last=last) is changed:
                    found[at] = _nearer([changed, None if gone else row], last=last)
                elif last:
                    again[at] = Stretch(stretch.tape, stretch.lane, stretch.lo, row.ordinal - 1)
                else:
                    again[at] = Stretch(stretch.tape, stretch.lane, row.ordinal, stretch.hi)
            left = again
        for at in left:
            found[at] = self._single(stretches[at], last=last)
        return found

    def _unchanged(self, stretches: list[Stretch], *, last: bool) -> list[Held | None]:
        """Return the rows that the tapes of the lanes themselves hold."""
        scope = self._scope
        asked = []
        for stretch in stretches:
            # Behind a clear of a nearer tape nothing holds but what came back from there.
            _, asof, cleared, _ = self._layers.get(stretch.tape, (0, 0, 0, 0))
            past = int(stretch.tape != scope.id or not scope.now)
            asked.append((stretch.tape, stretch.lane, stretch.lo, stretch.hi, cleared, asof, past))
        statement = self._paths._sql.last_rows if last else self._paths._sql.first_rows
        found: list[list[Held | None]] = [[] for _ in stretches]
        for n, ordinal, placed, body in self._tx.all(statement, (_json(asked),)):
            tape = stretches[n].tape
            found[n].append(Held(tape, stretches[n].lane, ordinal, placed, tape, body))
        return [_nearer(rows, last=last) for rows in found]

    def _changed(self, stretch: Stretch, *, last: bool) -> Held | None:
        """Return the first or last row of a stretch among those that a fork changed."""
        changes = self._changes.get((stretch.tape, stretch.lane), {})
        return _nearer([held for at, held in changes.items() if stretch.lo < at <= stretch.hi], last=last)

    def _single(self, stretch: Stretch, *, last: bool) -> Held | None:
        scope = self._scope
        end = scope.at(stretch.lane, stretch.hi, stretch.tape)
        rows = self._paths._rows(self._tx, scope, end, stretch.lo, 1, last=last)
        if not rows:
            return None
        body_tape = rows[0][11] if len(rows[0]) > 11 else stretch.tape
        return Held(stretch.tape, stretch.lane, rows[0][0], rows[0][1], body_tape, rows[0][2])


class Branches(Paths):
    """Reads the ends of branches and the messages at which they part."""

    def _heads(self, tx: Transaction, scope: Scope) -> list[Message]:
        """Return the last message of every branch, in the order in which they were placed."""
        lineage = _json(scope.tapes())
        # Lanes are numbered in the order in which they were opened, and a fork's come after its parent's.
        lanes = [
            Lane(tape, lane, base_tape or tape, base_lane, base)
            for tape, lane, base_tape, base_lane, base in tx.all(self._sql.family_lanes, (lineage,))
        ]
        edges = Edges(self, tx, scope)
        rows = edges.rows([Stretch(*lane.own, lane.base, _FAR) for lane in lanes], last=True)
        ends = {lane.own: row for lane, row in zip(lanes, rows, strict=True) if row is not None}
        # A lane's last message is a head unless a lane that branches off at or below it holds something.
        continued: set[tuple[int, int]] = set()
        for lane in reversed(lanes):
            if (lane.own in ends or lane.own in continued) and (
                lane.up not in ends or lane.base >= ends[lane.up].ordinal
            ):
                continued.add(lane.up)
        heads = [row for own, row in ends.items() if own not in continued]
        heads.sort(key=_age(scope))
        above = self._above(scope, edges, {lane.own: lane for lane in lanes}, heads)
        bodies = self._bodies(tx, scope, [*heads, *(row for row in above if row is not None)])
        found = []
        for head, row in zip(heads, above, strict=True):
            parent = None if row is None else message_from_row(scope.name(row.tape), bodies[row], None).id
            found.append(message_from_row(scope.name(head.tape), bodies[head], parent))
        return found

    def _above(
        self, scope: Scope, edges: Edges, lanes: dict[tuple[int, int], Lane], rows: list[Held]
    ) -> list[Held | None]:
        """Return the rows that come before others on their paths."""
        opened = {own: n for n, own in enumerate(lanes)}
        found: list[Held | None] = [None] * len(rows)
        left = {at: (lanes[row.own], row.ordinal - 1) for at, row in enumerate(rows)}
        while left:
            stretches = [Stretch(*lane.own, lane.base, hi) for lane, hi in left.values()]
            above = edges.rows(stretches, last=True)
            further: dict[int, tuple[Lane, int]] = {}
            for (at, (lane, _)), row in zip(left.items(), above, strict=True):
                found[at] = row
                if row is None and lane.base_lane != ROOT.lane:
                    # Every lane branches off from one that was opened before it, or the way up would have no end.
                    if lane.up not in lanes or opened[lane.up] >= opened[lane.own]:
                        raise Corrupt(scope.tape, lane.base_lane, "the lane is missing")
                    further[at] = (lanes[lane.up], lane.base)
            left = further
        return found

    def _children(self, tx: Transaction, scope: Scope, place: Place, message_id: str) -> list[Message]:
        """Return the messages that follow one directly in the view, oldest branch first."""
        tapes = scope.tapes()
        lineage = _json(tapes)
        nearer = {number: n for n, (number, _) in enumerate(tapes)}
        edges = Edges(self, tx, scope)
        found: list[Held] = []
        # What follows is the next row in the lane, and the first rows of the lanes that branch off before it.
        level = [Stretch(scope.number(place), place.lane, place.ordinal, _FAR)]
        seen = {(level[0].tape, level[0].lane)}
        while level:
            asked = []
            for stretch, row in zip(level, edges.rows(level, last=False), strict=True):
                if row is not None:
                    found.append(row)
                stop = _FAR if row is None else row.ordinal
                asked.append((stretch.tape, stretch.lane, stretch.lo, stop, nearer[stretch.tape]))
            rows = tx.all(self._sql.family_branches, (_json(asked), lineage))
            level = [Stretch(tape, lane, base, _FAR) for tape, lane, base in rows if (tape, lane) not in seen]
            seen.update((stretch.tape, stretch.lane) for stretch in level)
        found.sort(key=_age(scope))
        bodies = self._bodies(tx, scope, found)
        return [message_from_row(scope.name(row.tape), bodies[row], message_id) for row in found]

    def _bodies(self, tx: Transaction, scope: Scope, rows: Sequence[Held]) -> dict[Held, Row]:
        """Return rows with their bodies, as messages are made of."""
        found: dict[Held, Row] = {}
        asked = _json([(row.body_tape, row.body) for row in rows])
        for n, *body in tx.all(self._sql.bodies_of, (asked,)) if rows else ():
            row = rows[n]
            found[row] = (row.ordinal, row.placed, row.body, *body)
        for row in rows:
            if row not in found:
                raise Corrupt(scope.name(row.body_tape), row.body, "the entry is missing")
        return found


def _age(scope: Scope) -> Callable[[Held], tuple[int, int]]:
    """Return what orders rows of a family by when they were placed: ancestors first, then by seq."""
    nearer = {number: -n for n, (number, _) in enumerate(scope.tapes())}
    return lambda row: (nearer[row.tape], row.placed)


def _nearer(rows: Sequence[Held | None], *, last: bool) -> Held | None:
    """Return the deepest of some rows, or the least deep, and of two at one depth the first."""
    held = [row for row in rows if row is not None]
    if not held:
        return None
    return (max if last else min)(held, key=lambda row: row.ordinal)


def _json(rows: Sequence[Sequence[int]]) -> str:
    return msgspec.json.encode(rows).decode()
