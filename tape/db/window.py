"""A branch read from both of its ends, as far as a budget needs it: the rows behind ``tape.core.window``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from tape.core.compaction import Summary
from tape.core.context import Excluded, Item, price, summary_message
from tape.core.payloads import ROOT, Place
from tape.core.runs import Compaction
from tape.core.weigh import Scale
from tape.core.window import Spot, Unbounded, spot
from tape.db.paths import Row, Scope
from tape.db.project import call_key
from tape.db.transaction import Transaction

if TYPE_CHECKING:
    from tape.db.contexts import ContextReader

__all__ = ["PathWindow", "Run", "branch_range"]

_SPAN = 1_024
"""Over how much depth rows are looked for at first; more where hardly any message is left."""
_LONGEST_SPAN = 2**40
_MOST_LANES = 4_096
"""Over how much depth several lanes are read at once."""


class Run(Struct, frozen=True):
    """A compaction in force with its summary."""

    of: Compaction
    summary: Summary

    @property
    def lo(self) -> int:
        """The depth at which it begins."""
        return self.of.lo

    @property
    def hi(self) -> int:
        """The depth at which it ends."""
        return self.of.place.ordinal


class PathWindow:
    """The messages of a path below a depth, with summaries in the place of what they cover, read from both ends."""

    def __init__(
        self,
        reader: ContextReader,
        tx: Transaction,
        scope: Scope,
        end: Place,
        floor: int,
        runs: Sequence[Run],
        scale: Scale,
    ) -> None:
        self._reader = reader
        self._tx = tx
        self._scope = scope
        self._scale = scale
        self._end = end
        self._floor = max(floor, reader._floor(tx, scope, end)) if end != ROOT else 0
        self._lanes = self._walked()
        self._starts = [lo for _, lo in self._lanes]
        self._runs = list(runs)
        self._ahead, self._behind = 0, len(self._runs)
        """The runs that were read from neither end."""
        self._low, self._high = self._floor, end.ordinal
        """The depths between which nothing was read yet."""
        self._span = _SPAN

    def _walked(self) -> list[tuple[Place, int]]:
        """Return the lanes of the path, the nearest to the root first: each its last place and its start."""
        if self._end == ROOT:
            return []
        lo = self._reader._lo(self._tx, self._scope, self._end)
        if lo <= self._floor:
            return [(self._end, lo)]
        return self._reader._walk(self._tx, self._scope, self._end, self._floor)[::-1]

    @property
    def whole(self) -> bool:
        """Whether there is nothing left between what was read from either end."""
        return self._low >= self._high

    def newest(self, count: int) -> list[Spot]:
        """Return about so many messages before those read from the end, oldest first; none only when it is whole."""
        while not self.whole:
            run = self._runs[self._behind - 1] if self._behind > self._ahead else None
            bottom = self._low if run is None else max(run.hi, self._low)
            if self._high > bottom:
                rows, self._high = self._last_rows(bottom, count)
                if rows:
                    return self._spots(rows)
            elif run is not None:
                self._behind -= 1
                self._high = run.lo - 1
                return self._run_spots(run)
        return []

    def oldest(self, count: int) -> list[Spot]:
        """Return about so many messages after those read from the beginning; none only when it is whole."""
        while not self.whole:
            run = self._runs[self._ahead] if self._ahead < self._behind else None
            top = self._high if run is None else min(run.lo - 1, self._high)
            if self._low < top:
                rows, self._low = self._first_rows(top, count)
                if rows:
                    return self._spots(rows)
            elif run is not None:
                self._ahead += 1
                self._low = run.hi
                return self._run_spots(run)
        return []

    def _lane(self, depth: int) -> tuple[Place, int]:
        """Return the lane of the path in which a depth lies."""
        return self._lanes[bisect_left(self._starts, depth) - 1]

    def _last_rows(self, bottom: int, count: int) -> tuple[list[Row], int]:
        """Return the last rows between ``bottom`` and what was read from the end, and the depth down to which."""
        high = self._high
        last, lo = self._lane(high)
        place = Place(last.lane, high, last.tape)
        if lo <= max(bottom, high - count):
            floor = max(lo, bottom, high - self._span)
            rows = list(self._reader._rows(self._tx, self._scope, place, floor, count, last=True))[::-1]
            if len(rows) == count:
                floor = rows[0][0] - 1
        else:
            # Of short lanes several are read in one statement.
            floor = max(bottom, high - min(max(count, self._span // 16), _MOST_LANES))
            rows = self._reader._path(self._tx, self._scope, place, floor)
        self._widen(found=bool(rows))
        return rows, floor

    def _first_rows(self, top: int, count: int) -> tuple[list[Row], int]:
        """Return the first rows between what was read from the beginning and ``top``, and the depth up to which."""
        last, lo = self._lane(self._low + 1)
        end = min(last.ordinal, top, self._low + self._span)
        place = Place(last.lane, end, last.tape)
        rows = list(self._reader._rows(self._tx, self._scope, place, max(lo, self._low), count))
        self._widen(found=bool(rows))
        return rows, rows[-1][0] if len(rows) == count else end

    def _widen(self, *, found: bool) -> None:
        self._span = _SPAN if found else min(self._span * 4, _LONGEST_SPAN)

    def _spots(self, rows: list[Row]) -> list[Spot]:
        items = self._reader._plain_items(self._tx, self._scope, rows)
        price(items, self._scale)
        return [spot(item, row[0]) for item, row in zip(items, rows, strict=True)]

    def _run_spots(self, run: Run) -> list[Spot]:
        """Return a summary, and behind it what has come back into its run."""
        item = Item(summary_message(run.summary, run.summary.stamp), 0, False, run.summary.tape)
        price([item], self._scale)
        return [spot(item, run.lo), *(self._spots(self._loose(run)) if run.of.loose else ())]

    def _loose(self, run: Run) -> list[Row]:
        """Return the rows of messages within a run that the summary does not cover."""
        covers = set(run.summary.covers)
        rows = self._reader._path(self._tx, self._scope, run.of.place, run.lo - 1)
        messages = self._reader._messages(self._tx, self._scope, rows)
        return [row for row, message in zip(rows, messages, strict=True) if message.id not in covers]

    # -- what lies beyond

    def made(self, call: str) -> bool:
        """Whether a message before those read from the end makes a call."""
        if not call:
            # Nothing is recorded of calls without an id.
            raise Unbounded
        for lane, ordinal, of, tape in self._tx.all(
            self._tx.statements.family_makers, (self._lineage(), call_key(call))
        ):
            if ordinal <= self._high:
                maker = self._shown(self._scope.at(lane, ordinal, of or tape))
                if maker is not None and call in maker.said.calls:
                    return True
        return False

    def answers(self, depths: Sequence[int], below: int) -> list[Spot]:
        """Return the messages deeper than ``below`` that are recorded as answers to calls made at these depths."""
        wanted, found = set(depths), dict[Place, None]()
        for last, lo in self._lanes:
            first, final = max(lo, min(depths) - 1), min(last.ordinal, max(depths))
            if first < final:
                params = (self._lineage(), self._scope.number(last), last.lane, first, final, below)
                for lane, ordinal, tape, maker in self._tx.all(self._tx.statements.answers_between, params):
                    if maker in wanted:
                        found[self._scope.at(lane, ordinal, tape)] = None
        return [shown for shown in map(self._shown, found) if shown is not None]

    def _lineage(self) -> str:
        """Return the whole family as statements take it: a message from behind a clear may be back."""
        own = (self._scope.id, self._scope.seq, 0, 1)
        return f"[[{own[0]},{own[1]},0,1]]" if self._scope.family is None else self._scope.family.parameter(own)

    def _shown(self, place: Place) -> Spot | None:
        """Return the message at a place if the window shows it."""
        if not self._floor < place.ordinal <= self._end.ordinal:
            return None
        last, _ = self._lane(place.ordinal)
        if last.lane != place.lane or last.tape != place.tape:
            return None
        rows = self._reader._rows(self._tx, self._scope, place, place.ordinal - 1)
        found = self._spots(list(rows))
        for run in self._runs:
            if found and run.lo <= place.ordinal <= run.hi:
                return found[0] if run.of.loose and found[0].item.message.id not in run.summary.covers else None
        return found[0] if found else None

    # -- what is out

    def summarised(self, run: Run) -> list[Excluded]:
        """Return what a summary stands for."""
        return branch_range(self._scope, *self._covered(run), f"summarised by seq {run.summary.seq}")

    def _covered(self, run: Run) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the entries that placed the first and the last message of a run."""
        first, last = (self._lane(depth)[0].tape or self._scope.tape for depth in (run.lo, run.hi))
        return (first, run.summary.span[0]), (last, run.summary.span[1])

    def _placed(self, one: Spot) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the first and the last entry that placed what a message of the window shows."""
        message = one.item.message
        for run in self._runs:
            if (run.summary.tape, run.summary.seq) == (message.tape, message.seq):
                return self._covered(run)
        return (message.tape, message.seq), (message.tape, message.seq)

    def between(self, before: Spot | None, first: Spot | None, after: Spot, why: str) -> list[Excluded]:
        """Return what lies between two messages of the window, or from the ``first`` of all up to one."""
        start, end = None, self._placed(after)[0]
        if before is not None:
            tape, seq = self._placed(before)[1]
            start = (tape, seq + 1)
        elif first is not None:
            start = self._placed(first)[0]
        return branch_range(self._scope, start or (end[0], 1), (end[0], end[1] - 1), why)


def branch_range(scope: Scope, first: tuple[str, int], last: tuple[str, int], why: str) -> list[Excluded]:
    """Return what a branch has from one entry to another: on a fork, a range on every tape of its family between."""
    tapes = [(scope.name(number), asof) for number, asof in reversed(scope.tapes())]
    names = [name for name, _ in tapes]
    found = []
    for index in range(names.index(first[0]), names.index(last[0]) + 1):
        name, asof = tapes[index]
        start = first[1] if name == first[0] else 1
        end = last[1] if name == last[0] else asof
        if start <= end:
            found.append(Excluded(name, start, end, why))
    return found
